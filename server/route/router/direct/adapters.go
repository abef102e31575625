package direct

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/route/router/pools"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// HeaderAdapter reports the status of a LoRA adapter's call on each replica: "gpu-1=200 gpu-2=400".
const HeaderAdapter = "X-Kvpilot-Adapter"

// adaptersAtOnce bounds the replicas that load an adapter at the same time: they read one store.
const adaptersAtOnce = 16

// Adapters loads LoRA adapters on all replicas of a pool, and unloads them.
type Adapters struct {
	registry *registry.Registry
	upstream *upstream.Client
	record   adapterRecord
}

// adapterRecord has where adapters are.
type adapterRecord interface {
	AdapterLoaded(r *replica.Replica, adapter string, loaded bool)
}

// loaded is one replica's answer.
type loaded struct {
	status int
	header http.Header
	body   []byte
	err    error
}

// NewAdapters makes an adapters, which has record note where adapters are.
func NewAdapters(r *registry.Registry, client *upstream.Client, record adapterRecord) *Adapters {
	return &Adapters{registry: r, upstream: client, record: record}
}

// Serve answers a call that loads or unloads an adapter.
func (ad *Adapters) Serve(ctx context.Context, rq *intake.Request, d *attempt.Delivery) error {
	req, err := openai.Read(openai.Params{Route: openai.RouteOther, Header: rq.Call.Header, Body: rq.Call.Body})
	if err != nil {
		return intake.BadRequest(err)
	}
	rq.Parsed, rq.Body = req, req.Body
	targets, err := ad.targets(rq, req)
	if err != nil {
		return err
	}
	answers := make([]loaded, len(targets))
	var g errgroup.Group
	g.SetLimit(adaptersAtOnce)
	for i, rep := range targets {
		g.Go(func() error {
			answers[i] = ad.ask(ctx, rq, rep)
			return nil
		})
	}
	_ = g.Wait() // each answer holds its own error
	if ctx.Err() != nil {
		return apierror.From(intake.Cause(ctx, ctx.Err()))
	}
	name, _ := req.Text("lora_name")
	for i, rep := range targets {
		ad.registry.Refresh(rep.ID) // /v1/models lists the adapter now, or no longer
		if name != "" && answers[i].err == nil && answers[i].status == http.StatusOK {
			ad.record.AdapterLoaded(rep, name, !strings.HasSuffix(rq.Call.EnginePath(), "/unload_lora_adapter"))
		}
	}
	return joined(d, targets, answers)
}

// targets are the replicas to ask: those of the pool that the body's model names, of the pool that has the
// adapter, or of the only base model; of them the one that the call is pinned to.
func (ad *Adapters) targets(rq *intake.Request, req *openai.Request) ([]*replica.Replica, error) {
	s := ad.registry.Snapshot()
	pinned := rq.Call.Options.Pinned
	var in []*replica.Replica
	pool, known := s.Pool(req.Model)
	name, _ := req.Text("lora_name")
	switch {
	case req.Model != "" && !known:
		return nil, pools.Unknown(req.Model, s)
	case req.Model != "":
		in = pool.Replicas
	case pinned != "":
		in = s.Replicas
	default:
		if pool, known = s.Pool(name); known && pool.Entry.Parent != "" {
			pool, known = s.Pool(pool.Entry.Parent) // a replica that has not loaded it yet answers for itself
		} else {
			pool, known = pools.OnlyBase(s)
		}
		if !known {
			return nil, apierror.New(apierror.InvalidBody, "the router does not serve exactly one base model: name the adapter's in the field \"model\", or one replica in x-kvpilot-pin", nil, apierror.WithParam("model"))
		}
		in = pool.Replicas
	}
	targets := make([]*replica.Replica, 0, len(in))
	for _, rep := range in {
		if (rep.State == replica.StateReady || rep.State == replica.StateDraining) && (pinned == "" || pinned == rep.ID) {
			targets = append(targets, rep)
		}
	}
	if len(targets) == 0 {
		return nil, apierror.New(apierror.NoReplica, "no replica can take the adapter now", nil)
	}
	slices.SortFunc(targets, func(a, b *replica.Replica) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return targets, nil
}

// ask sends the call to one replica.
func (ad *Adapters) ask(ctx context.Context, rq *intake.Request, rep *replica.Replica) loaded {
	resp, err := ad.upstream.Do(ctx, upstream.Target{Replica: rep}, &upstream.Request{
		Method: rq.Call.EngineMethod(), Path: rq.Call.EnginePath(), Query: rq.Call.RawQuery, Header: rq.Call.Header, ContentType: rq.Call.ContentType,
		RequestID: rq.EngineID(), Steers: rq.Call.Steers, Body: rq.Body,
	})
	if err != nil {
		return loaded{err: err}
	}
	defer resp.Close()
	body, err := resp.ReadAll(attempt.MaxErrorBody)
	return loaded{status: resp.Status, header: resp.Header, body: body, err: err}
}

// joined makes one answer of all: the first refusal counts, else the first answer.
func joined(d *attempt.Delivery, targets []*replica.Replica, answers []loaded) error {
	var each []string
	worst, failed := -1, 0
	for i, a := range answers {
		what := "unreachable"
		if a.err == nil {
			what = strconv.Itoa(a.status)
		}
		each = append(each, string(targets[i].ID)+"="+what)
		if a.err != nil || a.status != http.StatusOK {
			failed++
			if worst < 0 || answers[worst].err == nil && a.err != nil {
				worst = i
			}
		}
	}
	list := strings.Join(each, " ")
	if worst >= 0 && answers[worst].err != nil {
		return apierror.New(apierror.UpstreamError, fmt.Sprintf("%d of %d replicas failed (%s); retry: replicas that already succeeded report it", failed, len(targets), intake.Clip(list, 1024)), answers[worst].err)
	}
	a := answers[max(worst, 0)]
	d.Report(a.status)
	h := http.Header{"Content-Length": {strconv.Itoa(len(a.body))}, HeaderAdapter: {list}}
	if kind := a.header.Get("Content-Type"); kind != "" {
		h.Set("Content-Type", kind)
	}
	if err := d.To.Begin(a.status, h); err != nil {
		return apierror.From(context.Canceled)
	}
	if err := d.To.Write(a.body); err != nil {
		return apierror.From(context.Canceled)
	}
	return nil
}
