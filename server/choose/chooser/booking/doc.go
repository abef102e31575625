// Package booking books the pick of an evaluation, and makes its Choice: a reservation of the load book and the observers of the request. It makes the
// choice again when another request was booked on the rank in between.
package booking
