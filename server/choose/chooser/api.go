package chooser

import (
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/booking"
	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/choose/chooser/reports"
	"github.com/kvpilot/kvpilot/server/choose/chooser/settings"
	"github.com/kvpilot/kvpilot/server/choose/chooser/waiting"
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
	Prefix      = ask.Prefix
	Copier      = ask.Copier
	Place       = ask.Place
	CopyEnd     = ask.CopyEnd
	CopyReports = ask.CopyReports
	Origin      = ask.Origin
	Withdrawal  = ask.Withdrawal
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

	Copied       = ask.Copied
	SourceFailed = ask.SourceFailed
	TargetFailed = ask.TargetFailed
	CopyGivenUp  = ask.CopyGivenUp
	CopyVoid     = ask.CopyVoid
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
	Config    = settings.Config
	SLOConfig = settings.SLOConfig
	Settings  = settings.Settings
	Options   = settings.Options
)

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return settings.DefaultConfig() }

// The result of a choice, here or at another router, from package booking.
type (
	Choice  = booking.Choice
	Decided = booking.Decided
	Copying = booking.Copying
)

// Waiting is a request that Submit put in the hold queue.
type Waiting = waiting.Waiter

// The report of an engine, and the learned speed of a rank.
type (
	Report = reports.Report
	Rate   = rank.Rate
)
