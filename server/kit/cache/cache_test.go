package cache_test

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/kvpilot/kvpilot/server/kit/cache"
)

func key(i int) cache.Key {
	h := uint64(i+1) * 0x9e3779b97f4a7c15
	return cache.Key{Hi: h ^ h>>29, Lo: h}
}

func TestTheBoundHolds(t *testing.T) {
	const limit = 1 << 20
	c := cache.New[int](limit)
	dice := rand.New(rand.NewPCG(1, 1))
	for i := range 50_000 {
		c.Put(key(i), &i, dice.IntN(2000))
		if i%7 == 0 {
			c.Delete(key(dice.IntN(i + 1)))
		}
		if i%3 == 0 {
			c.Get(key(dice.IntN(i + 1)))
		}
		if i%1000 == 0 {
			if s := c.Stats(); s.Bytes > limit || s.Bytes < int64(s.Items)*cache.NodeBytes {
				t.Fatalf("after %d: %+v, the limit is %d", i, s, limit)
			}
		}
	}
	if s := c.Stats(); s.Evictions == 0 || s.Items == 0 {
		t.Errorf("at the end: %+v", s)
	}
}

// Against a map: what is found is what was put last.
func TestGetGivesWhatWasPut(t *testing.T) {
	c := cache.New[int](1 << 16)
	last := map[int]int{}
	dice := rand.New(rand.NewPCG(2, 2))
	found := 0
	for i := range 20_000 {
		k := dice.IntN(300)
		switch dice.IntN(4) {
		case 0:
			v := i
			if c.Put(key(k), &v, dice.IntN(400)) {
				last[k] = v
			}
		case 1:
			c.Delete(key(k))
			delete(last, k)
		default:
			got := c.Get(key(k))
			want, known := last[k]
			if got != nil && (!known || *got != want) {
				t.Fatalf("step %d: %d, want %d (%v)", i, *got, want, known)
			}
			if got != nil {
				found++
			}
		}
	}
	if found < 1000 {
		t.Errorf("only %d hits", found)
	}
}

// What is asked for stays while what is seen once passes by.
func TestWhatIsUsedStays(t *testing.T) {
	c := cache.New[int](1 << 18)
	for i := range 100 {
		c.Put(key(i), &i, 100)
	}
	for i := range 20_000 {
		c.Put(key(1000+i), &i, 100)
		if i%50 == 0 {
			for hot := range 100 {
				c.Get(key(hot))
			}
		}
	}
	kept := 0
	for hot := range 100 {
		if c.Get(key(hot)) != nil {
			kept++
		}
	}
	if kept < 90 {
		t.Errorf("%d of 100 values in use were kept", kept)
	}
}

func TestTooLargeIsRefusedAndZeroHoldsNothing(t *testing.T) {
	c := cache.New[int](1 << 16)
	if v := 1; c.Put(key(1), &v, 1<<20) || c.Get(key(1)) != nil || c.Stats().Refused != 1 {
		t.Error("a value larger than a shard was kept")
	}
	none := cache.New[int](0)
	if v := 1; none.Put(key(1), &v, 0) || none.Get(key(1)) != nil {
		t.Error("a cache of no bytes keeps something")
	}
}

func TestConcurrentUse(t *testing.T) {
	c := cache.New[int](1 << 16)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 5000 {
				c.Put(key(i%200), &w, i%300)
				c.Get(key(i % 150))
				if i%10 == 0 {
					c.Delete(key(i % 99))
				}
			}
		})
	}
	wg.Wait()
	if s := c.Stats(); s.Bytes > 1<<16 || s.Bytes < 0 {
		t.Errorf("%+v", s)
	}
}
