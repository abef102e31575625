// Package placement loads LoRA adapters on more replicas while requests for them are many, and unloads them there when they are few again.
//
// A Rule looks at the fleet at intervals, plans, and calls vLLM's /v1/load_lora_adapter and /v1/unload_lora_adapter, one call per replica at a
// time. It takes an adapter's path from a replica that lists it, and unloads only adapters that it has loaded itself. In a fleet of routers, the decider
// of a pool places its adapters. A Rule is safe for concurrent use; it does nothing unless Config.Spread is set.
package placement
