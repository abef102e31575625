package router

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
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

// Answer is a choice handed to the caller.
type Answer struct {
	*chooser.Choice
	// Host and Port are the replica's, for callers that open their own connection.
	Host string
	Port int
	// Served is the model's name on the replica, Encoding what is known of the prompt.
	Served   string
	Encoding *tokenizer.Encoding
	Lease    time.Duration
	// Salt is the cache_salt that the body must carry, empty when it stays as it is; Lowered says that the request
	// claims more than its tenant may, and is served at Priority (as engines have it: smaller first).
	Salt     string
	Lowered  bool
	Priority int
	// HideOverlap says that the caller may not see what replicas hold of the prompt.
	HideOverlap bool
	// Duplicate says that an earlier question of this name was given the same answer.
	Duplicate bool
}

// truncated reports whether the body is the beginning of a longer one; nil asks nothing.
func (q *Question) truncated() bool { return q != nil && q.Truncated }

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
