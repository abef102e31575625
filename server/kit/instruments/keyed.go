package instruments

import (
	"context"
	"fmt"
	"reflect"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Keyed counts by keys that are known from the start, under labels of their own. The zero value counts nothing. Add takes no lock, and
// allocates nothing itself.
type Keyed[K comparable] struct {
	of   metric.Int64Counter
	name string // of the label
	by   map[K][]metric.AddOption
}

// labeled is a key that has several labels, or another text than its own as a label. A key without these methods is labelled with its text.
type labeled interface{ Labels() []attribute.KeyValue }

func (c *Keyed[K]) declare(s *Set, d Instrument) {
	c.of = must(s.meter.Int64Counter(d.Name, metric.WithUnit(d.Unit), metric.WithDescription(d.Help)))
	c.by = map[K][]metric.AddOption{}
	if len(d.by) > 0 {
		c.name = d.by[0]
	}
	for _, value := range d.values {
		var key K
		reflect.ValueOf(&key).Elem().SetString(value)
		c.Know(key)
	}
}

// Know makes a series for each key, at zero. It must not be called after Add.
func (c *Keyed[K]) Know(keys ...K) {
	c.Expect(keys...)
	for _, key := range keys {
		c.Count(key, 0)
	}
}

// Expect is Know for keys whose series begin when they are counted first.
func (c *Keyed[K]) Expect(keys ...K) {
	for _, key := range keys {
		labels := []attribute.KeyValue{attribute.String(c.name, fmt.Sprint(key))}
		if own, ok := any(key).(labeled); ok {
			labels = own.Labels()
		}
		c.by[key] = []metric.AddOption{Labels(labels...)}
	}
}

// Add counts one; a key that is not known is not counted.
func (c *Keyed[K]) Add(key K) { c.Count(key, 1) }

// Count counts n; a key that is not known is not counted.
func (c *Keyed[K]) Count(key K, n int64) {
	if labels, ok := c.by[key]; ok {
		c.of.Add(context.Background(), n, labels...)
	}
}

// Label has the labels of a known key, for other instruments; no labels of another key.
func (c *Keyed[K]) Label(key K) metric.MeasurementOption {
	if labels := c.by[key]; labels != nil {
		return labels[0].(metric.MeasurementOption)
	}
	return Labels()
}

// Total is a counter without labels that costs one atomic addition; it is read at each collection. The zero value counts, and is shown once it
// is declared.
type Total struct{ atomic.Int64 }

func (t *Total) declare(s *Set, d Instrument) {
	c := must(s.meter.Int64ObservableCounter(d.Name, metric.WithUnit(d.Unit), metric.WithDescription(d.Help)))
	must(s.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(c, t.Load())
		return nil
	}, c))
}
