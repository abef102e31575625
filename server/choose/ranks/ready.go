package ranks

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/layout"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

var errNoReplica = errors.New("no replica is known")

// Ready returns why no replica takes requests now; nil when one does.
func (r *Ranks) Ready() error {
	all := r.Registry.Snapshot().Replicas
	states := map[string]int{}
	for _, known := range all {
		switch {
		case known.State == replica.StateReady && len(known.Models) > 0:
			return nil
		case known.State == replica.StateReady:
			states["ready without a model"]++
		default:
			states[known.State.String()]++
		}
	}
	if layout.MostMute(all, time.Now()) {
		return nil
	}
	if len(all) == 0 {
		return errNoReplica
	}
	var list []string
	for _, state := range slices.Sorted(maps.Keys(states)) {
		list = append(list, fmt.Sprintf("%d %s", states[state], state))
	}
	return errors.New("no replica takes requests: " + strings.Join(list, ", "))
}
