package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// The vLLM versions that are tested with kvpilot: docs/vllm-compatibility.md and docs/kv-events.md.
const (
	oldestMinor = 9
	newestMinor = 33
)

// checkVersion compares each replica's version with the tested versions, and with the others.
func checkVersion(ctx context.Context, in scope) []Finding {
	seen := map[string]string{}
	list := in.each(func(r *replica.Replica) []Finding {
		e := in.probe(ctx, r)
		return versionOf(string(r.ID), e.Version, e.VersionError)
	})
	left := in.left()
	for _, r := range left {
		if v := in.probe(ctx, r).Version; v != "" {
			seen[string(r.ID)] = v
		}
	}
	names, of := pools(left, func(r *replica.Replica) []replica.Model { return in.probe(ctx, r).Models })
	for _, name := range names {
		list = append(list, mixed(name, of[name], func(r *replica.Replica) string { return seen[string(r.ID)] }, Warn, "one version in a pool",
			"run one vLLM version per pool: chat templates, tokenization and event formats differ between versions; during an update this is expected")...)
	}
	return list
}

func versionOf(subject, version string, err error) []Finding {
	if err != nil || version == "" {
		seen := "it does not say its version"
		if err != nil {
			seen = bare(err)
		}
		return fault(Warn, subject, "vLLM's version from /version", seen, "let proxies pass GET /version; without it kvpilot finds out by trial what the replica can do")
	}
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n < 2 || major == 0 && minor == 0 {
		return []Finding{ok(subject, "%s: a build of its own, taken as a new one", version)}
	}
	tested := fmt.Sprintf("vLLM 0.%d to 0.%d", oldestMinor, newestMinor)
	switch {
	case major == 0 && minor < oldestMinor:
		return fault(Fail, subject, tested, version, fmt.Sprintf("install vLLM 0.%d or later: earlier ones have other routes and publish no KV events", oldestMinor))
	case major > 0 || minor > newestMinor:
		return fault(Warn, subject, tested, version, "this version is newer than those that kvpilot was tested with: look at docs/vllm-compatibility.md of a newer kvpilot, and at the checks tokens and blocks")
	}
	return []Finding{ok(subject, "vLLM %s", version)}
}

// mixed reports values that differ between the replicas of a pool. Empty values count for nothing.
func mixed(pool string, list []*replica.Replica, value func(*replica.Replica) string, status Status, expected, change string) []Finding {
	who := map[string][]string{}
	for _, r := range list {
		if v := value(r); v != "" {
			who[v] = append(who[v], string(r.ID))
		}
	}
	if len(who) < 2 {
		return nil
	}
	var parts []string
	for _, v := range sorted(who) {
		parts = append(parts, fmt.Sprintf("%s on %s", v, few(who[v])))
	}
	return fault(status, pool, expected, strings.Join(parts, "; "), change)
}

// few is a list of names, cut when it is long.
func few(names []string) string {
	if len(names) > 4 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), len(names)-3)
	}
	return strings.Join(names, ", ")
}

// checkModels compares the replicas' models.
func checkModels(ctx context.Context, in scope) []Finding {
	list := in.each(func(r *replica.Replica) []Finding {
		e := in.probe(ctx, r)
		var names []string
		for _, m := range e.Models {
			names = append(names, m.ID)
		}
		switch {
		case e.ModelsError != nil:
			return fault(Fail, string(r.ID), "a list of models from "+r.URL+"/v1/models", bare(e.ModelsError), "is this a vLLM server, and the URL without /v1? Else name the models: models: [NAME] of the replica")
		case len(names) == 0:
			return fault(Fail, string(r.ID), "at least one model", "/v1/models lists none", "start vLLM with a model, or name the models: models: [NAME] of the replica")
		}
		return []Finding{ok(string(r.ID), "%s", strings.Join(names, ", "))}
	})
	list = append(list, in.servedNames(ctx)...)
	left := in.left()
	models := func(r *replica.Replica) []replica.Model { return in.probe(ctx, r).Models }
	names, of := pools(left, models)
	for _, name := range names {
		entry := func(r *replica.Replica) replica.Model {
			i := slices.IndexFunc(models(r), func(m replica.Model) bool { return m.ID == name })
			return models(r)[i]
		}
		list = append(list, mixed(name, of[name], func(r *replica.Replica) string {
			if n := entry(r).MaxLen; n > 0 {
				return fmt.Sprintf("max_model_len %d", n)
			}
			return ""
		}, Fail, "one context length in a pool", "start all replicas of a model with the same --max-model-len: a long request fails on those with less")...)
		list = append(list, mixed(name, of[name], func(r *replica.Replica) string { return entry(r).Root }, Warn, "the same weights behind one name",
			"one served name stands for different weights: give them names of their own with --served-model-name")...)
		list = append(list, mixed(name, of[name], func(r *replica.Replica) string { return adapters(models(r)) }, Warn, "the same LoRA adapters on each replica of a pool",
			"load missing adapters (--lora-modules NAME=PATH, or POST /v1/load_lora_adapter): requests for an adapter go only to the replicas that list it")...)
	}
	return list
}

