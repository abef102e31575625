// Package kvblock holds the vocabulary of KV cache events: the blocks that a rank has stored, removed or cleared,
// independent of the encoding it arrived in.
//
// Package kvevents decodes engines' messages into these values and package kvindex applies
// them; neither imports the other. Slices inside an event belong to the sender and are valid
// only until the call that hands the event over returns.
package kvblock
