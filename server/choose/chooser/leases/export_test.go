package leases

// Holds reports whether the choice of a reservation is still held.
func (l *Leases) Holds(tenant, id string) bool {
	_, held := l.choices.Load(leaseName{tenant, id})
	return held
}
