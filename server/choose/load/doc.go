// Package load counts the work that was sent to each rank and has not ended: the Book.
//
// Reserve books a request on a rank's slot and returns its Reservation. ReserveIf does the
// same only when nothing else was booked there since the caller looked, so that choosing and
// booking are one atomic step. PrefillDone, Progress and Release move the booking through its
// life; each may be called late, twice or out of order and then answers with an Outcome and
// changes nothing. A reservation belongs to the stream that holds it and never expires, or it
// has a lease, which every report renews and Run's sweep ends.
//
// A Book is safe for concurrent use. View takes no lock and costs nanoseconds; calls on
// different reservations meet only on a shard of the id map and on the rank they share. Every
// map is bounded. Loads are exact for the bookings made here. The book limits nothing and chooses
// nothing: that is the work of holdqueue and chooser.
//
// Locks nest in this order: shard, Reservation, rank.
package load
