// Package eventbench measures the way of KV events from an engine's socket into the index.
//
// The engines are a process of their own: their cost is not counted, and their scheduler is not
// ours. Run starts them, follows their feeds with the real kvevents.Plane into a real kvindex.Index,
// and reports how many blocks a processor takes in per second, and how long after its publication a
// batch is visible at a steady rate. Publish is the other side.
package eventbench
