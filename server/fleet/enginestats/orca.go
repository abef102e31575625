package enginestats

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
)

// ORCAHeader is the reply header in which an engine that was asked to (request header
// ORCARequestHeader: "TEXT") reports its load; non-streaming replies only.
const (
	ORCAHeader        = "Endpoint-Load-Metrics"
	ORCARequestHeader = "Endpoint-Load-Metrics-Format"
)

// ORCA is the load that a reply header reports.
type ORCA struct {
	KVUsage float64
	Waiting int
}

// ParseORCA reads a reply header in its JSON or TEXT form. It is not ok when the header says
// nothing of use.
func ParseORCA(header string) (ORCA, bool) {
	format, rest, _ := strings.Cut(strings.TrimSpace(header), " ")
	values := map[string]float64{}
	switch strings.ToUpper(format) {
	case "JSON":
		var report struct {
			Named map[string]float64 `json:"named_metrics"`
		}
		if json.Unmarshal([]byte(rest), &report) != nil {
			return ORCA{}, false
		}
		values = report.Named
	case "TEXT":
		for pair := range strings.SplitSeq(rest, ",") {
			name, text, _ := strings.Cut(strings.TrimSpace(pair), "=")
			if v, err := strconv.ParseFloat(strings.TrimSpace(text), 64); err == nil {
				values[strings.TrimPrefix(strings.TrimSpace(name), "named_metrics.")] = v
			}
		}
	default:
		return ORCA{}, false
	}
	usage, hasUsage := values["kv_cache_usage_perc"]
	waiting, hasWaiting := values["num_requests_waiting"]
	if !hasUsage || !hasWaiting || !(usage >= 0 && usage <= 1) || !(waiting >= 0 && waiting <= math.MaxInt32) {
		return ORCA{}, false
	}
	return ORCA{KVUsage: usage, Waiting: int(waiting)}, true
}
