// Package registry knows which replicas exist and which of them may take work.
//
// Replicas come from sources: the configured list, a watched file, DNS, Kubernetes and
// registration with leases. Run probes each replica, learns its models, version and block size,
// and publishes every change as a new immutable Snapshot; Snapshot and Pool look-ups take no
// lock. Each data-parallel rank of a replica has a Slot, which is used again only after every
// part was notified that its rank is gone.
//
// All state belongs to the goroutine of Run; other methods send it their command and may be called
// at once from anywhere. Callbacks of Params come from that goroutine, in order: a rank is added
// before the snapshot that shows it is published, and removed after it is published without it.
// Which replica a request goes to is not decided here.
package registry
