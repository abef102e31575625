package enginesim

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/kvpilot/kvpilot/sim/enginesim/core"
)

// adminState is the answer to GET /sim/state.
type adminState struct {
	Version string      `json:"version"`
	Model   string      `json:"model"`
	Life    uint64      `json:"life"`
	Ranks   []rankState `json:"ranks"`
	Faults  Faults      `json:"faults"`
}

type rankState struct {
	Running       int     `json:"running"`
	Waiting       int     `json:"waiting"`
	Usage         float64 `json:"kv_cache_usage"`
	PromptTokens  uint64  `json:"prompt_tokens"`
	OutputTokens  uint64  `json:"generation_tokens"`
	QueriedTokens uint64  `json:"prefix_cache_queries"`
	HitTokens     uint64  `json:"prefix_cache_hits"`
	Preemptions   uint64  `json:"preemptions"`
	Aborted       uint64  `json:"aborted"`
	// Pinned counts the prompts whose blocks wait for another engine, Expired the prompts that none read in time.
	Pinned        int    `json:"pinned_prompts"`
	Expired       int    `json:"expired_prompts"`
	NextEvent     uint64 `json:"next_event"`
	Subscriptions int    `json:"subscriptions"`
	// Clock shows whether the machine kept up with the modelled time.
	Clock clockState `json:"clock"`
}

type clockState struct {
	Steps     uint64  `json:"steps"`
	Modelled  float64 `json:"modelled_s"`
	Late      float64 `json:"late_s"`
	MostLate  float64 `json:"most_late_s"`
	LateSteps uint64  `json:"late_steps"`
	Lost      float64 `json:"lost_s"`
}

// admin serves /sim/: the simulator's own routes, which no fault touches.
func (e *Engine) admin(w http.ResponseWriter, r *http.Request, state func() adminState) {
	c := &call{w: w, r: r, record: &Record{}, book: &e.records}
	switch r.Method + " " + r.URL.Path {
	case "GET /sim/state":
		c.reply(http.StatusOK, state())
	case "GET /sim/faults":
		c.reply(http.StatusOK, e.faults.get())
	case "POST /sim/faults":
		var f Faults
		if adminBody(c, &f) {
			e.SetFaults(f)
			c.reply(http.StatusOK, f)
		}
	case "POST /sim/restart":
		var req struct {
			Down Duration `json:"down"`
		}
		if adminBody(c, &req) {
			// The restart cuts this connection too: with its length given, the answer is whole once it is flushed.
			body := fmt.Appendf(nil, `{"ended_life":%d}`, e.lives.Load())
			c.w.Header().Set("Connection", "close")
			c.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			c.send(http.StatusOK, "application/json", body)
			_ = http.NewResponseController(w).Flush() // a client that left needs no answer
			e.Restart(time.Duration(req.Down))
		}
	case "POST /sim/speed":
		var req struct {
			Speed float64 `json:"speed"`
		}
		if adminBody(c, &req) {
			e.SetSpeed(req.Speed)
			c.reply(http.StatusOK, req)
		}
	case "GET /sim/requests":
		c.reply(http.StatusOK, e.Requests())
	case "DELETE /sim/requests":
		e.ForgetRequests()
		c.send(http.StatusNoContent, "", nil)
	default:
		c.reply(http.StatusNotFound, map[string]string{"detail": "Not Found"})
	}
}

// adminBody reads a small JSON body; an empty one is an empty object.
func adminBody(c *call, v any) bool {
	b, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, 1<<20))
	if err != nil {
		return false
	}
	if len(b) == 0 {
		return true
	}
	if err := json.Unmarshal(b, v, json.RejectUnknownMembers(true)); err != nil {
		c.reply(http.StatusBadRequest, map[string]string{"error": err.Error()})
		return false
	}
	return true
}

func (l *life) state() adminState {
	s := adminState{Version: l.features.name, Model: l.cfg.Models[0], Life: l.lives.Load(), Faults: l.faults.get()}
	for i, co := range l.cores {
		st := co.Stats()
		r := rankState{
			Running: st.Running, Waiting: st.Waiting, Usage: st.Usage,
			PromptTokens: st.PromptTokens, OutputTokens: st.GenerationTokens,
			QueriedTokens: st.Queries, HitTokens: st.Hits, Preemptions: st.Preemptions,
			Aborted: st.Finished[core.FinishAbort],
			Clock: clockState{
				Steps: st.Clock.Steps, Modelled: st.Clock.Modelled.Seconds(), Late: st.Clock.Late.Seconds(),
				MostLate: st.Clock.MostLate.Seconds(), LateSteps: st.Clock.LateSteps, Lost: st.Clock.Lost.Seconds(),
			},
		}
		r.Pinned, r.Expired = co.Pins()
		if i < len(l.pubs) {
			r.NextEvent, r.Subscriptions = l.pubs[i].Next(), l.pubs[i].Subscriptions()
		}
		s.Ranks = append(s.Ranks, r)
	}
	return s
}
