package enginemodel

import (
	"errors"
	"slices"
	"time"
)

// Adapters is how an engine keeps LoRA adapters. The zero value has no limit, and its adapters take no time.
type Adapters struct {
	// Slots is how many adapters GPU memory holds, and so how many different ones a step can compute (max_loras). 0: without limit.
	Slots int
	// Host is how many adapters host memory holds (max_cpu_loras); fewer than Slots are as many as Slots.
	Host int
	// Load is the time to read an adapter into host memory, Activate the time to copy it from there into a slot. The engine computes nothing in this time.
	Load, Activate time.Duration
}

func (a *Adapters) validate() error {
	if a.Slots < 0 || a.Host < 0 || a.Load < 0 || a.Activate < 0 {
		return errors.New("slots, host memory and times of adapters must not be negative")
	}
	return nil
}

// residents are the adapters in an engine's memory, and in its planned step. The zero value has none.
type residents struct {
	slots, host []string // the least recently used first
	step        []string // that the planned step computes
}

// fits reports whether a step that computes the adapters so far can compute this one, too.
func (r *residents) fits(cfg *Adapters, adapter string) bool {
	return adapter == "" || cfg.Slots == 0 || len(r.step) < cfg.Slots || slices.Contains(r.step, adapter)
}

// join has the planned step compute an adapter.
func (r *residents) join(adapter string) {
	if adapter != "" && !slices.Contains(r.step, adapter) {
		r.step = append(r.step, adapter)
	}
}

// fetch brings the step's adapters into their slots and returns the time that it takes.
func (r *residents) fetch(cfg *Adapters) (took time.Duration) {
	if cfg.Slots == 0 {
		return 0
	}
	for _, adapter := range r.step {
		if !touch(&r.host, adapter) {
			took += cfg.Load
			r.host = push(r.host, adapter, max(cfg.Host, cfg.Slots), r.step)
		}
	}
	for _, adapter := range r.step {
		if !touch(&r.slots, adapter) {
			took += cfg.Activate
			r.slots = push(r.slots, adapter, cfg.Slots, r.step)
		}
	}
	return took
}

// touch makes an adapter the most recently used one of a list; false when it is not there.
func touch(list *[]string, adapter string) bool {
	i := slices.Index(*list, adapter)
	if i < 0 {
		return false
	}
	*list = append(slices.Delete(*list, i, i+1), adapter)
	return true
}

// push adds an adapter to a list of at most so many, in place of the least recently used one that the step does not compute.
func push(list []string, adapter string, most int, step []string) []string {
	for i := 0; len(list) >= most && i < len(list); {
		if slices.Contains(step, list[i]) {
			i++
			continue
		}
		list = slices.Delete(list, i, i+1)
	}
	return append(list, adapter)
}

// LoadAdapter reads an adapter and copies it into a slot now, as vLLM does when one is added at run time. The time counts for the next step.
func LoadAdapter(m *Machine, adapter string) {
	m.adapters.step = append(m.adapters.step[:0], adapter)
	m.loading += m.adapters.fetch(&m.cfg.Adapters)
}

// UnloadAdapter forgets an adapter.
func UnloadAdapter(m *Machine, adapter string) {
	gone := func(of string) bool { return of == adapter }
	m.adapters.slots, m.adapters.host = slices.DeleteFunc(m.adapters.slots, gone), slices.DeleteFunc(m.adapters.host, gone)
}

// AdaptersOf lists the distinct adapters of sequences.
func AdaptersOf(list []*Sequence) []string {
	var names []string
	for _, s := range list {
		if s.Adapter != "" && !slices.Contains(names, s.Adapter) {
			names = append(names, s.Adapter)
		}
	}
	return names
}
