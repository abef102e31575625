package registry

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

const (
	// unansweredLook is the time between looks for replicas that do not answer.
	unansweredLook = time.Second
	// unansweredAgain is the time between reports of replicas that still do not answer.
	unansweredAgain = 30 * time.Second
	// unansweredNamed bounds the replicas that a report names.
	unansweredNamed = 5
)

// unansweredWatch logs replicas that do not answer.
type unansweredWatch struct {
	published *published
	log       *slog.Logger
}

// run logs which replicas do not answer: when the first probe has failed, then every unansweredAgain, and when all answer.
// It is no warning while these replicas have never answered and are known for less than unansweredAgain: they start.
func (w unansweredWatch) run(ctx context.Context) {
	look := time.NewTicker(unansweredLook)
	defer look.Stop()
	var reported time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		u := w.published.now().unanswered(time.Now())
		switch {
		case u.down == 0 && !reported.IsZero():
			w.log.Info("all replicas answer", "replicas", u.total)
			reported = time.Time{}
		case u.down > 0 && time.Since(reported) >= unansweredAgain:
			level, text := slog.LevelWarn, "replicas do not answer; check their addresses, and that they are up"
			if u.fresh == u.down {
				level, text = slog.LevelInfo, "new replicas do not answer yet; if they are up, check their addresses"
			}
			w.log.Log(ctx, level, text, "down", u.down, "of", u.total, "replicas", u.which)
			reported = time.Now()
		}
	}
}

// unanswered are the replicas whose probes fail.
type unanswered struct {
	down, total int
	fresh       int    // replicas of down that have never answered and are new
	which       string // describes the first of them
}

// unanswered counts the replicas whose probes fail, and describes the first of them.
func (s *Snapshot) unanswered(now time.Time) (u unanswered) {
	var text strings.Builder
	for _, rep := range s.Replicas {
		u.total++
		failed := s.Details(rep.ID).LastError
		if failed == "" || rep.State != replica.StateStarting && rep.State != replica.StateUnhealthy {
			continue
		}
		if rep.State == replica.StateStarting && now.Sub(rep.Since) < unansweredAgain {
			u.fresh++
		}
		if u.down++; u.down <= unansweredNamed {
			fmt.Fprintf(&text, "%s at %s: %s; ", rep.ID, rep.URL, failed)
		}
	}
	u.which = strings.TrimSuffix(text.String(), "; ")
	return u
}
