package chooser_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// A long prompt whose answer comes whole delayed ten answers by two seconds each, to begin a second earlier itself.
func TestALongPromptForAWholeAnswerWaitsForTheDecodesThatItDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		f.know()
		defer f.running(t.Context())()
		var decoding []*chooser.Choice
		for i := range 12 {
			req := f.request(i, 100)
			req.ExpectedOutput = 200
			c := f.choose(req)
			time.Sleep(20 * time.Millisecond)
			c.FirstToken()
			decoding = append(decoding, c)
		}
		ask := func(id, tokens int, unstreamed bool) (got chan *chooser.Choice) {
			req := f.request(id, tokens)
			req.Unstreamed, req.ExpectedOutput = unstreamed, 200
			got = make(chan *chooser.Choice, 1)
			f.chooser.Submit(req, time.Time{}, func(c *chooser.Choice, err error) {
				if err != nil {
					t.Error(err)
				}
				got <- c
			})
			return got
		}
		whole := ask(100, 24000, true)
		time.Sleep(500 * time.Millisecond)
		if len(whole) != 0 {
			t.Fatal("the prompt of a whole answer is sent while twelve others decode")
		}
		streamed := ask(101, 200, false)
		synctest.Wait()
		if len(streamed) != 1 {
			t.Fatal("the prompt of a stream waits")
		}
		first := <-streamed
		first.Release(done(decision.EndCanceled))
		for _, c := range decoding[1:] {
			c.Release(done(decision.EndCompleted))
		}
		synctest.Wait()
		if len(whole) != 1 {
			t.Fatal("the prompt of a whole answer waits although one other decodes")
		}
		(<-whole).Release(done(decision.EndCompleted))
		// What it has waited counts: it is not kept back for ever.
		decoding = decoding[:1]
		for i := range 12 {
			c := f.choose(f.request(200+i, 100))
			time.Sleep(20 * time.Millisecond)
			c.FirstToken()
			decoding = append(decoding, c)
		}
		whole = ask(300, 24000, true)
		time.Sleep(30 * time.Second)
		if len(whole) != 1 {
			t.Fatal("the prompt of a whole answer waits for half a minute")
		}
		(<-whole).Release(done(decision.EndCompleted))
		for _, c := range decoding {
			c.Release(done(decision.EndCompleted))
		}
		f.empty()
	})
}

// Requests that state a limit alone are expected to have answers as long as those before; all were taken for 256 tokens.
func TestAnswersTeachTheirLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		f.know()
		ask := func(i int, tenant string) *chooser.Choice {
			req := f.request(i, 200)
			req.Tenant, req.ExpectedOutput, req.OutputLimit = tenant, 8192, 8192
			c := f.choose(req)
			time.Sleep(100 * time.Millisecond)
			return c
		}
		end := func(c *chooser.Choice, tokens int) {
			c.FirstToken()
			result := done(decision.EndCompleted)
			result.OutputTokens = tokens
			c.Release(result)
		}
		for i := range 20 {
			end(ask(i, "long"), 3000)
			end(ask(100+i, "short"), 12)
		}
		for tenant, want := range map[string]int{"long": 3000, "short": 12} {
			c := ask(200, tenant)
			if got := c.Decision.ExpectedOutput; got != want {
				t.Errorf("%s answers: %d tokens expected, want %d", tenant, got, want)
			}
			end(c, want)
		}
		if got := f.chooser.ExpectedOutput(&chooser.Request{
			Request: decision.Request{Model: "m", Tenant: "short"}, Reply: chooser.Reply{OutputLimit: 8192, ExpectedOutput: 8192},
		}); got != 12 {
			t.Errorf("a router that asks another one says %d tokens", got)
		}
		f.empty()
	})
}
