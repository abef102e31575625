// Package story keeps the record of a request's steps, from which its spans are drawn when the trace is kept.
//
// A Story belongs to the goroutine of its request until Leave hands it to the surface's span; from then on the goroutine that feeds the
// exporters draws and frees it. A request that is not recorded has no story: the methods of a nil *Story, *Hop and *Leading do nothing, so
// that noting costs it nothing. A story holds no text of a prompt or an answer.
package story
