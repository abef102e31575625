package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

const (
	// eventsOn makes vLLM publish.
	eventsOn = `--enable-prefix-caching --kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657"}'`
	// connecting is how long a feed may take to connect, replaying how long its first replay may take.
	connecting = 4 * time.Second
	replaying  = 12 * time.Second
)

// eachRank asks the same of every rank with an event socket.
func (in scope) eachRank(do func(r *replica.Replica, rank int, slot replica.Slot) []Finding) []Finding {
	return in.each(func(r *replica.Replica) []Finding {
		r = in.now(r)
		list := make([][]Finding, len(r.Slots))
		each(len(r.Slots), func(rank int) {
			subject := rankName(r, rank)
			if why, lost := in.lost[subject]; lost {
				list[rank] = []Finding{blockedBy(subject, why)}
			} else if rank < len(r.Events) && r.Events[rank].Endpoint != "" {
				list[rank] = do(r, rank, r.Slots[rank])
			}
		})
		return slices.Concat(list...)
	})
}

// checkEvents looks at each rank's event socket.
func checkEvents(ctx context.Context, in scope) []Finding {
	list := in.each(func(r *replica.Replica) []Finding { return in.silent(ctx, in.now(r)) })
	list = slices.DeleteFunc(list, func(f Finding) bool { return f.blocked != "" }) // eachRank has them again
	return append(list, in.eachRank(func(r *replica.Replica, rank int, slot replica.Slot) []Finding {
		return in.eventsOf(ctx, r, rank, slot)
	})...)
}

// silent explains ranks without an event socket.
func (in scope) silent(ctx context.Context, r *replica.Replica) (list []Finding) {
	e := in.probe(ctx, r)
	for rank := range r.Slots {
		subject := rankName(r, rank)
		switch {
		case rank < len(r.Events) && r.Events[rank].Endpoint != "":
		case in.switchedOff(r):
			list = append(list, skip(subject, "events are switched off in the settings (endpoint: none)"))
		case e.SourcesError != nil:
			list = append(list, fault(Warn, subject, "the addresses of KV events, from GET /kv_event_sources", bare(e.SourcesError),
				"set registry.events.endpoint and replay to the addresses of the engine's --kv-events-config")...)
		case e.Sources != nil:
			list = append(list, fault(Warn, subject, "KV events", "the engine says that it publishes none", "start vLLM with "+eventsOn+"; without events kvpilot guesses what a cache holds from what it sent")...)
		default:
			list = append(list, fault(Warn, subject, "KV events", "no endpoint is set, and this version does not report one",
				"start vLLM with "+eventsOn+" and set registry.events.endpoint and replay to the same (tcp://{host}:5557, tcp://{host}:5657)")...)
		}
	}
	return list
}

// switchedOff reports whether the settings want no events of a replica.
func (in scope) switchedOff(r *replica.Replica) bool {
	const none = "none"
	for _, s := range in.conf.Registry.Replicas {
		if (s.ID == r.ID || s.URL == r.URL) && s.Events.Endpoint != "" {
			return s.Events.Endpoint == none
		}
	}
	return in.conf.Registry.Events.Endpoint == none
}

