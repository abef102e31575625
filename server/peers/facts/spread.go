package facts

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
)

// Peer is another router that there is a connection to. A new connection is a new peer.
type Peer struct {
	ID   string
	Conn grpc.ClientConnInterface
}

const (
	// compareEvery is the time between comparisons with a peer at random, rateEvery the time between looks at learned speeds.
	compareEvery = 5 * time.Second
	rateEvery    = 3 * time.Second
	lookEvery    = time.Second
	// shareTimeout bounds one call to a peer.
	shareTimeout = 2 * time.Second
	// pauseMin and pauseMax bound the time between attempts after a failed call.
	pauseMin, pauseMax = 500 * time.Millisecond, 5 * time.Second
	// maxPending bounds the facts that wait for one peer; beyond it, all facts are compared instead.
	maxPending = 4096
)

// sender reports changes to one peer. Only its own goroutine makes calls.
type sender struct {
	store  *Store
	peer   Peer
	client peerv1.FactsServiceClient
	stop   context.CancelFunc
	wake   chan struct{}

	mu      sync.Mutex
	pending map[ref]struct{}  // guarded by mu
	pins    []*peerv1.PinFact // guarded by mu
	compare bool              // a comparison is due; guarded by mu
}

// PeersChanged has the list of peers read again at once. It does not block.
func (s *Store) PeersChanged() { signal(s.peers) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // one waits already
	}
}

// Run shares facts and applies the facts of peers until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	running.Go(func() { s.applyAll(ctx) })
	look, rates, compare := time.NewTicker(lookEvery), time.NewTicker(rateEvery), time.NewTicker(compareEvery)
	defer look.Stop()
	defer rates.Stop()
	defer compare.Stop()
	s.followPeers(ctx, &running)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.peers:
			s.followPeers(ctx, &running)
		case <-look.C:
			s.followPeers(ctx, &running)
			s.expire()
		case <-rates.C:
			s.publishRates()
			s.importRates()
		case <-compare.C:
			s.compareWithOne()
		}
	}
}

// followPeers brings the senders in line with the peers. A new one begins with a comparison.
func (s *Store) followPeers(ctx context.Context, running *sync.WaitGroup) {
	now := s.params.Fleet.FactPeers()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, old := range s.senders {
		if !slices.Contains(now, old.peer) {
			old.stop()
			delete(s.senders, id)
		}
	}
	for _, p := range now {
		if _, known := s.senders[p.ID]; known || p.ID == s.params.Self {
			continue
		}
		ctx, stop := context.WithCancel(ctx)
		n := &sender{store: s, peer: p, client: peerv1.NewFactsServiceClient(p.Conn), stop: stop, wake: make(chan struct{}, 1), pending: map[ref]struct{}{}, compare: true}
		s.senders[p.ID] = n
		signal(n.wake)
		running.Go(func() { n.run(ctx) })
	}
}

// spreadLocked has a fact of this router sent to all peers.
func (s *Store) spreadLocked(r ref) {
	for _, n := range s.senders {
		n.add(r)
	}
}

// compareWithOne compares facts with one peer.
func (s *Store) compareWithOne() {
	s.mu.Lock()
	defer s.mu.Unlock()
	skip := 0
	if len(s.senders) > 0 {
		skip = rand.IntN(len(s.senders))
	}
	for _, n := range s.senders {
		if skip--; skip < 0 {
			n.compareSoon()
			return
		}
	}
}

func (n *sender) add(r ref) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.pending) >= maxPending {
		n.compare = true
		clear(n.pending)
	}
	n.pending[r] = struct{}{}
	signal(n.wake)
}

func (n *sender) addPin(p *peerv1.PinFact) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.pins) >= maxPending {
		n.store.metrics.lostPin()
		return
	}
	n.pins = append(n.pins, p)
	signal(n.wake)
}

func (n *sender) compareSoon() {
	n.mu.Lock()
	n.compare = true
	n.mu.Unlock()
	signal(n.wake)
}

// take takes out all that waits.
func (n *sender) take() (refs []ref, pins []*peerv1.PinFact, compare bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for r := range n.pending {
		refs = append(refs, r)
	}
	pins, compare = n.pins, n.compare
	n.pins, n.compare = nil, false
	clear(n.pending)
	return refs, pins, compare
}

// run makes the calls. After a failed one the peer may know less than was meant: it is asked to compare.
func (n *sender) run(ctx context.Context) {
	pause := pauseMin
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
		}
		refs, pins, compare := n.take()
		err := n.push(ctx, refs, pins)
		if err == nil && compare {
			err = n.exchange(ctx)
		}
		if err == nil {
			pause = pauseMin
			continue
		}
		if ctx.Err() != nil {
			return
		}
		n.store.log.Debug("a peer did not take facts", "peer", n.peer.ID, "error", err)
		n.compareSoon()
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, pauseMax)
	}
}

// push sends facts and pins.
func (n *sender) push(ctx context.Context, refs []ref, pins []*peerv1.PinFact) error {
	list := n.store.messages(refs)
	if len(pins) > 0 {
		list = append(list, &peerv1.Facts{Pins: pins})
	}
	for _, facts := range list {
		if _, err := n.call(ctx, &peerv1.ShareFactsRequest{Facts: facts, Digest: n.store.digest()}); err != nil {
			return err
		}
	}
	return nil
}

// exchange takes the peer's facts and, where these are not all that this router knows, sends the peer everything.
func (n *sender) exchange(ctx context.Context) error {
	resp, err := n.call(ctx, &peerv1.ShareFactsRequest{All: true, Digest: n.store.digest()})
	if err != nil {
		return err
	}
	n.store.merge(resp.GetFacts())
	if resp.GetDigest() == n.store.digest() {
		return nil
	}
	return n.push(ctx, n.store.all(), nil)
}

func (n *sender) call(ctx context.Context, in *peerv1.ShareFactsRequest) (*peerv1.ShareFactsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, shareTimeout)
	defer cancel()
	out, err := n.client.ShareFacts(ctx, in)
	n.store.metrics.shared(err)
	return out, err
}

// ShareFacts is the RPC of peers: it takes their facts and returns this router's as they are wanted.
func (s *Store) ShareFacts(_ context.Context, in *peerv1.ShareFactsRequest) (*peerv1.ShareFactsResponse, error) {
	s.merge(in.GetFacts())
	s.keepPins(in.GetFacts().GetPins())
	out := &peerv1.ShareFactsResponse{Digest: s.digest(), Facts: &peerv1.Facts{}}
	if in.GetAll() && in.GetDigest() != out.Digest {
		if list := s.messages(s.all()); len(list) > 0 {
			out.Facts = list[0]
		}
	}
	out.Facts.Pins = s.findPins(in.GetWantedResponses())
	return out, nil
}
