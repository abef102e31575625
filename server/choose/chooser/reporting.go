package chooser

// reporting is the way in which reports about a request reach this process.
type reporting struct {
	streamed bool // the tokens of the answer are seen as they come
	leased   bool // a caller outside of this process reports
	silent   bool // the first token may not be seen
	external bool // a caller outside of the fleet sends the request: all that is known of it is the caller's word
}

func (req *Request) reporting() reporting {
	leased := req.Lease != 0
	return reporting{
		streamed: !req.Unstreamed, leased: leased, silent: req.Silent(), external: leased || req.Quiet && req.AskedBy != "",
	}
}

// seesFirst reports whether the report of the first token is about the first token: it always is where the holder of a lease says so.
// Of an answer in one piece that this process carries it is the whole answer.
func (r reporting) seesFirst() bool { return r.streamed || r.leased }
