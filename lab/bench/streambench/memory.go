package streambench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// memoryName is the case that loads each router, freshly started, for a time with prompts of each size, all new, and then looks
// at its memory.
const memoryName = "memory"

// memorySizes are the sizes of the prompts, one after the other; memoryTime is how long each of them lasts.
var memorySizes = []int{1 << 10, 32 << 10, 256 << 10}

const memoryTime = 15 * time.Second

// memoryCase measures every subject, one at a time. Nothing else may load the machine's memory, but a busy processor only
// makes for fewer requests.
func (b *costBench) memoryCase(ctx context.Context) ([]CostResult, error) {
	if len(b.options.Cases) > 0 && !slices.Contains(b.options.Cases, memoryName) {
		return nil, nil
	}
	fmt.Fprintf(b.progress, "%s ...\n", memoryName)
	var results []CostResult
	for _, p := range b.subjects {
		if p.name == Direct {
			continue
		}
		r, err := b.memoryOf(ctx, p.name)
		if err != nil {
			return nil, fmt.Errorf("%s, %s: %w", memoryName, p.name, err)
		}
		results = append(results, r)
	}
	return results, nil
}

func (b *costBench) memoryOf(ctx context.Context, name string) (CostResult, error) {
	r := CostResult{Case: memoryName, Subject: name, Samples: 1}
	p, err := b.startCosted(ctx, name)
	if err != nil {
		return r, err
	}
	defer p.stop()
	for _, size := range memorySizes {
		of := newBodies(p.address, costCase{size: size}, b.nextSeed())
		sent, err := unaryFor(ctx, p.address, 4, time.Duration(float64(memoryTime)*b.options.Scale), of)
		if err != nil {
			return r, err
		}
		r.Requests += sent
		b.seed += sent // no two prompts are equal
	}
	if r.Resident, err = p.resident(); err != nil {
		return r, err
	}
	r.Peak, err = p.peak()
	return r, err
}

// unaryFor sends requests over workers connections until the time is over, and returns how many.
func unaryFor(ctx context.Context, address string, workers int, d time.Duration, of *bodies) (int, error) {
	end := time.Now().Add(d)
	sent, errs := make([]int, workers), make([]error, workers)
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			sender := worker{address: address}
			defer sender.close()
			for n := w; time.Now().Before(end) && errs[w] == nil; n += workers {
				sender.payload = of.request(sender.payload, n)
				errs[w] = sender.send(ctx)
				sent[w]++
			}
		})
	}
	group.Wait()
	total := 0
	for w := range workers {
		if errs[w] != nil {
			return 0, errs[w]
		}
		total += sent[w]
	}
	return total, nil
}
