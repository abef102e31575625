// Package socket reads from and writes to TCP sockets without notifying the scheduler.
//
// Package net announces each system call, so that the scheduler may give the caller's processor
// to another thread. A write to a socket that never blocks still takes as long as the
// kernel's work on the segment, which is longer than the scheduler waits when it looks: under
// load every other chunk of a stream then wakes a thread, which takes the processor from the
// peer that the chunk is for. And each announced call wakes the thread that looks, which then does so
// every 20 µs for a millisecond: a tenth of the time that small requests take. Calls of this package keep the processor; how much one of them
// moves is bounded, because the garbage collector waits for it.
//
// Listener gives connections that read and write so, and Quick makes one of any; Read is one such read, for callers within a
// syscall.RawConn, and PlainRead does the same without keeping the processor. Other systems than Linux get package net's ways. All of it is safe for
// concurrent use, as in package net.
package socket
