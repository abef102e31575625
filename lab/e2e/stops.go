package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"
)

// stopped is a request whose answer a stop string ends, and the answer that the engine writes undisturbed.
type stopped struct {
	path string
	body object
	want heard
}

// stoppable makes up a request that is answered in plain letters, with a stop string that comes as late in its answer as the model has something new to say.
func (f *fleet) stoppable(ctx context.Context, n, tokens int, letters []uint32) (*stopped, error) {
	s := &stopped{path: "/v1/completions", body: object{"prompt": fmt.Sprintf("Story %d about a stop", n)}}
	if n%2 == 0 {
		s.path, s.body = "/v1/chat/completions", object{"messages": []object{{"role": "user", "content": fmt.Sprintf("Question %d: where do you stop?", n)}}}
	}
	maps.Copy(s.body, object{
		"model": "tiny", "stream": true, "temperature": 0, "max_tokens": tokens, "ignore_eos": true, "repetition_penalty": 1.3,
		"allowed_token_ids": letters, "stream_options": object{"include_usage": true},
	})
	whole, err := hear(ctx, f.engines[0].url()+s.path, s.body)
	if err != nil || !whole.done {
		return nil, fmt.Errorf("without stop strings: %+v, %w", whole, err)
	}
	text := []rune(whole.text)
	size := 3 + n%9
	at := len(text)*3/4 - size
	for ; at > 0 && strings.Index(whole.text, string(text[at:at+size])) < len(string(text[:at])); at-- { // the model repeats itself
	}
	if at < 1 {
		return nil, fmt.Errorf("%q is too short", whole.text)
	}
	s.body["stop"] = []string{"never comes: ", string(text[at : at+size])}
	s.body["include_stop_str_in_output"] = n%3 == 0
	s.body["min_tokens"] = n % 8
	s.want, err = hear(ctx, f.engines[0].url()+s.path, s.body)
	if err != nil || !s.want.done || s.want.finish != "stop" || s.want.stop != string(text[at:at+size]) {
		return nil, fmt.Errorf("undisturbed: %+v, %w", s.want, err)
	}
	return s, nil
}

// letters are the ids of tokens whose text is whole characters.
func (f *fleet) letters(ctx context.Context) ([]uint32, error) {
	return f.idsOf(ctx, "The router sends each request to the replica that already holds the longest prefix of it. You are a helpful assistant, and say so: 0123456789.")
}

// idsOf returns the ids of a text.
func (f *fleet) idsOf(ctx context.Context, text string) ([]uint32, error) {
	a, err := post(ctx, f.engines[0].url()+"/tokenize", object{"model": "tiny", "prompt": text, "add_special_tokens": false})
	if err != nil {
		return nil, err
	}
	return a.ids("tokens"), nil
}

// same compares the result of a client of the router with the undisturbed answer; the usage of a stream that the router ends has the
// cached tokens that the router expected.
func (s *stopped) same(got heard) bool {
	return got.done && !got.failed && got.ids == 1 && got.text == s.want.text && got.finish == s.want.finish && got.stop == s.want.stop && got.usage == s.want.usage
}

// checkStops: a stream with stop strings is resumed wherever its connection is cut, and when its replica is killed; the string
// ends it where it would have undisturbed.
func (r *disturbances) checkStops(ctx context.Context) (string, error) {
	letters, err := r.letters(ctx)
	if err != nil {
		return "", err
	}
	cuts, others, err := r.cutStops(ctx, letters)
	if err != nil {
		return "", err
	}
	killed, err := r.killStops(ctx, letters)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d cuts: each stream resumed and stopped by its string, %d with another text than undisturbed; %s", cuts, others, killed), nil
}

func (r *disturbances) cutStops(ctx context.Context, letters []uint32) (cuts, others int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var c cutter
	c.left.Store(whole)
	front := make([]string, 2)
	for i := range front {
		if front[i], err = listenBefore(ctx, strconv.Itoa(r.engines[i%len(r.engines)].http), c.serve); err != nil {
			return 0, 0, err
		}
	}
	url, stop, err := r.resuming(ctx, front)
	if err != nil {
		return 0, 0, err
	}
	defer stop()
	for n := range 6 {
		s, err := r.stoppable(ctx, n, 40, letters)
		if err != nil {
			return 0, 0, err
		}
		for at := 500; at < s.want.size; at += 211 {
			c.left.Store(int64(at))
			got, err := hear(ctx, url+s.path, s.body)
			if err != nil {
				return 0, 0, err
			}
			cuts++
			switch {
			case !got.done || got.failed:
				return 0, 0, fmt.Errorf("cut after %d bytes, %v ended the stream: %+v", at, s.body["stop"], got)
			case !s.same(got) && got.text == s.want.text:
				return 0, 0, fmt.Errorf("cut after %d bytes, the client has %+v, want %+v", at, got, s.want)
			case !s.same(got): // a near tie may fall the other way
				others++
			}
		}
	}
	if cuts == 0 || others > cuts/10 {
		return 0, 0, fmt.Errorf("of %d cuts %d gave another text", cuts, others)
	}
	return cuts, others, nil
}

// killStops kills a replica while streams with stop strings run on it.
func (r *disturbances) killStops(ctx context.Context, letters []uint32) (string, error) {
	victim := r.engines[len(r.engines)-1]
	streams := make([]*stopped, 12)
	for n := range streams {
		var err error
		if streams[n], err = r.stoppable(ctx, n+20, 400, letters); err != nil {
			return "", err
		}
	}
	before, err := r.router.resumed(ctx)
	if err != nil {
		return "", err
	}
	got := make([]heard, len(streams))
	failed := make([]error, len(streams))
	var wg sync.WaitGroup
	for n, s := range streams {
		wg.Go(func() {
			got[n], failed[n] = hear(ctx, r.router.url()+s.path, s.body, "X-Kvpilot-Policy", "round-robin")
		})
	}
	time.Sleep(700 * time.Millisecond) // a part of the answers
	victim.kill()
	wg.Wait()
	others := 0
	for n, s := range streams {
		switch {
		case failed[n] != nil:
			return "", failed[n]
		case !got[n].done || got[n].failed || got[n].finish != "stop" && got[n].finish != "length":
			return "", fmt.Errorf("stream %d was lost: %+v", n, got[n])
		case !s.same(got[n]) && got[n].text == s.want.text:
			return "", fmt.Errorf("the client has %+v, want %+v", got[n], s.want)
		case !s.same(got[n]):
			others++
		}
	}
	after, err := r.router.resumed(ctx)
	if err != nil || after == before || others > len(streams)/3 {
		return "", errors.Join(err, fmt.Errorf("%s was killed, %v streams were resumed, %d of %d have another text", victim.id, after-before, others, len(streams)))
	}
	if err := victim.start(ctx); err != nil {
		return "", err
	}
	if err := victim.wait(ctx, 10*time.Minute); err != nil {
		return "", err
	}
	if err := r.remember(); err != nil {
		return "", err
	}
	return fmt.Sprintf("kill -9: %d streams, none lost, %v resumed, %d with another text", len(streams), after-before, others), r.router.waitExact(ctx, len(r.engines), time.Minute)
}
