// Package ledger counts the resources that the process holds for its callers, and ends holdings without progress.
//
// There is one Ledger in a process. It has two pots: Bytes, for request bodies and for answers that wait for their readers,
// and Places, for streams and connections at their fixed cost. Bytes are counted when they are held, never when they are
// announced. An Account is the part of one request, call or connection; each charge counts for the process, for the tenant and
// for the address. A party (a tenant, or an address without credentials) holds at most half of the free room of a pot, so that one of
// them alone leaves half of the pot and k of them leave a part of k+1.
//
// Refused charges end slow holdings: a Hold is a body that arrives or an answer that leaves, and one that is slower than the
// least rate ends when its room is wanted. Listener gives connections that the Ledger counts, and closes the idle ones first when
// files or places run out.
//
// A Ledger, its Accounts, Holds and Conns are safe for concurrent use. The package starts no goroutine.
package ledger
