package reload

import (
	"fmt"
	"slices"
	"time"
)

// Change is one setting that differs.
type Change struct {
	// Path names the setting as the operator writes it.
	Path string
	// Old and New are its values, secrets starred; empty for none.
	Old, New string
	// Restart says that it takes effect with the next start.
	Restart bool
}

// String is the change on one line.
func (c Change) String() string {
	text := fmt.Sprintf("%s: %s -> %s", c.Path, orNone(c.Old), orNone(c.New))
	if c.Restart {
		text += " (needs a restart)"
	}
	return text
}

func orNone(s string) string {
	if s == "" {
		return "(none)"
	}
	return s
}

// Origin says what made a version.
type Origin string

// The origins.
const (
	// OriginStart: the process began with it.
	OriginStart Origin = "start"
	// OriginFile: a file changed.
	OriginFile Origin = "file"
	// OriginSignal: the process got SIGHUP.
	OriginSignal Origin = "signal"
	// OriginCall: a caller asked for a reload.
	OriginCall Origin = "call"
	// OriginRollback: a caller asked for an earlier version.
	OriginRollback Origin = "rollback"
)

// Version is the settings of one time, without the settings themselves.
type Version struct {
	// Number counts from 1.
	Number uint64
	Time   time.Time
	Origin Origin
	// Who is the caller that asked for it; empty when none did.
	Who string
	// Hash is a digest of all settings but the secrets.
	Hash    string
	Changes []Change
	// RollbackOf is the version whose settings it has again; 0 for none.
	RollbackOf uint64
}

// Request asks for a reload.
type Request struct {
	Origin Origin
	Who    string
	// DryRun only checks.
	DryRun bool
}

// Result says what a reload did.
type Result struct {
	// Version is the version in force afterwards.
	Version Version
	// Changes are the differences from the settings before.
	Changes []Change
	// Unchanged: nothing was applied.
	Unchanged bool
}

// waiting lists the changes that need a restart.
func (r Result) waiting() []Change {
	return slices.DeleteFunc(slices.Clone(r.Changes), func(c Change) bool { return !c.Restart })
}

// Refused is why new settings were not applied: they are wrong. The old ones are in force.
type Refused struct{ Err error }

// Error implements error.
func (e *Refused) Error() string {
	return "the new settings are rejected, the old ones stay in force: " + e.Err.Error()
}

// Unwrap gives the cause.
func (e *Refused) Unwrap() error { return e.Err }

// failed is why new settings are not in force although they are right: a part could not take them. The old ones are in
// force again, unless Stuck says which parts could not go back.
type failed struct {
	Section string
	Err     error
	Stuck   error
}

// Error implements error.
func (e *failed) Error() string {
	text := fmt.Sprintf("the new settings could not be applied (%s: %v)", e.Section, e.Err)
	if e.Stuck != nil {
		return text + fmt.Sprintf(", and not all old ones are in force again: %v; restart the router", e.Stuck)
	}
	return text + ", the old ones are in force again"
}

// Unwrap gives the cause.
func (e *failed) Unwrap() error { return e.Err }
