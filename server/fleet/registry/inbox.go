package registry

import "sync"

// inbox is the queue of commands for the core. It holds at most one for each caller that waits and
// a few for each replica.
type inbox struct {
	mu       sync.Mutex
	commands []func(*core) // guarded by mu
	wake     chan struct{}
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

func (b *inbox) put(command func(*core)) {
	b.mu.Lock()
	b.commands = append(b.commands, command)
	b.mu.Unlock()
	signal(b.wake)
}

func (b *inbox) take() []func(*core) {
	b.mu.Lock()
	defer b.mu.Unlock()
	commands := b.commands
	b.commands = nil
	return commands
}

// signal fills a channel of one signal; a receiver that has one already needs no second.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
