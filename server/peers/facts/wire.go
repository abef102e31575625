package facts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

const (
	maxRequest = 64 << 10
	maxName    = 256
	maxText    = 1024 // bytes: 256 characters
	maxLease   = 24 * time.Hour
	maxRank    = 4096
	// messageBytes bounds the facts of one message.
	messageBytes = 512 << 10
)

// errStrangers: too many drains are of replicas that are not known here.
var errStrangers = fmt.Errorf("more than %d drains of unknown replicas", maxStrange)

// merge enters facts of a peer and returns how many of them were news.
func (s *Store) merge(in *peerv1.Facts) (news int) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	took := func(k kind, key string, put bool) {
		if put {
			news++
			s.metrics.Taken.Add(k)
			s.dueLocked(ref{k, key})
		}
	}
	for _, f := range in.GetDrains() {
		drain, bad := drainOf(f)
		if bad == nil && s.drains.isFull(f.GetReplicaId()) {
			bad = errStrangers
		}
		v, err := s.checked(f.GetReplicaId(), f.GetVersion(), now, bad)
		if err == nil {
			took(kindDrain, f.GetReplicaId(), s.drains.put(f.GetReplicaId(), entry[registry.Drain]{version: v, gone: !f.GetDrained(), value: drain}, now))
		}
	}
	for _, f := range in.GetRegistrations() {
		in, left := f.GetRegistration(), min(f.GetLease().AsDuration(), maxLease)
		size := proto.Size(in)
		v, err := s.checked(f.GetReplicaId(), f.GetVersion(), now, tooLarge(size))
		if err != nil {
			continue
		}
		e := entry[registration]{version: v, gone: true}
		if in != nil && left > 0 {
			e.value, e.gone, e.size = registration{in, now.Add(left)}, false, size
		}
		took(kindRegistration, f.GetReplicaId(), s.regs.put(f.GetReplicaId(), e, now))
	}
	for _, f := range in.GetRates() {
		rank := replica.Rank{Replica: replica.ID(f.GetReplicaId()), Index: int(f.GetRank())}
		model, bad := modelOf(f)
		loads, unfit := loadsOf(f)
		if bad == nil {
			bad = unfit
		}
		v, err := s.checked(f.GetReplicaId(), f.GetVersion(), now, bad)
		if err == nil {
			took(kindRate, rateKey(rank), s.rates.put(rateKey(rank), entry[rate]{version: v, value: rate{rank, model, loads}}, now))
		}
	}
	return news
}

// checked returns a fact's version, unless the fact is unfit. The clock follows every version that is taken.
func (s *Store) checked(id string, in *peerv1.FactVersion, now time.Time, bad error) (version, error) {
	v := versionOf(in)
	switch {
	case bad != nil:
	case !in.GetTime().IsValid() || in.GetTime().GetSeconds() < 0:
		bad = errors.New("it has no time that can be")
	case id == "" || len(id) > maxName:
		bad = fmt.Errorf("a replica id of %d bytes", len(id))
	case v.router == "" || len(v.router) > maxName:
		bad = errors.New("no router made it")
	case v.ms > uint64(now.Add(maxAhead).UnixMilli()):
		bad = fmt.Errorf("its time is %d ms, which is more than %v ahead of this router's clock", v.ms, maxAhead)
	}
	if bad != nil {
		s.metrics.rejected()
		level := slog.LevelWarn
		if errors.Is(bad, errStrangers) { // one line for each would be as many as there are
			level = slog.LevelDebug
		}
		s.log.Log(context.Background(), level, "a fact of a peer is rejected", "replica", id, "made_by", v.router, "error", bad)
		return v, bad
	}
	s.clock.see(v)
	return v, nil
}

func tooLarge(n int) error {
	if n > maxRequest {
		return fmt.Errorf("a registration of %d bytes", n)
	}
	return nil
}

