package enginesim

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/sleep"
	"github.com/kvpilot/kvpilot/sim/enginesim/core"
)

// adapter is a LoRA adapter that is served under its name.
type adapter struct {
	name, path string
	id         int
}

// adapters are the LoRA adapters of an engine. They are safe for concurrent use.
type adapters struct {
	mu   sync.Mutex
	list []adapter // guarded by mu
	last int       // guarded by mu: the last id given
}

// reset leaves the adapters of the command line, as a new process has them.
func (a *adapters) reset(names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list, a.last = nil, 0
	for _, name := range names {
		a.last++
		a.list = append(a.list, adapter{name: name, path: name, id: a.last})
	}
}

// all is a copy of the list.
func (a *adapters) all() []adapter {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.list)
}

// find returns the adapter of a name; its id is 0 when there is none.
func (a *adapters) find(name string) adapter {
	for _, one := range a.all() {
		if one.name == name {
			return one
		}
	}
	return adapter{}
}

// add serves one more; false when it is served already.
func (a *adapters) add(name, path string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if slices.ContainsFunc(a.list, func(of adapter) bool { return of.name == name }) {
		return false
	}
	a.last++
	a.list = append(a.list, adapter{name: name, path: path, id: a.last})
	return true
}

// remove serves one less; false when there was none of that name.
func (a *adapters) remove(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := len(a.list)
	a.list = slices.DeleteFunc(a.list, func(of adapter) bool { return of.name == name })
	return len(a.list) < before
}

// adapterRoutes load and unload adapters at run time.
type adapterRoutes struct{ *life }

// adapterCall is the body of both calls.
type adapterCall struct {
	Name string `json:"lora_name"`
	Path string `json:"lora_path"`
}

func (l adapterRoutes) read(c *call) (in adapterCall, ok bool) {
	if !l.dialect.read(c, &in) {
		return in, false
	}
	if in.Name == "" {
		l.refuse(c, http.StatusBadRequest, "'lora_name' must be provided.")
		return in, false
	}
	return in, true
}

// refuse answers with an error as vLLM words it.
func (l adapterRoutes) refuse(c *call, status int, message string) {
	kind := "InvalidUserInput"
	if status == http.StatusNotFound {
		kind = "NotFoundError"
	}
	l.fail(c, apiError{Status: status, Message: message, Type: kind})
}

func (l adapterRoutes) load(c *call) {
	in, ok := l.read(c)
	switch {
	case !ok:
	case in.Path == "":
		l.refuse(c, http.StatusBadRequest, "Both 'lora_name' and 'lora_path' must be provided.")
	case strings.HasPrefix(in.Path, "missing"):
		l.refuse(c, http.StatusNotFound, fmt.Sprintf("Loading lora %s failed: No adapter found for %s", in.Name, in.Path))
	case l.adapters.find(in.Name).id != 0:
		l.refuse(c, http.StatusBadRequest, fmt.Sprintf("The lora adapter '%s' has already been loaded.", in.Name))
	default:
		for _, one := range l.cores {
			core.LoadAdapter(one, in.Name)
		}
		if !sleep.For(c.r.Context(), time.Duration(float64(l.cfg.Core.Adapters.Load+l.cfg.Core.Adapters.Activate)/l.cfg.Core.Timing.Speed)) {
			return
		}
		l.adapters.add(in.Name, in.Path)
		c.send(http.StatusOK, "text/plain; charset=utf-8", fmt.Appendf(nil, "Success: LoRA adapter '%s' added successfully.", in.Name))
	}
}

func (l adapterRoutes) unload(c *call) {
	in, ok := l.read(c)
	switch {
	case !ok:
	case !l.adapters.remove(in.Name):
		l.refuse(c, http.StatusNotFound, fmt.Sprintf("The lora adapter '%s' cannot be found.", in.Name))
	default:
		for _, one := range l.cores {
			core.UnloadAdapter(one, in.Name)
		}
		c.send(http.StatusOK, "text/plain; charset=utf-8", fmt.Appendf(nil, "Success: LoRA adapter '%s' removed successfully.", in.Name))
	}
}

// adapterInfo writes the gauge of the adapters in flight, of all ranks together: it has no label of the engine.
func (x *exposition) adapterInfo(slots int, stats []core.Stats) {
	var running, waiting []string
	for _, s := range stats {
		running, waiting = append(running, s.RunningAdapters...), append(waiting, s.WaitingAdapters...)
	}
	x.family("lora_requests_info", "gauge", "Running stats on lora requests.")
	fmt.Fprintf(x, "vllm:lora_requests_info{max_lora=\"%d\",running_lora_adapters=%q,waiting_lora_adapters=%q} %v\n",
		slots, strings.Join(distinct(running), ","), strings.Join(distinct(waiting), ","), float64(time.Now().UnixMilli())/1000)
}

func distinct(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
