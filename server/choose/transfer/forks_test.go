package transfer_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

const forkBlock = 128

// calling plays calls before Forks. Its calls have prompts of blocks with names of their own.
type calling struct {
	transfer.Forks
	now  time.Duration
	next blockhash.Hash
}

// prompt is the prompt before, continued by n blocks.
func (p *calling) prompt(before []blockhash.Hash, n int) []blockhash.Hash {
	keys := append([]blockhash.Hash(nil), before...)
	for range n {
		p.next++
		keys = append(keys, p.next)
	}
	return keys
}

func (p *calling) arrive(tenant string, keys []blockhash.Hash) *transfer.Call {
	now := int64(p.now)
	return p.Follow(&transfer.Arrival{Tenant: tenant, Keys: keys, BlockSize: forkBlock, At: now}, now)
}

// call plays a whole call of five seconds.
func (p *calling) call(tenant string, keys []blockhash.Hash) *transfer.Call {
	c := p.arrive(tenant, keys)
	p.now += time.Second
	c.Begun(int64(p.now))
	p.now += 4 * time.Second
	c.Ended(int64(p.now))
	return c
}

// fork plays a call and n others that begin with its prompt, each so long after the one before.
func (p *calling) fork(tenant string, keys []blockhash.Hash, n int, each time.Duration) *transfer.Call {
	c := p.call(tenant, keys)
	var all []*transfer.Call
	for range n {
		p.now += each
		all = append(all, p.arrive(tenant, p.prompt(keys, 10)))
	}
	for _, one := range all {
		one.Begun(int64(p.now))
		one.Ended(int64(p.now))
	}
	p.now += time.Minute
	return c
}

func TestForkIsExpectedOfTheCallsThatWereForked(t *testing.T) {
	for _, tt := range []struct {
		name     string
		n        int
		each     time.Duration
		expected bool
	}{
		{"forks", 43, 5 * time.Millisecond, true},
		{"forks of four", 4, 100 * time.Millisecond, true},
		{"three subagents", 3, 5 * time.Millisecond, false},
		{"turns, one by one", 10, 700 * time.Millisecond, false},
		{"the next turn", 1, time.Second, false},
		{"nothing", 0, 0, false},
		{"too late", 43, 3 * time.Second, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p calling
			for range 6 {
				p.fork("", p.prompt(nil, 20), tt.n, tt.each)
			}
			got := p.arrive("", p.prompt(nil, 20)).Expected
			if got.Likely() != tt.expected {
				t.Fatalf("expected %+v", got)
			}
			if tt.expected && (got.Share < 0.6 || got.Share > 1 || got.Children < float64(tt.n)-0.5 || got.Children > float64(tt.n)+0.5) {
				t.Errorf("expected %+v of calls that all are forked %d times", got, tt.n)
			}
			if other := p.arrive("another", p.prompt(nil, 20)).Expected; other != (transfer.Expected{}) {
				t.Errorf("of another tenant %+v is expected", other)
			}
		})
	}
}

// The branches of a fork are no agents that fork themselves.
func TestNoForkIsExpectedOfABranch(t *testing.T) {
	var p calling
	for range 6 {
		p.fork("", p.prompt(nil, 20), 12, 5*time.Millisecond)
	}
	root := p.prompt(nil, 20)
	p.call("", root)
	for i := range 12 {
		if got := p.arrive("", p.prompt(root, 10)).Expected; got.Likely() {
			t.Errorf("branch %d: %+v", i, got)
		}
	}
}

// An application is known by the beginning of its prompts: agents that fork among chats of the same tenant.
func TestForksAreLearnedByApplication(t *testing.T) {
	var p calling
	agent, chat := p.prompt(nil, 4), p.prompt(nil, 4)
	for range 8 {
		p.fork("", p.prompt(agent, 20), 20, 5*time.Millisecond)
		for range 10 {
			p.call("", p.prompt(chat, 20))
		}
		p.now += time.Minute
	}
	if got := p.arrive("", p.prompt(agent, 20)).Expected; got.Share < 0.7 || got.Children < 19 {
		t.Errorf("of an agent %+v is expected", got)
	}
	if got := p.arrive("", p.prompt(chat, 20)).Expected; got.Likely() {
		t.Errorf("of a chat %+v is expected", got)
	}
	for range 40 { // the agents stop forking
		p.call("", p.prompt(agent, 20))
		p.now += 20 * time.Second
	}
	if got := p.arrive("", p.prompt(agent, 20)).Expected; got.Share > 0.3 {
		t.Errorf("long after the last fork %+v is expected", got)
	}
}

func TestSomeCallsAreNotFollowed(t *testing.T) {
	var p calling
	if p.arrive("", p.prompt(nil, 7)) != nil || p.Follow(&transfer.Arrival{}, 0) != nil {
		t.Error("a short prompt is followed")
	}
	n := 0
	for range 2000 {
		if p.arrive("", p.prompt(nil, 10)) != nil {
			n++
		}
	}
	if n != 512 {
		t.Errorf("%d calls are followed", n)
	}
	var q calling
	for i := range 2000 { // of as many tenants; calls that fail are not remembered
		q.arrive(fmt.Sprint(i), q.prompt(nil, 10)).Ended(0)
		q.call(fmt.Sprint(i), q.prompt(nil, 10))
		q.now += 20 * time.Second
	}
	if q.arrive("1", q.prompt(nil, 10)) == nil {
		t.Error("calls that have ended are followed for good")
	}
}

// BenchmarkFollow is a call among as many others as are followed.
func BenchmarkFollow(b *testing.B) {
	var p calling
	for range 511 {
		p.arrive("", p.prompt(nil, 800))
	}
	keys := p.prompt(nil, 800)
	b.ReportAllocs()
	for b.Loop() {
		p.arrive("", keys).Ended(0)
	}
}
