package ask

// Reporting is the way in which reports about a request reach this process.
type Reporting struct {
	Streamed bool // the tokens of the answer are seen as they come
	Leased   bool // a caller outside of this process reports
	Silent   bool // the first token may not be seen
	External bool // a caller outside of the fleet sends the request: all that is known of it is the caller's word
}

// Reporting is the way of the reports about the request.
func (req *Request) Reporting() Reporting {
	leased := req.Lease != 0
	return Reporting{
		Streamed: !req.Unstreamed, Leased: leased, Silent: req.Silent(), External: leased || req.Quiet && req.AskedBy != "",
	}
}

// SeesFirst reports whether the report of the first token is about the first token: it always is where the holder of a lease says so.
// Of an answer in one piece that this process carries it is the whole answer.
func (r Reporting) SeesFirst() bool { return r.Streamed || r.Leased }
