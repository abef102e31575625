// Package span holds the vocabulary of kvpilot's traces: the names of the spans of one request,
// the keys of their attributes and the events on them.
//
// Names come from OpenTelemetry's semantic conventions where one exists (gen_ai.* from 1.41,
// the last version that has them) and begin with "kvpilot." otherwise. Prompts and outputs are
// never recorded. docs/tracing.md draws the tree.
package span
