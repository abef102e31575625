package quota

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// Owner keeps the accounts of tenants: a Limiter, alone or with those of other routers.
type Owner interface {
	// Active reports whether anything is limited; while it is false, requests need no Grant.
	Active() bool
	// Admit counts a request of the tenant, or refuses it.
	Admit(g *Grant, tenant string) *Refusal
	// Book books the tokens that an admitted request is predicted to take, or refuses it.
	Book(g *Grant, ask Ask) *Refusal
	// Settle ends a request: what it took replaces what was booked. The first call counts.
	Settle(g *Grant, u Usage)
	// State is the account of the request's tenant; false when it has no Grant.
	State(g *Grant) (State, bool)
	// MaxPriority is the highest priority that the tenant may claim; false when it has none.
	MaxPriority(tenant string) (int, bool)
}

// Grant is the booking of one request. Its zero value holds nothing; it must not be copied once it is in use.
type Grant struct {
	tenant   *tenant // nil: nothing to settle
	began    time.Time
	booked   float64
	reserved int
	settled  atomic.Bool
}

// InUse reports whether the grant holds anything; nil holds nothing.
func (g *Grant) InUse() bool { return g != nil && g.tenant != nil }

// Ask is what a request is predicted to take.
type Ask struct {
	// Prompt is the number of its prompt's tokens.
	Prompt int
	// MaxOutput bounds the output tokens of each of Answers answers; 0 is no bound.
	MaxOutput int
	Answers   int
	// Generates says that it has an output: routes that compute embeddings have none.
	Generates bool
	// Reserve marks a reservation: its owner sends the request itself.
	Reserve bool
}

// Usage is what a request took.
type Usage struct {
	// Charge says what of it is known.
	Charge Charge
	// Prompt and Output count its tokens, for ChargeUsage and ChargeClaimed.
	Prompt, Output int
	// Unbelieved counts reported tokens that the request cannot have taken. They are not charged.
	Unbelieved int
	// Elsewhere is set when the request continues at another router, which counts it: here it is no request any more.
	Elsewhere bool
}

// Charge says how a booking is settled.
type Charge uint8

// The ways to settle a booking.
const (
	// ChargeNothing releases the whole booking: the request failed before anything was computed for it.
	ChargeNothing Charge = iota
	// ChargeUsage takes the tokens in Usage.
	ChargeUsage
	// ChargeBooked keeps what was booked: nothing better is known.
	ChargeBooked
	// ChargeClaimed takes the tokens in Usage, which an external caller reports and no router has seen. Less than what was booked is
	// believed only as far as the tenant's refunds allow: a share of all that it is charged.
	ChargeClaimed
)

// Cause says which limit refuses a request.
type Cause uint8

// The causes.
const (
	CauseRequests Cause = iota
	CauseTokens
	CauseInFlight
	CauseReserved
	causes
)

// String gives the cause in the form that metrics use.
func (c Cause) String() string {
	return [...]string{"requests", "tokens", "in_flight", "reserved_tokens", "unknown"}[min(c, causes)]
}

// Refusal says why a request is not served, and when to retry.
type Refusal struct {
	Cause      Cause
	RetryAfter time.Duration
	State      State
}

// Message is for the caller.
func (r *Refusal) Message() string {
	switch r.Cause {
	case CauseRequests:
		return "the tenant's limit of requests per second is reached (" + strconv.Itoa(r.State.Requests) + " at once)"
	case CauseTokens:
		return "the tenant's limit of tokens per minute is reached (" + strconv.Itoa(r.State.Tokens) + " at once)"
	case CauseInFlight:
		return "the tenant has reached its limit of requests in flight"
	case CauseReserved, causes:
	}
	return "the tenant's reservations have reached their limit of tokens"
}

// State is a tenant's account at one moment. A limit of zero is none.
type State struct {
	// Requests and Tokens are how many may be taken at once, Left is what is left of them now, and Reset the time
	// until all of them are back.
	Requests, RequestsLeft int
	RequestsReset          time.Duration
	Tokens, TokensLeft     int
	TokensReset            time.Duration
}

// Set puts the account into headers, by the names that OpenAI uses.
func (s State) Set(h http.Header) {
	if s.Requests <= 0 && s.Tokens <= 0 {
		return
	}
	values := new([6]string)
	set := func(i int, name, value string) {
		values[i] = value
		h[name] = values[i : i+1 : i+1]
	}
	if s.Requests > 0 {
		set(0, "X-Ratelimit-Limit-Requests", strconv.Itoa(s.Requests))
		set(1, "X-Ratelimit-Remaining-Requests", strconv.Itoa(s.RequestsLeft))
		set(2, "X-Ratelimit-Reset-Requests", s.RequestsReset.String())
	}
	if s.Tokens > 0 {
		set(3, "X-Ratelimit-Limit-Tokens", strconv.Itoa(s.Tokens))
		set(4, "X-Ratelimit-Remaining-Tokens", strconv.Itoa(s.TokensLeft))
		set(5, "X-Ratelimit-Reset-Tokens", s.TokensReset.String())
	}
}