func (in scope) eventsOf(ctx context.Context, r *replica.Replica, rank int, slot replica.Slot) []Finding {
	subject, at := rankName(r, rank), r.Events[rank]
	if other := in.sharing(r, rank); other != "" {
		return fault(Fail, subject, "an event socket of its own", other+" has the same: "+at.Endpoint,
			"two engines of one host need ports of their own: give each another endpoint and replay_endpoint in --kv-events-config, and name them in events of each replica (from vLLM 0.32 on, leave events.endpoint empty)")
	}
	if address, tcp := strings.CutPrefix(at.Endpoint, "tcp://"); tcp && !at.Bind {
		if err := reach(ctx, address); err != nil {
			list := unreachable(subject, address, fmt.Sprintf("the ZMQ events of rank %d", rank), "events.endpoint", err)
			list[0].Change = "start vLLM with " + eventsOn + " (endpoint tcp://*:PORT listens, tcp://HOST:PORT dials; rank n is at PORT + n), let firewalls pass the port, and name it in events.endpoint"
			return list
		}
	}
	connect, cancel := context.WithTimeout(ctx, connecting)
	defer cancel()
	var s kvevents.Status
	connected := wait(connect, func() bool { s, _ = in.observer.Events.Status(slot); return s.Connected })
	switch {
	case !connected && at.Bind:
		return fault(Warn, subject, "the engine dials "+at.Endpoint, boundSeen(s), "is a router of this machine bound to the address already? Then test it with kvpilot doctor --server. Else give vLLM this machine's address as endpoint")
	case !connected && isRouter(ctx, at.Endpoint):
		return fault(Fail, subject, "a ZMQ PUB socket at "+at.Endpoint, "a ROUTER socket, which answers replays", "events.endpoint and events.replay are exchanged: endpoint is the engine's endpoint, replay its replay_endpoint")
	case !connected:
		return fault(Fail, subject, "a ZMQ PUB socket at "+at.Endpoint, cmp.Or(s.LastError, "no handshake"), "another program listens there: set events.endpoint to the endpoint of --kv-events-config")
	}
	if list := (sockets{in}).eventsElsewhere(ctx, r, rank); list != nil {
		return list
	}
	return []Finding{ok(subject, "subscribed to %s%s", at.Endpoint, topic(at.Topic))}
}

// sharing names another rank with the same event socket. One that the router binds, or that lists several ranks, may be shared.
func (in scope) sharing(r *replica.Replica, rank int) string {
	at := r.Events[rank]
	if at.Bind || at.Topic != "" || strings.HasPrefix(at.Endpoint, "grpc") {
		return ""
	}
	for _, other := range in.observer.Registry.Snapshot().Replicas {
		for n, ev := range other.Events {
			if ev.Endpoint == at.Endpoint && (other.ID != r.ID || n != rank) {
				return rankName(other, n)
			}
		}
	}
	return ""
}

// isRouter reports whether a ROUTER socket listens at an address. libzmq's hangs up on a subscriber without a word.
func isRouter(ctx context.Context, endpoint string) bool {
	conn, err := zmtp.Dial(ctx, endpoint, zmtp.Params{Type: zmtp.DEALER, HandshakeTimeout: dialTimeout})
	if err != nil {
		return false
	}
	defer conn.Close()
	return conn.Peer() == zmtp.ROUTER
}

func boundSeen(s kvevents.Status) string { return cmp.Or(s.LastError, "nothing has dialled it yet") }

func topic(t string) string {
	if t == "" {
		return ""
	}
	return ", topic " + t
}

// checkReplay looks at the result of the first replay.
func checkReplay(ctx context.Context, in scope) []Finding {
	return in.eachRank(func(r *replica.Replica, rank int, slot replica.Slot) []Finding {
		subject, at := rankName(r, rank), r.Events[rank]
		if at.Replay == "" && !strings.HasPrefix(at.Endpoint, "grpc") {
			return fault(Warn, subject, "a replay socket", "none is set", `add "replay_endpoint":"tcp://*:5657" to --kv-events-config and set events.replay to it: without it a router that starts, or loses a batch, does not learn what the cache holds`)
		}
		if address, tcp := strings.CutPrefix(at.Replay, "tcp://"); tcp {
			if err := reach(ctx, address); err != nil {
				list := unreachable(subject, address, fmt.Sprintf("the ZMQ replays of rank %d", rank), "events.replay", err)
				list[0].Change = `start vLLM with "replay_endpoint":"tcp://*:PORT" in --kv-events-config (rank n is at PORT + n; keep it at least --data-parallel-size above the events' port), and name it in events.replay`
				return list
			}
		}
		bounded, cancel := context.WithTimeout(ctx, replaying)
		defer cancel()
		var s kvevents.Status
		settled := wait(bounded, func() bool {
			s, _ = in.observer.Events.Status(slot)
			return !s.Recovering && (s.State == kvblock.FeedExact || s.State == kvblock.FeedDegraded && s.LastError != "" || s.State == kvblock.FeedDegraded && s.Known)
		})
		if list := (sockets{in}).foreign(ctx, r, rank, s); list != nil {
			return list
		}
		list := replayFound(subject, at, s, settled)
		if elsewhere := (sockets{in}).replaysElsewhere(ctx, r, rank); list[0].Status != Fail && elsewhere != nil {
			return elsewhere
		}
		return list
	})
}

