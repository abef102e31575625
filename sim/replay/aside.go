package replay

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
)

// Chats are the figures of the chats next to programs at once, in seconds: of those that arrive while as many programs run as the load
// says.
type Chats struct {
	// Calls is their number.
	Calls float64 `json:"calls"`
	// Mean to P99 are of the time to the first token, AnswerMean is of the time to the last one.
	Mean       float64 `json:"ttft_mean_s"`
	P50        float64 `json:"ttft_p50_s"`
	P90        float64 `json:"ttft_p90_s"`
	P99        float64 `json:"ttft_p99_s"`
	AnswerMean float64 `json:"answer_mean_s"`
	// HitRate is the share of their prompt tokens found in a cache.
	HitRate float64 `json:"hit_rate"`
	// Alone are the same chats alone on half of the replicas; nil for the oracle.
	Alone *Chats `json:"alone,omitempty"`
}

// withChats returns the trace with turns of chats, as conv has them, at so many calls per second. They have no program, and one that
// arrives after the end of all programs is left out. There are as many as may be needed, up to four for each call of the trace.
func (t *Trace) withChats(rate float64, seed uint64) (*Trace, error) {
	chats, err := Generate("conv", 4*len(t.Calls), seed)
	if err != nil {
		return nil, err
	}
	if t.Chunk != chats.Chunk {
		return nil, fmt.Errorf("chats have chunks of %d tokens, the trace has chunks of %d", chats.Chunk, t.Chunk)
	}
	both := *t
	both.Name += " and chats"
	both.Chats = len(t.Calls)
	both.Calls = slices.Clone(t.Calls)
	session, id := 0, uint64(0)
	for i := range t.Calls {
		session = max(session, t.Calls[i].Session+1)
		for _, n := range t.Calls[i].IDs {
			id = max(id, n+1)
		}
	}
	speed := rate / chats.rate()
	for _, c := range chats.Calls {
		ids := make([]uint64, len(c.IDs))
		for i, n := range c.IDs {
			ids[i] = n + id
		}
		c.IDs, c.Session, c.At = ids, c.Session+session, c.At/speed
		both.Calls = append(both.Calls, c)
	}
	return &both, nil
}

// isChat reports whether a call is a chat next to programs.
func (t *Trace) isChat(call int) bool { return t.Chats > 0 && call >= t.Chats }

// own are the calls without those of chats.
func (t *Trace) own() []Call {
	if t.Chats > 0 {
		return t.Calls[:t.Chats]
	}
	return t.Calls
}

// chats reads the figures of the chats; nil without any.
func (s *sim) chats() *Chats {
	if s.trace.Chats == 0 || s.atOnce == nil {
		return nil
	}
	return s.atOnce.chatsOf(s, s.trace.Chats)
}

// chatsOf reads the figures of a run's calls from first on that arrive while as many programs run as the load says.
func (a *atOnce) chatsOf(s *sim, first int) *Chats {
	var ttft, answer []float64
	var in, cached float64
	for i := first; i < len(s.trace.Calls); i++ {
		if math.IsNaN(s.first[i]) || s.arrived[i] < a.full || s.arrived[i] > a.drains {
			continue
		}
		ttft = append(ttft, s.first[i]-s.arrived[i])
		in += float64(s.trace.Calls[i].In)
		cached += float64(s.cached[i])
		if !math.IsNaN(s.done[i]) {
			answer = append(answer, s.done[i]-s.arrived[i])
		}
	}
	slices.Sort(ttft)
	return &Chats{
		Calls: float64(len(ttft)), Mean: mean(ttft), P50: quantile(ttft, 0.5), P90: quantile(ttft, 0.9), P99: quantile(ttft, 0.99),
		AnswerMean: mean(answer), HitRate: cached / max(1, in),
	}
}

// chatsAlone plays the chats next to programs alone on half of the replicas, and reads the figures of the time in which so many programs ran.
func (j *job) chatsAlone(a *atOnce) (*Chats, error) {
	alone, t, o := *j, *j.work.Trace, &j.options
	t.Calls, t.Chats, t.Closed, t.Programs = t.Calls[t.Chats:], 0, false, nil
	alone.work = newWorkload(&t, o.Block)
	s := newSim(alone.work, newEngines(&o.Profile, o.Hardware, max(1, o.Replicas/2), o.Block), 1, j.seed)
	s.delays = o.Delays
	v, err := newService(s, j.chooser(), &alone)
	if err != nil {
		return nil, err
	}
	s.router = v
	s.run(0)
	return a.chatsOf(s, 0), v.err()
}

// add adds a share of other, for means over several runs.
func (c *Chats) add(other *Chats, share float64) {
	c.Calls += share * other.Calls
	c.Mean += share * other.Mean
	c.P50 += share * other.P50
	c.P90 += share * other.P90
	c.P99 += share * other.P99
	c.AnswerMean += share * other.AnswerMean
	c.HitRate += share * other.HitRate
	if other.Alone != nil {
		if c.Alone == nil {
			c.Alone = &Chats{}
		}
		c.Alone.add(other.Alone, share)
	}
}

// chats writes the figures of the chats next to programs.
func (r *Report) chats(w io.Writer) error {
	if r.Oracle.Chats == nil {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "chats\tcalls\tTTFT mean\tp50\tp90\tp99\tanswer mean\thit rate\talone: TTFT mean\tanswer mean\thit rate\t")
	for _, name := range append(slices.Clone(r.order), "") {
		p := r.Policies[name]
		if name == "" {
			p = r.Oracle
		}
		if c := p.Chats; c != nil && !p.Abandoned {
			alone := "-\t-\t-"
			if a := c.Alone; a != nil {
				alone = fmt.Sprintf("%.2f\t%.2f\t%.3f", a.Mean, a.AnswerMean, a.HitRate)
			}
			fmt.Fprintf(t, "%s\t%.0f\t%.2f\t%.2f\t%.2f\t%.1f\t%.2f\t%.3f\t%s\t\n", label(name), c.Calls, c.Mean, c.P50, c.P90, c.P99, c.AnswerMean, c.HitRate, alone)
		}
	}
	return t.Flush()
}
