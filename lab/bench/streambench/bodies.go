package streambench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// bodies makes requests of which the texts have a common beginning and then differ.
type bodies struct {
	head, tail []byte // of the request; the prompt is between them
	common     []byte
	fresh      int // bytes of the prompt that no other request has
	letters    []byte
	seed       int
}

// newBodies prepares the requests of one turn. No two seeds that differ by less than the requests of a turn may be used.
func newBodies(address string, c costCase, seed int) *bodies {
	const marker = "PROMPT"
	// A fixed seed: the common beginning is the same in every turn.
	dice := rand.New(rand.NewPCG(1, 2))
	letters := make([]byte, 2*c.size+64)
	for i := range letters {
		letters[i] = "abcdefghijklmnopqrstuvwxyz     "[dice.IntN(31)]
	}
	common := int(float64(c.size) * c.shared)
	body := fmt.Sprintf(`{"model":%q,"stream":false,"messages":[{"role":"user","content":"%s"}],"max_tokens":200,"temperature":0.7}`, Model, marker)
	length := len(body) - len(marker) + c.size
	whole := fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", address, length, body)
	head, tail, _ := bytes.Cut(whole, []byte(marker))
	return &bodies{head: head, tail: tail, common: letters[:common], fresh: c.size - common, letters: letters[c.size:], seed: seed}
}

// request writes the nth request into buf.
func (b *bodies) request(buf []byte, n int) []byte {
	buf = append(append(buf[:0], b.head...), b.common...)
	at := len(buf)
	buf = append(buf, b.letters[:b.fresh]...)
	copy(buf[at:], fmt.Sprintf("%016d", b.seed+n)) // the first token that differs makes all blocks behind it new
	return append(buf, b.tail...)
}

// unaryBodies sends total requests over workers connections, and returns their latencies, sorted.
func unaryBodies(ctx context.Context, address string, workers, total int, of *bodies) ([]time.Duration, error) {
	results, errs := make([][]time.Duration, workers), make([]error, workers)
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			sender := worker{address: address}
			defer sender.close()
			for n := w; n < total; n += workers {
				sender.payload = of.request(sender.payload, n)
				began := time.Now()
				if errs[w] = sender.send(ctx); errs[w] != nil {
					return
				}
				results[w] = append(results[w], time.Since(began))
			}
		})
	}
	group.Wait()
	all := slices.Concat(results...)
	slices.Sort(all)
	return all, errors.Join(errs...)
}
