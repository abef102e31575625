// Package streambench measures the cost of kvpilot on the way of a stream, against
// httputil.ReverseProxy and other proxies in front of the same fake upstream.
//
// Upstream, proxy and load are processes of their own, so that each one's CPU time can be
// distinguished. The load process is the process that calls Run; it starts the others from the same
// binary (Serve* are their main functions) and ends them. Latency is the time from the
// upstream's write of a chunk to the load's read of it; CPU is the proxy process's user and
// system time. Subjects take turns within each case, so that a noisy machine hits all alike.
package streambench
