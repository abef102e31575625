package audit

import (
	"context"
	"io"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/observe/journal"
)

// Kind is the kind of an event.
type Kind string

// The kinds.
const (
	Register      Kind = "register"
	Deregister    Kind = "deregister"
	Drain         Kind = "drain"
	Undrain       Kind = "undrain"
	LoadAdapter   Kind = "load_adapter"
	UnloadAdapter Kind = "unload_adapter"
	// Settings is a change of settings, keys or policies while the router runs.
	Settings Kind = "settings"
	// Refused is a request whose credentials were wrong, or whose role did not allow it.
	Refused Kind = "refused"
	// Read is a read of other tenants' data.
	Read Kind = "read"
)

// kinds lists them all.
func kinds() []Kind {
	return []Kind{Register, Deregister, Drain, Undrain, LoadAdapter, UnloadAdapter, Settings, Refused, Read}
}

// Event is one line. Time is set by Write; empty fields are left out.
type Event struct {
	Time time.Time `json:"time"`
	Kind Kind      `json:"event"`
	// Outcome is "ok", or the reason of the error.
	Outcome string `json:"outcome"`
	// Tenant, Caller and By identify the sender of the request, as in package caller.
	Tenant string        `json:"tenant,omitempty"`
	Caller string        `json:"caller,omitempty"`
	By     caller.Source `json:"by,omitempty"`
	// Address is the client's, without a port; RequestID the request's.
	Address   string `json:"address,omitempty"`
	RequestID string `json:"request_id,omitempty"`
	// Target is the object of the action: a replica, a decision, a setting. Method is the RPC or the path.
	Target string `json:"target,omitempty"`
	Method string `json:"method,omitempty"`
	Detail string `json:"detail,omitempty"`
	// LeftOut counts events of this kind that were not written since the last one.
	LeftOut int `json:"left_out,omitempty"`
}

// From sets the sender of the request.
func (e Event) From(who *caller.Caller) Event {
	if who != nil {
		e.Tenant, e.Caller, e.By = who.Tenant, who.Name, who.By
	}
	return e
}

// OK is the outcome of an action that succeeded.
const OK = "ok"

const (
	// refusedRate and refusedBurst bound refusals per second.
	refusedRate, refusedBurst = 10, 100
	// readEvery is how often the same reads of the same caller are written, maxReaders how many callers are distinguished.
	readEvery, maxReaders = time.Minute, 1024
	// longest bounds a value from a request, in bytes.
	longest = 256
)

// Params are the parts that a Log works with. All may be missing.
type Params struct {
	// Stderr takes the lines where the file is "stderr".
	Stderr io.Writer
	Scope  scope.Scope
}

// Log takes events. Make one with New. A nil Log takes none.
type Log struct {
	to      *journal.Writer // nil: events are counted only
	metrics *metrics

	mu          sync.Mutex
	tokens      float64             // guarded by mu: refusals that may be written at once
	filled      time.Time           // guarded by mu: when they were counted
	leftRefused int                 // guarded by mu
	read        map[reader]*reading // guarded by mu
}

// reader is the identity of a read: equal ones are the same read.
type reader struct{ tenant, caller, address, method string }

type reading struct {
	at      time.Time
	leftOut int
}

// New makes a Log. It opens nothing: Run does.
func New(c Config, p Params) *Log {
	m := newMetrics(p.Scope.Meters())
	l := &Log{metrics: m, tokens: refusedBurst, filled: time.Now(), read: map[reader]*reading{}}
	to := journal.Params{Name: "audit log", Path: c.File, MaxBytes: int64(c.FileMaxBytes), Losses: m, Scope: p.Scope}
	switch c.File {
	case "":
		return l
	case stderr:
		if to.To = p.Stderr; to.To == nil {
			to.To = io.Discard
		}
	}
	l.to = journal.New(to)
	return l
}

// Run writes the file until ctx ends.
func (l *Log) Run(ctx context.Context) error {
	if l.to == nil {
		<-ctx.Done()
		return nil
	}
	return l.to.Run(ctx)
}

// Write records an event. It does not wait.
func (l *Log) Write(e Event) {
	if l == nil {
		return
	}
	l.metrics.Events.Add(e.Kind)
	if l.to == nil {
		return
	}
	e.Time = time.Now().UTC()
	if !l.admit(&e) {
		return
	}
	for _, text := range []*string{&e.Tenant, &e.Caller, &e.Address, &e.RequestID, &e.Target, &e.Method, &e.Detail} {
		*text = clip(*text)
	}
	l.to.Offer(e)
}

// admit bounds the kinds that callers cause at will.
func (l *Log) admit(e *Event) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch e.Kind {
	case Refused:
		l.tokens = min(refusedBurst, l.tokens+e.Time.Sub(l.filled).Seconds()*refusedRate)
		l.filled = e.Time
		if l.tokens < 1 {
			l.leftRefused++
			return false
		}
		l.tokens--
		e.LeftOut, l.leftRefused = l.leftRefused, 0
	case Read:
		by := reader{e.Tenant, e.Caller, e.Address, e.Method}
		if known := l.read[by]; known != nil && e.Time.Sub(known.at) < readEvery {
			known.leftOut++
			return false
		} else if known != nil {
			e.LeftOut = known.leftOut
		} else if len(l.read) >= maxReaders {
			clear(l.read)
		}
		l.read[by] = &reading{at: e.Time}
	case Register, Deregister, Drain, Undrain, LoadAdapter, UnloadAdapter, Settings: // few
	}
	return true
}

func clip(text string) string {
	if len(text) <= longest {
		return text
	}
	end := longest
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}
