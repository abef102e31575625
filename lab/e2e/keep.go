package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"

	"github.com/kvpilot/kvpilot/internal/proc"
)

// keptFleet describes replicas that an earlier run left running.
type keptFleet struct {
	Collector string       `json:"collector"`
	Engines   []keptEngine `json:"engines"`
}

type keptEngine struct {
	PID    int `json:"pid"`
	HTTP   int `json:"http"`
	Events int `json:"events"`
	Replay int `json:"replay"`
}

func (f *fleet) keptFile() string {
	return filepath.Join(f.vllm.cache, "fleet-"+f.vllm.version+f.connector+".json")
}

// kept reads the record of an earlier run; nothing when none of it still runs.
func (f *fleet) kept() keptFleet {
	var k keptFleet
	b, err := os.ReadFile(f.keptFile())
	if !f.keep || err != nil || json.Unmarshal(b, &k) != nil {
		return keptFleet{}
	}
	for _, e := range k.Engines {
		if syscall.Kill(e.PID, 0) != nil {
			return keptFleet{}
		}
	}
	return k
}

// remember writes down the running processes.
func (f *fleet) remember() error {
	if !f.keep {
		return nil
	}
	k := keptFleet{Collector: f.spans.address}
	for _, e := range f.engines {
		k.Engines = append(k.Engines, keptEngine{e.process.PID, e.http, e.events, e.replay})
	}
	b, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return os.WriteFile(f.keptFile(), b, 0o644)
}

// adopt uses a replica that runs already.
func (e *engine) adopt(k keptEngine) {
	e.http, e.events, e.replay = k.HTTP, k.Events, k.Replay
	e.process = proc.Adopt(e.id, e.logFile(), k.PID)
}

func (e *engine) logFile() string { return filepath.Join(e.vllm.logs, e.id+".log") }
