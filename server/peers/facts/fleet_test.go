package facts

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/wire/pins"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// router is a router of a test's fleet: a Store before a registry, rates and pins that only remember.
type router struct {
	id    string
	store *Store
	fleet *fleet
	pins  *pins.Pins
	stop  func()

	mu      sync.Mutex
	drained map[replica.ID]*registry.Drain
	leases  map[replica.ID]time.Time
	specs   map[replica.ID]registry.Spec
	learned map[replica.Rank]speed.Model
	taken   map[replica.Rank]speed.Model
	// loads are the times of loads that it has seen, and others those that it has taken.
	loads, others map[replica.Rank]transfer.Times
	// present has its own lock, as the snapshot of a registry has: the Store asks while it holds its own.
	present sync.Map
}

// Present: replicas named "strange…" are known only where they are present.
func (r *router) Present(id replica.ID) bool {
	_, present := r.present.Load(id)
	return present || !strings.HasPrefix(string(id), "strange")
}

func (r *router) FactPeers() []Peer { return r.fleet.peers(r.id) }

// alone is the fleet of a router without peers.
type alone struct{}

func (alone) FactPeers() []Peer       { return nil }
func (alone) Decides(replica.ID) bool { return true }

func (r *router) ApplyDrain(_ context.Context, id replica.ID, drain func() *registry.Drain) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if delete(r.drained, id); drain() != nil {
		r.drained[id] = drain()
	}
	return nil
}

func (r *router) ApplyRegistration(_ context.Context, id replica.ID, registration func() registry.Registration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := registration()
	if delete(r.leases, id); now.Left > 0 {
		r.leases[id], r.specs[id] = time.Now().Add(now.Left), now.Spec
	}
	return nil
}

func (r *router) ExportModels() map[replica.Rank]speed.Model {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.learned)
}

func (r *router) ExportLoads() map[replica.Rank]transfer.Times {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.loads)
}

func (r *router) ImportLoads(loads map[replica.Rank]transfer.Times) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.others = loads
}

func (r *router) learn(models map[replica.Rank]speed.Model) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.learned = models
}

// Decides: the replica "others" is another router's.
func (r *router) Decides(id replica.ID) bool { return id != "others" }

func (r *router) ImportModels(m map[replica.Rank]speed.Model) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.Copy(r.taken, m)
}

// view returns copies of what is in force.
func (r *router) view() (v struct {
	drained map[replica.ID]*registry.Drain
	leases  map[replica.ID]time.Time
	specs   map[replica.ID]registry.Spec
	taken   map[replica.Rank]speed.Model
}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v.drained, v.leases, v.specs, v.taken = maps.Clone(r.drained), maps.Clone(r.leases), maps.Clone(r.specs), maps.Clone(r.taken)
	return v
}

// drained is the drain that the tests share.
func drained() *registry.Drain {
	return &registry.Drain{Since: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), By: "ops", Reason: "new driver", Move: true}
}

func (r *router) drain(id replica.ID, on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.drained, id)
	var d *registry.Drain
	if on {
		d = drained()
		r.drained[id] = d
	}
	r.store.Drained(id, d)
}

// fleet is routers that reach each other, unless the test cuts them off.
type fleet struct {
	t       *testing.T
	mu      sync.Mutex
	routers map[string]*router
	cut     func(from, to string) bool
	hang    func(to string) bool
	calls   int
}

func newFleet(t *testing.T) *fleet { return &fleet{t: t, routers: map[string]*router{}} }

// start starts a router, in place of one of the same id.
func (f *fleet) start(id string) *router {
	r := &router{
		id: id, fleet: f, pins: pins.New(pins.DefaultConfig()), drained: map[replica.ID]*registry.Drain{}, leases: map[replica.ID]time.Time{},
		specs: map[replica.ID]registry.Spec{}, learned: map[replica.Rank]speed.Model{}, taken: map[replica.Rank]speed.Model{},
	}
	r.store = New(Params{Self: id, Fleet: r, Registry: r, Rates: r, Pins: r.pins})
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.store.Run(ctx); err != nil {
			f.t.Error(err)
		}
	}()
	r.stop = func() {
		f.mu.Lock()
		if f.routers[id] == r {
			delete(f.routers, id)
		}
		f.mu.Unlock()
		cancel()
		<-done
	}
	f.mu.Lock()
	f.routers[id] = r
	f.mu.Unlock()
	return r
}

func (f *fleet) stopAll() {
	for _, r := range maps.Clone(f.routers) {
		r.stop()
	}
}

func (f *fleet) peers(of string) (list []Peer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, r := range f.routers {
		if id != of && (f.cut == nil || !f.cut(of, id)) {
			list = append(list, Peer{id, wire{f, of, r}})
		}
	}
	return list
}

// wire is a connection from one router to another.
type wire struct {
	f    *fleet
	from string
	to   *router
}

func (w wire) Invoke(ctx context.Context, _ string, args, reply any, _ ...grpc.CallOption) error {
	w.f.mu.Lock()
	w.f.calls++
	broken := w.f.cut != nil && w.f.cut(w.from, w.to.id)
	hang := w.f.hang != nil && w.f.hang(w.to.id)
	w.f.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	if broken {
		return errors.New("cut off")
	}
	in := &peerv1.ShareFactsRequest{}
	proto.Merge(in, args.(proto.Message))
	out, err := w.to.store.ShareFacts(ctx, in)
	if err == nil {
		proto.Merge(reply.(proto.Message), out)
	}
	return err
}

func (wire) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams")
}

// pass lets time pass and everything that is due happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func spec(id replica.ID) registry.Spec {
	return registry.Spec{ID: id, URL: "http://10.0.0.1:8000", Ranks: 2, Labels: map[string]string{"zone": "a"}, Events: registry.EventsSpec{Endpoint: "tcp://*:5557", Replay: "none"}}
}
