package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// killed is how many streams have to lose their replica in their middle.
const killed = 100

// checkKills kills the replicas in turns while each serves as many streams as it can, until a hundred
// streams have lost their replica in their middle. Each stream writes whole characters, so each can be resumed
// and none may be lost.
func (r *disturbances) checkKills(ctx context.Context) (string, error) {
	letters, err := r.letters(ctx)
	if err != nil {
		return "", err
	}
	before, err := r.router.resumed(ctx)
	if err != nil {
		return "", err
	}
	streams, resumed, kills := 0, 0.0, 0
	for ; resumed < killed; kills++ {
		if kills > killed {
			return "", fmt.Errorf("%d kills, and only %v streams were resumed", kills, resumed)
		}
		victim := r.engines[kills%len(r.engines)]
		n, err := r.killRound(ctx, victim, letters)
		if err != nil {
			return "", fmt.Errorf("kill %d, of %s: %w", kills+1, victim.id, err)
		}
		streams += n
		after, err := r.router.resumed(ctx)
		if err != nil {
			return "", err
		}
		resumed = after - before
	}
	return fmt.Sprintf("%d streams, %d kills, %v resumed, none lost", streams, kills, resumed), nil
}

// killRound fills the fleet with streams, kills the victim when each has begun, and brings it back.
func (r *disturbances) killRound(ctx context.Context, victim *engine, letters []uint32) (int, error) {
	outcomes := make([]outcome, r.seqs*len(r.engines)*3/4) // each has begun before the first one ends
	begun := make(chan struct{}, len(outcomes))
	var wg sync.WaitGroup
	for i := range outcomes {
		wg.Go(func() { outcomes[i] = r.router.begunStream(ctx, i, letters, begun) })
	}
	for range outcomes {
		select {
		case <-begun:
		case <-time.After(2 * time.Minute):
			victim.kill()
			wg.Wait()
			return 0, fmt.Errorf("not each of %d streams began: %+v", len(outcomes), outcomes)
		}
	}
	victim.kill()
	wg.Wait()
	for i, o := range outcomes {
		if !o.whole {
			return 0, fmt.Errorf("stream %d of replica %q was lost: %s", i, o.replica, o.err)
		}
	}
	if err := r.router.released(ctx); err != nil {
		return 0, err
	}
	if err := victim.start(ctx); err != nil {
		return 0, err
	}
	if err := victim.wait(ctx, startWait); err != nil {
		return 0, err
	}
	if err := r.remember(); err != nil {
		return 0, err
	}
	return len(outcomes), r.router.waitExact(ctx, len(r.engines), time.Minute)
}

// begunStream asks for a stream that outlasts the others' beginnings, and says when its first token is there, or
// that it failed.
func (p *routerProcess) begunStream(ctx context.Context, i int, letters []uint32, begun chan<- struct{}) outcome {
	say := sync.OnceFunc(func() { begun <- struct{}{} })
	defer say()
	raw, err := json.Marshal(object{
		"model": "tiny", "prompt": fmt.Sprintf("stream %d is longer than its replica lives", i), "max_tokens": 1500, "ignore_eos": true, "stream": true,
		"temperature": 0, "allowed_token_ids": letters,
	})
	if err != nil {
		return outcome{err: err.Error()}
	}
	resp, err := open(ctx, "POST", p.url()+"/v1/completions", raw, "X-Kvpilot-Policy", "round-robin")
	if err != nil {
		return outcome{err: err.Error()}
	}
	defer resp.Body.Close()
	o := outcome{replica: resp.Header.Get("X-Kvpilot-Replica")}
	var last []byte
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		say()
		last = bytes.Clone(data)
		if bytes.HasPrefix(data, []byte(`{"error"`)) {
			break
		}
	}
	o.whole = lines.Err() == nil && resp.StatusCode == http.StatusOK && string(last) == "[DONE]"
	if !o.whole {
		o.err = fmt.Sprintf("status %d, %v, ends with %.200q", resp.StatusCode, lines.Err(), last)
	}
	return o
}
