// Package refusals records this router's refusals of other routers: in one counter by reason, and in the log, where each
// source and reason has at most one line per minute.
//
// A Log is safe for concurrent use. It remembers a bounded number of sources; beyond that it counts only.
package refusals

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// Reason is why something was refused.
type Reason string

// The reasons.
const (
	// Key: the sender does not have the fleet's key.
	Key Reason = "key"
	// Wire: the router speaks another major version of the contract.
	Wire Reason = "wire"
	// Identity: the router is another one than it says.
	Identity Reason = "identity"
	// Conflict: two routers announce one id.
	Conflict Reason = "conflict"
	// Name: two routers announce one name; each is shown with its id.
	Name Reason = "name"
	// Address: an announced address leads to another router, as a Service's does.
	Address Reason = "address"
	// Join: an address to join belongs to no member, as a Service's.
	Join Reason = "join"
	// Clock: a certificate is not valid at this router's time.
	Clock Reason = "clock"
	// Handshake: the other end rejected this router's certificate.
	Handshake Reason = "handshake"
	// Malformed: a received message is not of the contract.
	Malformed Reason = "malformed"
	// Limit: a bound was exceeded.
	Limit Reason = "limit"
)

// reasons lists them all.
func reasons() []Reason {
	return []Reason{Key, Wire, Identity, Conflict, Name, Address, Join, Clock, Handshake, Malformed, Limit}
}

const (
	// quiet is the time between two lines about the same source and reason.
	quiet = time.Minute
	// most bounds the sources that are remembered.
	most = 1024
)

// Log records refusals.
type Log struct {
	log    *slog.Logger
	count  metric.Int64Counter
	labels map[Reason]metric.MeasurementOption

	mu   sync.Mutex
	last map[source]time.Time // guarded by mu
}

type source struct {
	reason Reason
	name   string
}

// New makes a Log. A nil provider counts nothing.
func New(log *slog.Logger, provider metric.MeterProvider) *Log {
	l := &Log{log: log, labels: map[Reason]metric.MeasurementOption{}, last: map[source]time.Time{}}
	var series []metric.MeasurementOption
	for _, reason := range reasons() {
		l.labels[reason] = instruments.Label("reason", string(reason))
		series = append(series, l.labels[reason])
	}
	l.count = instruments.New(provider, "server/peers/refusals").CounterBy("kvpilot.peers.refused", "{refusal}",
		"Refused messages of other routers, by reason: key, wire (another major version), identity, conflict (one id twice), name (one name twice), address (it leads to another router), join (no member's own address), clock (a certificate is not valid now), handshake (the other end refused), malformed, limit.",
		series...)
	return l
}

// Refuse counts a refusal and logs message, unless the same source was refused for the same reason within the last minute.
// from names the source: an address without a port, or a router's id.
func (l *Log) Refuse(reason Reason, from, message string, attrs ...any) {
	l.count.Add(context.Background(), 1, l.labels[reason])
	if l.isDue(source{reason, from}, time.Now()) {
		l.log.Warn(message, append([]any{"reason", string(reason), "from", from}, attrs...)...)
	}
}

func (l *Log) isDue(s source, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, known := l.last[s]; known && now.Sub(at) < quiet {
		return false
	}
	if len(l.last) >= most {
		for old, at := range l.last {
			if now.Sub(at) >= quiet {
				delete(l.last, old)
			}
		}
		if len(l.last) >= most {
			return false
		}
	}
	l.last[s] = now
	return true
}
