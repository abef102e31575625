package grants

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	pb "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
)

// maxUrgent bounds the tenants whose reports hurry; beyond it, all reports are sent.
const maxUrgent = 256

// sender reports to one peer.
type sender struct {
	grants *Grants
	peer   Peer
	client pb.LimitsServiceClient
	stop   context.CancelFunc
	wake   chan struct{}

	mu     sync.Mutex
	urgent map[string]struct{} // tenants whose reports hurry; the empty name is all; guarded by mu
	copies map[string]Account  // accounts that the peer has not received; guarded by mu
	silent time.Time           // since when it does not answer; zero: it does; guarded by mu
	called time.Time           // when it last called this router, or the sender was made; guarded by mu
}

// hurry has the report about a tenant sent at once; all of them for the empty name.
func (s *sender) hurry(tenant string) {
	s.mu.Lock()
	if len(s.urgent) >= maxUrgent {
		tenant = ""
	}
	s.urgent[tenant] = struct{}{}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// copy adds accounts to the peer's.
func (s *sender) copy(list []Account) {
	if len(list) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.copies == nil {
		s.copies = make(map[string]Account, len(list))
	}
	for _, a := range list {
		s.copies[a.Tenant] = a
	}
}

// reached reports whether the peer answers and calls.
func (s *sender) reached(now time.Time) bool {
	active := s.grants.params.Accounts.Active()
	s.mu.Lock()
	defer s.mu.Unlock()
	return !active || (s.silent.IsZero() || now.Sub(s.silent) < silence) && now.Sub(s.called) < silence+reportEvery
}

// arrived notes a call of the peer.
func (s *sender) arrived(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.called = now
}

// wanted reports whether the peer expects calls: it limits tenants, or this router does.
func (s *sender) wanted() bool {
	if s.grants.params.Accounts.Active() {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.called) < silence
}

// heard notes whether the peer has answered a call that began at a time.
func (s *sender) heard(began time.Time, err error) {
	s.mu.Lock()
	changed := false
	switch {
	case err == nil:
		changed = !s.silent.IsZero() && time.Since(s.silent) >= silence
		s.silent = time.Time{}
	case s.silent.IsZero():
		s.silent = began
	}
	s.mu.Unlock()
	if changed {
		s.grants.PeersChanged()
	}
}

func (s *sender) run(ctx context.Context) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		var tenants []string
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.wake:
			tenants = s.takeUrgent()
		}
		if !s.wanted() {
			continue
		}
		s.exchange(ctx, tenants)
		if len(tenants) == 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(hurryPause):
		}
	}
}

// takeUrgent empties the list of tenants whose reports hurry. It returns none when all do.
func (s *sender) takeUrgent() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, all := s.urgent[""]
	list := slices.Collect(maps.Keys(s.urgent))
	clear(s.urgent)
	if all {
		return nil
	}
	return list
}

// takeCopies takes some of the accounts that the peer gets.
func (s *sender) takeCopies() []Account {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Account
	for name, a := range s.copies {
		if len(list) == maxEntries {
			break
		}
		list = append(list, a)
		delete(s.copies, name)
	}
	return list
}

// exchange sends the reports that are due and the accounts that have changed. Without either it asks whether the peer answers.
func (s *sender) exchange(ctx context.Context, tenants []string) {
	accounts := s.grants.params.Accounts
	reports := accounts.Reports(s.peer.ID, tenants)
	for first := true; ; first = false {
		some := reports[:min(maxEntries, len(reports))]
		reports = reports[len(some):]
		copies := s.takeCopies()
		if !first && len(some) == 0 && len(copies) == 0 {
			return
		}
		within, cancel := context.WithTimeout(ctx, callTimeout)
		list, err := s.call(within, some, copies)
		cancel()
		for i, r := range some {
			if err != nil {
				accounts.Failed(s.peer.ID, r.Tenant)
				continue
			}
			accounts.Granted(s.peer.ID, r.Tenant, list[i])
		}
		if err != nil {
			s.keep(copies)
			for _, r := range reports {
				accounts.Failed(s.peer.ID, r.Tenant)
			}
			return
		}
	}
}

// keep returns accounts that were not received, unless there are newer ones.
func (s *sender) keep(list []Account) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range list {
		if _, newer := s.copies[a.Tenant]; !newer {
			if s.copies == nil {
				s.copies = map[string]Account{}
			}
			s.copies[a.Tenant] = a
		}
	}
}

var errShort = errors.New("it does not answer each report")

// call makes one call. It returns an answer for each report, or an error.
func (s *sender) call(ctx context.Context, reports []Report, copies []Account) ([]Grant, error) {
	in := &pb.ShareLimitsRequest{}
	for _, r := range reports {
		in.Reports = append(in.Reports, report(r))
	}
	for i := range copies {
		in.Accounts = append(in.Accounts, account(&copies[i]))
	}
	began := time.Now()
	out, err := s.client.ShareLimits(ctx, in)
	if err == nil && len(out.GetGrants()) != len(reports) {
		err = errShort
	}
	if ctx.Err() == nil || !errors.Is(ctx.Err(), context.Canceled) {
		s.heard(began, err)
	}
	m := s.grants.metrics
	if err != nil {
		for range reports {
			m.Reports.Add(outcomeFailed)
		}
		return nil, err
	}
	list := make([]Grant, len(reports))
	for i, g := range out.GetGrants() {
		list[i] = fromGrant(g)
		switch list[i].Refusal {
		case Answered:
			m.Reports.Add(outcomeAnswered)
		case NotOwner:
			m.Reports.Add(outcomeNotOwner)
		case UnknownEpoch:
			m.Reports.Add(outcomeEpoch)
		}
	}
	return list, nil
}