// messages gives facts for peers, in messages of bounded size, in the order of refs.
func (s *known) messages(refs []ref) []*peerv1.Facts {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*peerv1.Facts
	bytes := messageBytes
	for _, r := range refs {
		one := s.factLocked(r)
		if one == nil {
			continue
		}
		n := proto.Size(one)
		if bytes+n > messageBytes {
			list, bytes = append(list, &peerv1.Facts{}), 0
		}
		bytes += n
		last := list[len(list)-1]
		last.Drains = append(last.Drains, one.Drains...)
		last.Registrations = append(last.Registrations, one.Registrations...)
		last.Rates = append(last.Rates, one.Rates...)
	}
	return list
}

// factLocked gives the present version of one fact; nil when it is not known any more.
func (s *known) factLocked(r ref) *peerv1.Facts {
	out := &peerv1.Facts{}
	switch r.kind {
	case kindDrain:
		if e, known := s.drains.facts[r.key]; known {
			f := &peerv1.DrainFact{ReplicaId: r.key, Drained: !e.gone, Version: e.version.proto(), By: e.value.By, Reason: e.value.Reason, Move: e.value.Move, Ranks: ranksProto(e.value.Ranks)}
			if !e.gone {
				f.Since = timestamppb.New(e.value.Since)
			}
			out.Drains = append(out.Drains, f)
			return out
		}
	case kindRegistration:
		if e, known := s.regs.facts[r.key]; known {
			f := &peerv1.RegistrationFact{ReplicaId: r.key, Version: e.version.proto()}
			if left := time.Until(e.value.until); !e.gone && left > 0 {
				f.Registration, f.Lease = e.value.spec, durationpb.New(left)
			}
			out.Registrations = append(out.Registrations, f)
			return out
		}
	case kindRate:
		if e, known := s.rates.facts[r.key]; known {
			m := &e.value.model
			out.Rates = append(out.Rates, &peerv1.RateFact{
				ReplicaId: string(e.value.rank.Replica), Rank: uint32(e.value.rank.Index), Version: e.version.proto(),
				TokenS: m.Token, BendTokens: m.Bend, OverheadS: m.Overhead, StepS: m.Base, Load: m.Load,
				Samples: uint32(m.Samples), Steps: uint32(m.Steps), Spread: m.Spread,
				Host: loadProto(e.value.loads.Host), Store: loadProto(e.value.loads.Store),
			})
			return out
		}
	case kinds:
	}
	return nil
}

// all names every fact, the latest first.
func (s *known) all() []ref {
	type dated struct {
		ref
		version
	}
	s.mu.Lock()
	list := make([]dated, 0, len(s.drains.facts)+len(s.regs.facts)+len(s.rates.facts))
	for key, e := range s.drains.facts {
		list = append(list, dated{ref{kindDrain, key}, e.version})
	}
	for key, e := range s.regs.facts {
		list = append(list, dated{ref{kindRegistration, key}, e.version})
	}
	for key, e := range s.rates.facts {
		list = append(list, dated{ref{kindRate, key}, e.version})
	}
	s.mu.Unlock()
	slices.SortFunc(list, func(a, b dated) int {
		switch {
		case a.after(b.version):
			return -1
		case b.after(a.version):
			return 1
		}
		return 0
	})
	refs := make([]ref, len(list))
	for i := range list {
		refs[i] = list[i].ref
	}
	return refs
}

// drainOf reads a drain. The time of its version stands for a begin that is missing.
func drainOf(f *peerv1.DrainFact) (registry.Drain, error) {
	d := registry.Drain{Since: f.GetVersion().GetTime().AsTime(), By: f.GetBy(), Reason: f.GetReason(), Move: f.GetMove()}
	if f.GetSince() != nil {
		d.Since = f.GetSince().AsTime()
	}
	if n := max(len(d.By), len(d.Reason)); n > maxText {
		return d, fmt.Errorf("a drain's text of %d bytes", n)
	}
	if len(f.GetRanks()) > maxDrainedRanks {
		return d, fmt.Errorf("a drain of %d ranks", len(f.GetRanks()))
	}
	for _, rank := range f.GetRanks() {
		if rank >= maxDrainedRanks || len(d.Ranks) > 0 && int(rank) <= d.Ranks[len(d.Ranks)-1] {
			return d, errors.New("a drain's ranks are not in order")
		}
		d.Ranks = append(d.Ranks, int(rank))
	}
	return d, nil
}

