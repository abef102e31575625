package instruments

import (
	"context"

	"go.opentelemetry.io/otel/metric"
)

// Keyed counts by keys that are all known when it is made, each with labels of its own. The zero value counts nothing.
type Keyed[K comparable] struct {
	of     metric.Int64Counter
	labels map[K]metric.MeasurementOption
}

// NewKeyed makes a counter with a series for each key, under the labels that label returns for it.
func NewKeyed[K comparable](s *Set, name, unit, help string, keys []K, label func(K) metric.MeasurementOption) Keyed[K] {
	c := Keyed[K]{labels: map[K]metric.MeasurementOption{}}
	all := make([]metric.MeasurementOption, 0, len(keys))
	for _, key := range keys {
		c.labels[key] = label(key)
		all = append(all, c.labels[key])
	}
	c.of = s.CounterBy(name, unit, help, all...)
	return c
}

// Add counts one; a key that was not named when the counter was made is not counted.
func (c *Keyed[K]) Add(key K) {
	if label, ok := c.labels[key]; ok {
		c.of.Add(context.Background(), 1, label)
	}
}
