// Package reports makes the contract's reports about reservations, for tests and measurements.
package reports

import kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"

// FirstToken reports the first token.
func FirstToken(id string) *kvpilotv1.ReservationReport {
	return &kvpilotv1.ReservationReport{ReservationId: id, Event: &kvpilotv1.ReservationReport_FirstToken{FirstToken: &kvpilotv1.FirstTokenReport{}}}
}

// Progress reports the output tokens since the start.
func Progress(id string, tokens uint32) *kvpilotv1.ReservationReport {
	return &kvpilotv1.ReservationReport{ReservationId: id, Event: &kvpilotv1.ReservationReport_Progress{Progress: &kvpilotv1.ProgressReport{OutputTokens: tokens}}}
}

// Renew renews the lease.
func Renew(id string) *kvpilotv1.ReservationReport {
	return &kvpilotv1.ReservationReport{ReservationId: id, Event: &kvpilotv1.ReservationReport_Renew{Renew: &kvpilotv1.RenewalReport{}}}
}

// Release ends the reservation.
func Release(id string, reason kvpilotv1.ReleaseReason) *kvpilotv1.ReservationReport {
	return &kvpilotv1.ReservationReport{ReservationId: id, Event: &kvpilotv1.ReservationReport_Release{Release: &kvpilotv1.ReleaseReport{Reason: reason}}}
}

// Completed ends the reservation of a request that was answered.
func Completed(id string) *kvpilotv1.ReservationReport {
	return Release(id, kvpilotv1.ReleaseReason_RELEASE_REASON_COMPLETED)
}

// Bind binds the reservation to a stream.
func Bind(id string) *kvpilotv1.ReservationReport {
	return &kvpilotv1.ReservationReport{ReservationId: id, Event: &kvpilotv1.ReservationReport_Bind{Bind: &kvpilotv1.BindReport{}}}
}