func replayFound(subject string, at replica.Events, s kvevents.Status, settled bool) []Finding {
	seen := fmt.Sprintf("%s: %d batches replayed, %d gaps", s.State, s.Replayed, s.Gaps)
	if s.LastError != "" {
		seen += "; " + s.LastError
	}
	switch {
	case s.DecodeErrors+s.Malformed > 0:
		return fault(Fail, subject, "batches of KV events that kvpilot can read", fmt.Sprintf("%d batches and %d messages cannot be read; %s", s.DecodeErrors, s.Malformed, s.LastError),
			"does another program publish there? Else this vLLM has a newer format: update kvpilot")
	case s.State == kvblock.FeedExact:
		return []Finding{ok(subject, "%s", seen)}
	case !settled || strings.Contains(s.LastError, "replay ("):
		return fault(Fail, subject, "an answer from the replay socket "+at.Replay, seen, "set events.replay to the replay_endpoint of --kv-events-config: no ROUTER socket answers there")
	case strings.Contains(s.LastError, "are in no replay"):
		return fault(Warn, subject, "all batches since the engine's start", seen, `the engine lost batches: raise "buffer_steps" and "hwm" in --kv-events-config; what is missing is learned as caches turn over`)
	}
	return fault(Warn, subject, "all batches since the engine's start", seen, `raise "buffer_steps" in --kv-events-config, so that a router that starts later can read back to the beginning; what is missing is learned as caches turn over`)
}

// checkClocks compares the clocks of replicas with this machine's, by the header Date and by the time of event batches.
func checkClocks(ctx context.Context, in scope) []Finding {
	const change = "keep the clocks with NTP (chrony, systemd-timesyncd): logs and traces are out of order, and restarts are noticed late"
	return in.each(func(r *replica.Replica) []Finding {
		r = in.now(r)
		ahead, known := in.dateOf(ctx, r)
		if known && ahead.Abs() > skewAllowed {
			return fault(Warn, string(r.ID), "clocks that agree to a second", fmt.Sprintf("the replica's header Date is %s", aheadText(ahead)), change)
		}
		for rank, slot := range r.Slots {
			s, found := in.observer.Events.Status(slot)
			sent, live := in.sentAt(slot)
			if !found || !live || !s.LastApplied.After(sent) {
				continue
			}
			if ahead := eventsAhead(s); ahead.Abs() > skewAllowed {
				return fault(Warn, rankName(r, rank), "clocks that agree to a second", fmt.Sprintf("the time of its KV events is %s", aheadText(ahead)), change)
			}
		}
		if !known {
			return []Finding{skip(string(r.ID), "the replica does not say the time")}
		}
		return []Finding{ok(string(r.ID), "agrees to a second")}
	})
}

// eventsAhead is how far an engine's clock was ahead of this machine's at its last batch, which came as it was published.
func eventsAhead(s kvevents.Status) time.Duration { return s.LastEvent.Sub(s.LastApplied.Add(-s.Lag)) }

const (
	// skewAllowed is by how much clocks may differ.
	skewAllowed = time.Second
	// dateBehind is how old the time in a header Date may be: it has no fractions, and servers make it once a second.
	dateBehind = 2 * time.Second
)

func aheadText(d time.Duration) string {
	if d < 0 {
		return (-d).Round(100*time.Millisecond).String() + " behind this machine"
	}
	return d.Round(100*time.Millisecond).String() + " ahead of this machine"
}

// dateOf is how far a replica's clock is ahead of this machine's.
func (in scope) dateOf(ctx context.Context, r *replica.Replica) (time.Duration, bool) {
	began := time.Now()
	resp, err := in.get(ctx, r, r.URL+in.conf.Registry.Probe.Path)
	if err != nil {
		return 0, false
	}
	defer resp.Body.Close()
	date, err := time.Parse(time.RFC1123, resp.Header.Get("Date"))
	if err != nil {
		return 0, false
	}
	switch ended := time.Now(); { // the header was made between the two, or up to dateBehind before
	case date.After(ended):
		return date.Sub(ended), true
	case date.Add(dateBehind).Before(began):
		return date.Add(dateBehind).Sub(began), true
	}
	return 0, true
}
