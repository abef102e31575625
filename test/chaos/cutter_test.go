//go:build unix

package chaos

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// cutter is the way to a router: it forwards TCP and UDP from an address of its own, until it is cut. What is sent over a way that is
// cut is lost or waits, and nobody is informed, as in a network that is partitioned.
type cutter struct {
	mu    sync.Mutex
	open  *sync.Cond
	isCut bool // guarded by mu
	done  bool // guarded by mu

	closing sync.WaitGroup
	ends    []io.Closer // guarded by mu
}

func newCutter(t *testing.T) *cutter {
	c := &cutter{}
	c.open = sync.NewCond(&c.mu)
	t.Cleanup(func() {
		c.mu.Lock()
		c.done = true
		ends := c.ends
		c.mu.Unlock()
		c.open.Broadcast()
		for _, end := range ends {
			_ = end.Close()
		}
		c.closing.Wait()
	})
	return c
}

func (c *cutter) set(cut bool) {
	c.mu.Lock()
	c.isCut = cut
	c.mu.Unlock()
	c.open.Broadcast()
}

// pass waits until the way is open; false: the test is over.
func (c *cutter) pass() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.isCut && !c.done {
		c.open.Wait()
	}
	return !c.done
}

func (c *cutter) isOpen() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.isCut
}

// keep closes end when the test is over; false: it is over.
func (c *cutter) keep(end io.Closer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		_ = end.Close()
		return false
	}
	c.ends = append(c.ends, end)
	return true
}

// tcp forwards connections from one address to another.
func (c *cutter) tcp(t *testing.T, from, to string) {
	t.Helper()
	l, err := net.Listen("tcp", from)
	if err != nil {
		t.Fatal(err)
	}
	c.keep(l)
	c.closing.Go(func() {
		for {
			here, err := l.Accept()
			if err != nil {
				return
			}
			c.closing.Go(func() {
				if !c.keep(here) || !c.pass() {
					return
				}
				there, err := net.DialTimeout("tcp", to, time.Second)
				if err != nil {
					_ = here.Close()
					return
				}
				if !c.keep(there) {
					return
				}
				c.closing.Go(func() { c.copy(here, there) })
				c.copy(there, here)
			})
		}
	})
}

func (c *cutter) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if !c.pass() {
			return
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// udp forwards datagrams, and the answers to each sender.
func (c *cutter) udp(t *testing.T, from, to string) {
	t.Helper()
	here, err := net.ListenPacket("udp", from)
	if err != nil {
		t.Fatal(err)
	}
	c.keep(here)
	ways := map[string]net.Conn{}
	c.closing.Go(func() {
		buf := make([]byte, 64<<10)
		for {
			n, sender, err := here.ReadFrom(buf)
			if err != nil {
				return
			}
			if !c.isOpen() {
				continue
			}
			way := ways[sender.String()]
			if way == nil {
				if way, err = net.Dial("udp", to); err != nil || !c.keep(way) {
					return
				}
				ways[sender.String()] = way
				c.closing.Go(func() {
					back := make([]byte, 64<<10)
					for {
						n, err := way.Read(back)
						if err != nil {
							return
						}
						if c.isOpen() {
							_, _ = here.WriteTo(back[:n], sender) // a datagram may be lost
						}
					}
				})
			}
			_, _ = way.Write(buf[:n]) // a datagram may be lost
		}
	})
}