// maxDrainedRanks bounds the ranks of a drain: no replica has more.
const maxDrainedRanks = 1024

// ranksProto is the ranks of a drain on the wire.
func ranksProto(ranks []int) []uint32 {
	var list []uint32
	for _, rank := range ranks {
		list = append(list, uint32(rank))
	}
	return list
}

// modelOf reads a rank's speed.
func modelOf(f *peerv1.RateFact) (speed.Model, error) {
	m := speed.Model{
		Token: f.GetTokenS(), Bend: f.GetBendTokens(), Overhead: f.GetOverheadS(), Base: f.GetStepS(), Load: f.GetLoad(),
		Samples: int(f.GetSamples()), Steps: int(f.GetSteps()), Spread: f.GetSpread(), Source: decision.SpeedLearned,
	}
	for _, v := range []float64{m.Token, m.Bend, m.Base} {
		if !(v > 0) || math.IsInf(v, 0) {
			return m, errors.New("a rate is not a positive number")
		}
	}
	for _, v := range []float64{m.Overhead, m.Load, m.Spread} {
		if !(v >= 0) || math.IsInf(v, 0) {
			return m, errors.New("a rate is below zero or not a number")
		}
	}
	if f.GetRank() >= maxRank {
		return m, fmt.Errorf("rank %d", f.GetRank())
	}
	return m, nil
}

// loadProto is the time of loads from a tier on the wire; nil where none was seen.
func loadProto(m transfer.Model) *peerv1.LoadTimes {
	if m.Samples == 0 {
		return nil
	}
	return &peerv1.LoadTimes{StartS: m.Start, TokenS: m.PerToken, Samples: uint32(m.Samples)}
}

// loadsOf reads the times of a rank's loads.
func loadsOf(f *peerv1.RateFact) (times transfer.Times, err error) {
	for in, to := range map[*peerv1.LoadTimes]*transfer.Model{f.GetHost(): &times.Host, f.GetStore(): &times.Store} {
		if in == nil {
			continue
		}
		*to = transfer.Model{Start: in.GetStartS(), PerToken: in.GetTokenS(), Samples: int(in.GetSamples())}
		if !(to.Start >= 0) || !(to.PerToken >= 0) || !(to.Start+to.PerToken > 0) || math.IsInf(to.Start+to.PerToken, 0) {
			return times, errors.New("the time of a load is not a positive number")
		}
	}
	return times, nil
}

// specProto and specOf are the wire form of a registration. A spec that a caller of Register has sent comes back as it was.

func specProto(s registry.Spec) *peerv1.Registration {
	out := &peerv1.Registration{Url: s.URL, Ranks: uint32(s.Ranks), Labels: maps.Clone(s.Labels), ApiKey: s.APIKey.Reveal()}
	if s.Events.Endpoint != noEvents {
		out.Events = &peerv1.EventsAddress{Endpoint: s.Events.Endpoint, ReplayEndpoint: s.Events.Replay, Topic: s.Events.Topic}
	}
	return out
}

func specOf(id replica.ID, in *peerv1.Registration) registry.Spec {
	s := registry.Spec{
		ID: id, URL: in.GetUrl(), Ranks: int(in.GetRanks()), Labels: maps.Clone(in.GetLabels()), APIKey: secret.New(in.GetApiKey()),
		Events: registry.EventsSpec{Endpoint: noEvents, Replay: noEvents},
	}
	if e := in.GetEvents(); e != nil {
		s.Events = registry.EventsSpec{Endpoint: e.GetEndpoint(), Replay: e.GetReplayEndpoint(), Topic: e.GetTopic()}
	}
	return s
}

// noEvents is the address of a replica that publishes none.
const noEvents = "none"
