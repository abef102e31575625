package intake

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// Question asks for a replica without sending the request there.
type Question struct {
	Caller
	Input
	Terms
	// Model names the pool; empty takes the body's, or the only model there is.
	Model string

	Header    map[string][]string
	RequestID string
	Adapter   string
	Salt      string
	Session   string
	Priority  int
	// ExpectedOutput is in tokens; 0 takes the body's hint or limit.
	ExpectedOutput int
	Options        chooser.Options
	// Explain says that the caller is shown the whole decision.
	Explain bool
	// ReturnIDs says that the caller reads the ids of the answer's encoding.
	ReturnIDs bool
	// Received is when the question was seen.
	Received time.Time
}

// Input is the prompt of a question: one of Body, IDs and Text. Without any, a replica is chosen by load.
type Input struct {
	// Body is a client's request to Route, or a prefix of it when Truncated.
	Body      []byte
	Route     openai.Route
	Truncated bool
	// FullSize is the size in bytes of the body that Body is the beginning of; 0 when it is not known.
	FullSize int64
	IDs      []uint32
	Text     string
}

// Terms are what is booked for a question, and what its caller reports.
type Terms struct {
	Booking Booking
	// Lease is the life of the reservation; zero takes the configured one.
	Lease   time.Duration
	Reports Reports
}

// Booking is what a choice books.
type Booking uint8

// Reserves reports whether the choice becomes a reservation.
func (b Booking) Reserves() bool { return b == Reserve || b == ReserveOnce }

// Reports is what the caller reports of a request.
type Reports uint8

// IsCut reports whether the body is the beginning of a longer one; nil asks nothing.
func (q *Question) IsCut() bool { return q != nil && q.Truncated }

const (
	// BookNothing makes a choice that waits for its turn and books nothing.
	BookNothing Booking = iota
	// Reserve books the choice.
	Reserve
	// ReserveOnce books the choice under the tenant's RequestID: while the reservation lives, the same question
	// gets the same answer and books nothing.
	ReserveOnce
	// DryRun neither books nor waits.
	DryRun
)

const (
	// ReportsAny may include the first token.
	ReportsAny Reports = iota
	// ReportsEnd has the end and not the first token.
	ReportsEnd
	// ReportsFirstToken is sure to include the first token.
	ReportsFirstToken
)
