// Package labels keeps the attribute sets that measurements repeat, so that a request sorts and
// copies none of them.
//
// A Sets belongs to one instrument (or to several with the same labels) and is safe for concurrent
// use. Its zero value is ready. It keeps a bounded number of sets; further ones are made each time.
package labels

import (
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// most bounds the sets that are kept.
const most = 4096

// Sets gives the attribute set that belongs to a key.
type Sets[K comparable] struct {
	known sync.Map // K to metric.MeasurementOption
	count atomic.Int64
}

// Of returns the set for key; build makes it when it is asked for the first time.
func (s *Sets[K]) Of(key K, build func(K) []attribute.KeyValue) metric.MeasurementOption {
	if known, ok := s.known.Load(key); ok {
		return known.(metric.MeasurementOption)
	}
	set := metric.WithAttributeSet(attribute.NewSet(build(key)...))
	if s.count.Load() < most {
		if _, had := s.known.LoadOrStore(key, set); !had {
			s.count.Add(1)
		}
	}
	return set
}
