package registry

import (
	"context"
	"fmt"
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

// watchUnanswered logs which replicas do not answer: when the first probe has failed, then every unansweredAgain, and when all answer.
func (r *Registry) watchUnanswered(ctx context.Context) {
	look := time.NewTicker(unansweredLook)
	defer look.Stop()
	var reported time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		down, total, which := r.Snapshot().unanswered()
		switch {
		case down == 0 && !reported.IsZero():
			r.log.Info("all replicas answer", "replicas", total)
			reported = time.Time{}
		case down > 0 && time.Since(reported) >= unansweredAgain:
			r.log.Warn("replicas do not answer; check their addresses, and that they are up", "down", down, "of", total, "replicas", which)
			reported = time.Now()
		}
	}
}

// unanswered counts the replicas whose probes fail, and describes the first of them.
func (s *Snapshot) unanswered() (down, total int, which string) {
	var text strings.Builder
	for _, rep := range s.Replicas {
		total++
		failed := s.Details(rep.ID).LastError
		if failed == "" || rep.State != replica.StateStarting && rep.State != replica.StateUnhealthy {
			continue
		}
		if down++; down <= unansweredNamed {
			fmt.Fprintf(&text, "%s at %s: %s; ", rep.ID, rep.URL, failed)
		}
	}
	return down, total, strings.TrimSuffix(text.String(), "; ")
}
