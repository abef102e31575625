// Package adapters keeps which LoRA adapters each rank's engine has in GPU memory, as far as a router can know, and prices a request's adapter
// on each rank.
//
// vLLM does not say what is resident: its metric names the adapters with a request in flight, and its list of models all that it could load.
// So a Fleet keeps its own record: adapters come into it when requests are booked, when a call loads them, or when the metric names them, and
// leave it as they leave the engine, the least recently used first, once there are more than the engine has slots (max_loras). How long a load
// takes is learned from the first tokens of requests that had to wait for one.
//
// A Fleet is safe for concurrent use. Requests without an adapter do not touch it.
package adapters
