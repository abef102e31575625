package server

import (
	"context"
	"errors"
	"io"

	"github.com/kvpilot/kvpilot/server/choose/ranks"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/observe/telemetry"
	"github.com/kvpilot/kvpilot/server/peers/members"
)

// Observer knows a router's replicas as the router itself would: it discovers and probes them, reads their metrics and follows
// their KV events. It takes no requests, joins no other routers, exports nothing and writes no file. Make one with NewObserver and
// run it once. The parts are safe for concurrent use.
type Observer struct {
	Registry *registry.Registry
	Index    *kvindex.Index
	Events   *kvevents.Plane
	Stats    *enginestats.Poller

	parts     *parts
	telemetry *telemetry.Telemetry
}

// ObserverParams has the arguments of the process in addition to the Config.
type ObserverParams struct {
	// Env has the variables of the environment that settings name.
	Env registry.Environment
	// Watcher is informed of stored blocks; nil: none is.
	Watcher ranks.Watcher
}

// NewObserver builds an Observer. It opens no socket and starts nothing. c must be valid.
func NewObserver(ctx context.Context, c config.Config, p ObserverParams) (*Observer, error) {
	c.Fleet, c.Telemetry = members.DefaultConfig(), telemetry.DefaultConfig()
	c.Telemetry.Traces.Ratio = 0
	c.KVIndex.Snapshot, c.Decisions.File = "", ""
	t, err := telemetry.New(ctx, c.Telemetry, telemetry.Params{LogTo: io.Discard})
	if err != nil {
		return nil, err
	}
	o := &Observer{telemetry: t}
	if o.parts, err = newParts(c, t, p.Env, p.Watcher); err != nil {
		return nil, err
	}
	o.Registry, o.Index, o.Events, o.Stats = o.parts.ranks.Registry, o.parts.ranks.Index, o.parts.ranks.Events, o.parts.ranks.Stats
	return o, nil
}

// Run observes until ctx ends and returns nil, or the first error of any part: of settings that name files or variables that
// cannot be read.
func (o *Observer) Run(ctx context.Context) error {
	working, stop := context.WithCancel(ctx)
	list := []component{{"registry", o.Registry}, {"kvindex", o.Index}, {"kvevents", o.Events}, {"enginestats", o.Stats}}
	running := newGroup(len(list))
	running.start(working, list...)
	var failure error
	select {
	case <-ctx.Done():
	case failure = <-running.failed:
	}
	stop()
	running.wait()
	return errors.Join(failure, o.telemetry.Close(context.WithoutCancel(ctx)))
}

// CheckFiles reads the certificates and keys of the router's own addresses, as serve does before it listens, and reports the ones that
// cannot be used.
func CheckFiles(c config.Config) error {
	_, err := serverTLS(c.Listen)
	_, adminErr := adminTLS(c.Listen)
	return errors.Join(err, adminErr)
}
