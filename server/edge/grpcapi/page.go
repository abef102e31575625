package grpcapi

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
	"github.com/kvpilot/kvpilot/server/observe/decisionlog"
)

const (
	// mostList bounds the decisions of one answer, and mostListBytes their size, of which one decision may be more.
	mostList      = 100
	mostListBytes = 1 << 20
	// disorder is how many decisions more are looked at: requests are recorded almost in the order of their times.
	disorder = 32
)

// page is one answer of a list.
type page struct {
	size  int
	older decisionlog.Place
	// end is the last place that the page may have: behind it, decisions of another router are missing. Zero: any.
	end decisionlog.Place
}

// endAt ends the page at a place, unless it ends before.
func (p *page) endAt(at decisionlog.Place) {
	if p.end.At.IsZero() || p.end.Behind(at) {
		p.end = at
	}
}

// pageOf reads which page a request wants.
func pageOf(in *kvpilotv1.ListDecisionsRequest) (page, error) {
	p := page{size: mostList}
	if n := in.GetPageSize(); n > 0 {
		p.size = int(min(n, mostList))
	}
	var err error
	p.older, _, err = readToken[decisionlog.Place](in)
	return p, err
}

// placeOf is a record's place in a list.
func placeOf(d *kvpilotv1.Decision) decisionlog.Place {
	return decisionlog.Place{At: d.GetTime().AsTime(), ID: d.GetDecisionId(), Attempt: int(d.GetAttempt())}
}

// cut sorts the decisions, keeps the page's, and sets the token of the next one.
func (p page) cut(in *kvpilotv1.ListDecisionsRequest, out *kvpilotv1.ListDecisionsResponse) {
	list := out.GetDecisions()
	if !p.older.At.IsZero() { // a router of an older version knows no pages
		list = slices.DeleteFunc(list, func(d *kvpilotv1.Decision) bool { return !placeOf(d).Behind(p.older) })
	}
	slices.SortFunc(list, func(a, b *kvpilotv1.Decision) int {
		switch pa, pb := placeOf(a), placeOf(b); {
		case pb.Behind(pa):
			return -1
		case pa.Behind(pb):
			return 1
		}
		return 0
	})
	n, bytes := 0, 0
	for n < min(len(list), p.size) {
		if !p.end.At.IsZero() && placeOf(list[n]).Behind(p.end) {
			break
		}
		bytes += proto.Size(list[n])
		if n > 0 && bytes > mostListBytes {
			break
		}
		n++
	}
	out.Decisions = list[:n]
	if n == 0 || n == len(list) && p.end.At.IsZero() {
		return
	}
	clear(list[n:])
	last := placeOf(out.Decisions[n-1])
	out.NextPageToken = tokenAfter(in, decisionlog.Place{At: last.At.UTC().Round(0), ID: last.ID, Attempt: last.Attempt})
}

const (
	// listMemory is the memory for the answer of a list while it is made, and answerMemory for a smaller one.
	listMemory   = 3 * mostListBytes
	answerMemory = 1 << 20
)

// hold charges a call, before its answer is made, with the memory that this takes.
func hold(ctx context.Context, bytes int64) error {
	if e := httpcall.From(ctx); e != nil {
		return guard.Refused(e.Account.TakeSoon(ctx, ledger.Answer, bytes))
	}
	return guard.Reserve(ctx, bytes)
}
