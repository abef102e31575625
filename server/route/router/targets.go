package router

import (
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// missed says which targets no replica can meet.
func missed(own decision.Targets) string {
	var limits []string
	if own.TTFT > 0 {
		limits = append(limits, "the first token within "+own.TTFT.String())
	}
	if own.TPOT > 0 {
		limits = append(limits, own.TPOT.String()+" per output token")
	}
	if len(limits) == 0 {
		return "no replica can meet the model's latency targets now; retry later"
	}
	return "no replica can meet the request's latency targets now (" + strings.Join(limits, ", ") + "); retry later or with a longer target"
}
