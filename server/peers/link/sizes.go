package link

import pb "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"

// The size of a message, roughly: small ones have no more than this.
const (
	smallBytes   = 64
	askBytes     = 512
	bookingBytes = 256
	keyBytes     = 8
)

// sizeOfEvent estimates the bytes of an event. It is called for each and looks only at fields that may be large.
func sizeOfEvent(e *pb.FrontendEvent) int {
	switch e := e.GetEvent().(type) {
	case *pb.FrontendEvent_Ask:
		n := askBytes
		for _, k := range e.Ask.GetKeys() {
			n += keyBytes * len(k.GetKeys())
		}
		return n
	case *pb.FrontendEvent_Bookings:
		n := smallBytes
		for _, b := range e.Bookings.GetBookings() {
			n += bookingBytes + keyBytes*len(b.GetKeys().GetKeys())
		}
		return n
	}
	return smallBytes
}

// sizeOfReply estimates the bytes of a reply.
func sizeOfReply(r *pb.DeciderReply) int {
	switch r.GetReply().(type) {
	case *pb.DeciderReply_Chosen, *pb.DeciderReply_Refused:
		return askBytes
	}
	return smallBytes
}
