package chooser

import (
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/booking"
	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/choose/chooser/reports"
	"github.com/kvpilot/kvpilot/server/choose/chooser/settings"
	"github.com/kvpilot/kvpilot/server/choose/chooser/waiting"
	"github.com/kvpilot/kvpilot/server/choose/chooser/watch"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// The input of a choice and its outcome, from package ask.
type (
	Request     = ask.Request
	Pool        = ask.Pool
	Prompt      = ask.Prompt
	Answer      = ask.Answer
	Caller      = ask.Caller
	Reply       = ask.Reply
	Limits      = ask.Limits
	Terms       = ask.Terms
	Booking     = ask.Booking
	Origin      = ask.Origin
	Withdrawing = ask.Withdrawing
	Withdrawal  = ask.Withdrawal
	Observer    = ask.Observer
	Result      = ask.Result
	End         = ask.End
	NoReplica   = ask.NoReplica
	Refused     = ask.Refused
)

// The constants of package ask.
const (
	Reserve  = ask.Reserve
	Unbooked = ask.Unbooked
	DryRun   = ask.DryRun
	Stalled  = ask.Stalled
	Leaving  = ask.Leaving
	NoReturn = ask.NoReturn
)

// The errors of package ask.
var (
	ErrInvalid   = ask.ErrInvalid
	ErrDuplicate = ask.ErrDuplicate
)

// ResultOf is an end without known usage.
func ResultOf(end decision.End) Result { return ask.ResultOf(end) }

// The settings, from package settings.
type (
	Config      = settings.Config
	SLOConfig   = settings.SLOConfig
	ModelConfig = settings.ModelConfig
	StallConfig = settings.StallConfig
	Settings    = settings.Settings
	Options     = settings.Options
)

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return settings.DefaultConfig() }

// The result of a choice, and the receiver of all of them, from package booking.
type (
	Choice  = booking.Choice
	Decided = booking.Decided
	Record  = booking.Record
)

// Waiting is a request that Submit put in the hold queue.
type Waiting = waiting.Waiter

// Engines has other packages' knowledge of the ranks' engines.
type Engines = watch.Engines

// Gate keeps requests from replicas that fail.
type Gate = evaluate.Gate

// The engines' own reports, and the learned speed of the ranks.
type (
	Report  = reports.Report
	Reports = reports.Reports
	Rate    = rank.Rate
)
