package grants

import "time"

// Amounts are amounts of the limits that fill up again with time.
type Amounts struct{ Requests, Tokens float64 }

// Plus returns the sum.
func (a Amounts) Plus(b Amounts) Amounts {
	return Amounts{a.Requests + b.Requests, a.Tokens + b.Tokens}
}

// Minus returns the difference.
func (a Amounts) Minus(b Amounts) Amounts {
	return Amounts{a.Requests - b.Requests, a.Tokens - b.Tokens}
}

// Over returns a with its negative fields set to zero.
func (a Amounts) Over() Amounts {
	return Amounts{max(0, a.Requests), max(0, a.Tokens)}
}

// Holding is a router's part of the limits that are freed when requests end.
type Holding struct{ InFlight, Reserved int }

// Plus returns the sum.
func (h Holding) Plus(o Holding) Holding {
	return Holding{h.InFlight + o.InFlight, h.Reserved + o.Reserved}
}

// Report is the report of a lease's holder to the owner.
type Report struct {
	Tenant string
	// Epoch names the relation between both, Sequence numbers its reports from 1.
	Epoch, Sequence uint64
	// Returned is the sum of the amounts returned unused, less the amounts taken beyond the lease.
	Returned Amounts
	// Holding is the part that the holder keeps.
	Holding Holding
	// Need is the lack of the first waiting request, Waiting the lack of the others, More the need expected soon.
	Need, Waiting, More Amounts
	// NeedHolding and MoreHolding are the same of the second kind.
	NeedHolding, MoreHolding Holding
	// Handover says that the reporter was the owner: Returned has its account. Assumed is the part of it that the reporter assumed when
	// it began the account without knowledge of an earlier one.
	Handover bool
	Assumed  Amounts
	// Part is the part of the account that the reporter's was, where the fleet was divided.
	Part float64
}

// Refusal says why a report has no answer.
type Refusal uint8

// The refusals.
const (
	// Answered: there is none.
	Answered Refusal = iota
	// NotOwner: the account is not this router's.
	NotOwner
	// UnknownEpoch: the reporter begins another epoch.
	UnknownEpoch
)

// Grant is the owner's answer to a report.
type Grant struct {
	Epoch, Sequence uint64
	Refusal         Refusal
	// Granted is the sum since the epoch began.
	Granted Amounts
	// Holding is the part that the holder may have.
	Holding Holding
	Account Account
}

// Account is the state of a tenant's account.
type Account struct {
	Tenant string
	// Level may be below zero.
	Level Amounts
	// Holders are the routers with requests in flight, the owner among them.
	Holders []Holder
	// RequestTime is how long a request takes.
	RequestTime time.Duration
}

// Holder is one router's holding.
type Holder struct {
	ID string
	Holding
}

// Accounts are the accounts of a router. Its methods must not block.
type Accounts interface {
	// Active reports whether anything is limited.
	Active() bool
	// SetView says which routers share the limits from now on.
	SetView(*View)
	// Reports returns the reports that are due to an owner: the reports of the given tenants, of all when there are none. Each one must be
	// followed by Granted with its answer or by Failed.
	Reports(owner string, tenants []string) []Report
	Granted(owner, tenant string, g Grant)
	Failed(owner, tenant string)
	// Lend answers a report of another router.
	Lend(from string, r Report) Grant
	// Changed returns the accounts that this router owns and that have changed since the last call, or all of them.
	Changed(all bool) []Account
	// Witness stores the state of accounts that another router owns.
	Witness(from string, list []Account)
}