// adapters names the LoRA adapters among models.
func adapters(models []replica.Model) string {
	var names []string
	for _, m := range models {
		if m.Parent != "" {
			names = append(names, m.ID)
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		return "no adapter"
	}
	return strings.Join(names, "+")
}

// servedNames reports names that settings use and no replica serves.
func (in scope) servedNames(ctx context.Context) (list []Finding) {
	left := in.left()
	if len(left) < len(in.replicas) {
		return nil // one that is not reached may serve it
	}
	served := map[string]bool{}
	for _, r := range left {
		e := in.probe(ctx, r)
		if e.ModelsError != nil {
			return nil
		}
		for _, m := range e.Models {
			served[m.ID] = true
		}
	}
	for _, alias := range sorted(in.conf.Registry.Aliases) {
		if target := in.conf.Registry.Aliases[alias]; !served[target] {
			list = append(list, fault(Fail, "registry.aliases", fmt.Sprintf("a replica that serves %s, which the alias %s stands for", target, alias), "replicas serve "+few(sorted(served)),
				"correct the alias, or start vLLM with --served-model-name "+target)...)
		}
	}
	for _, name := range sorted(in.conf.Tokenizer.Models) {
		if _, alias := in.conf.Registry.Aliases[name]; !served[name] && !alias {
			list = append(list, fault(Warn, "tokenizer.models", "a replica that serves "+name, "replicas serve "+few(sorted(served)), "correct the name: the settings below it have no effect")...)
		}
	}
	return list
}

// checkMetrics reads each replica's metrics as the router does.
func checkMetrics(ctx context.Context, in scope) []Finding {
	list := in.each(func(r *replica.Replica) []Finding { return in.metricsOf(ctx, r) })
	names, of := pools(in.left(), func(r *replica.Replica) []replica.Model { return in.probe(ctx, r).Models })
	for _, name := range names {
		list = append(list, mixed(name, of[name], func(r *replica.Replica) string {
			if e, err := in.measured(ctx, r); err == nil && e.BlockSize > 0 {
				return fmt.Sprintf("block size %d", e.BlockSize)
			}
			return ""
		}, Warn, "one block size in a pool", "start all replicas of a model with the same --block-size: a prompt is hashed once per size, and decisions compare unequal blocks")...)
	}
	return list
}

func (in scope) metricsOf(ctx context.Context, r *replica.Replica) []Finding {
	subject := string(r.ID)
	e, err := in.measured(ctx, r)
	path := r.Metrics() + in.conf.EngineStats.Path
	switch {
	case err != nil && isTimeout(err):
		return fault(Fail, subject, "vLLM's metrics at "+path, fmt.Sprintf("no answer within %s (enginestats.timeout)", in.conf.EngineStats.Timeout), "raise enginestats.timeout, or look why the server is slow")
	case err != nil:
		return fault(Fail, subject, "vLLM's metrics at "+path, strings.TrimPrefix(err.Error(), "poll: "), "do not start vLLM with --disable-log-stats; if metrics are at another port, set metrics_port of the replica; else let proxies pass GET /metrics")
	}
	var list []Finding
	if e.Caching == "False" {
		list = append(list, fault(Fail, subject, "prefix caching switched on", "enable_prefix_caching is False", "start vLLM with --enable-prefix-caching (remove --no-enable-prefix-caching): without it no request finds anything in a cache")...)
	}
	size, blocks := cmp.Or(r.BlockSize, e.BlockSize), cmp.Or(r.Blocks, e.Blocks)
	if size == 0 || blocks == 0 {
		list = append(list, fault(Warn, subject, "block_size and num_gpu_blocks in vllm:cache_config_info", fmt.Sprintf("block size %d, blocks %d", size, blocks),
			"the Rust front end does not report them: set block_size and blocks of the replica to the engine's --block-size and the number of GPU blocks in its log")...)
	}
	if r.BlockSize > 0 && e.BlockSize > 0 && r.BlockSize != e.BlockSize {
		list = append(list, fault(Fail, subject, fmt.Sprintf("the configured block size %d", r.BlockSize), fmt.Sprintf("the engine's is %d", e.BlockSize), "remove block_size of the replica, or set it to the engine's")...)
	}
	if missing := slices.DeleteFunc(slices.Clone(e.Missing), func(name string) bool { return name == "vllm:cache_config_info" }); len(missing) > 0 {
		list = append(list, fault(Warn, subject, "the metrics that kvpilot reads", "missing: "+strings.Join(missing, ", "), "load that others send, restarts and progress are seen later or not at all; let a proxy in between pass all of /metrics")...)
	}
	if len(list) > 0 {
		return list
	}
	return []Finding{ok(subject, "block size %d, %d blocks, prefix caching %s", size, blocks, cmp.Or(map[string]string{"True": "on"}[e.Caching], "not reported"))}
}

// checkRanks compares the number of data-parallel ranks that the router takes a replica to have with the engine's figures.
func checkRanks(ctx context.Context, in scope) []Finding {
	return in.each(func(r *replica.Replica) []Finding {
		e, err := in.measured(ctx, r)
		ranks := len(r.Slots)
		switch {
		case err != nil:
			return []Finding{skip(string(r.ID), "the metrics cannot be read")}
		case e.Ranks > ranks:
			return fault(Fail, string(r.ID), fmt.Sprintf("%d data-parallel ranks, as kvpilot takes it to have", ranks), fmt.Sprintf("metrics of %d engines", e.Ranks),
				fmt.Sprintf("set ranks: %d of the replica (its --data-parallel-size), with event ports that count up from rank 0", e.Ranks))
		case e.Ranks < ranks:
			return fault(Fail, string(r.ID), fmt.Sprintf("%d data-parallel ranks, as configured", ranks), fmt.Sprintf("metrics of %d", e.Ranks),
				fmt.Sprintf("set ranks: %d of the replica, or start vLLM with --data-parallel-size %d", e.Ranks, ranks))
		}
		return []Finding{ok(string(r.ID), "%d", ranks)}
	})
}
