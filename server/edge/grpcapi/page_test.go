package grpcapi_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
)

// pages reads a list to its end, and returns the ids and the sizes of its pages.
func pages(t *testing.T, list func(*kvpilotv1.ListDecisionsRequest) (*kvpilotv1.ListDecisionsResponse, error), in *kvpilotv1.ListDecisionsRequest) (ids []string, sizes []int) {
	t.Helper()
	for range 100 {
		out, err := list(in)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range out.GetDecisions() {
			ids = append(ids, d.GetDecisionId())
		}
		sizes = append(sizes, len(out.GetDecisions()))
		if in.PageToken = out.GetNextPageToken(); in.GetPageToken() == "" {
			return ids, sizes
		}
	}
	t.Fatal("the list has no end")
	return nil, nil
}

func TestListsHavePages(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	began := time.Now().Add(-time.Hour)
	var want []string
	for i := range 250 {
		id := fmt.Sprintf("%04d", i)
		// Two have each time, so that pages end between equal ones.
		r.decisions.Add(&decision.Decision{
			Request: decision.Request{ID: id, Model: "m"},
			At:      began.Add(time.Duration(i/2) * time.Second),
			Ranks:   decision.Ranks{Candidates: []decision.Candidate{{RankID: decision.RankID{Replica: "r0"}}}},
		})
		want = append(want, id)
	}
	slices.Reverse(want)
	client := kvpilotv1.NewRoutingServiceClient(r.socket)
	list := func(in *kvpilotv1.ListDecisionsRequest) (*kvpilotv1.ListDecisionsResponse, error) {
		return client.ListDecisions(t.Context(), in)
	}
	for name, c := range map[string]struct {
		in    *kvpilotv1.ListDecisionsRequest
		sizes string
	}{
		"by default":           {&kvpilotv1.ListDecisionsRequest{}, "[100 100 50]"},
		"beyond the bound":     {&kvpilotv1.ListDecisionsRequest{PageSize: 1000}, "[100 100 50]"},
		"of a size":            {&kvpilotv1.ListDecisionsRequest{PageSize: 99}, "[99 99 52]"},
		"that end exactly":     {&kvpilotv1.ListDecisionsRequest{PageSize: 50}, "[50 50 50 50 50]"},
		"with another's model": {&kvpilotv1.ListDecisionsRequest{Model: "other"}, "[0]"},
	} {
		ids, sizes := pages(t, list, c.in)
		if fmt.Sprint(sizes) != c.sizes || (c.sizes != "[0]" && !slices.Equal(ids, want)) {
			t.Errorf("pages %s: %v, want %s; in order %t", name, sizes, c.sizes, slices.Equal(ids, want))
		}
	}
	for _, token := range []string{"x", "e30", "!"} {
		if _, err := list(&kvpilotv1.ListDecisionsRequest{PageToken: token}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "page_token") {
			t.Errorf("the token %q: %v", token, err)
		}
	}
	first, err := list(&kvpilotv1.ListDecisionsRequest{PageSize: 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := list(&kvpilotv1.ListDecisionsRequest{PageSize: 3, PageToken: first.GetNextPageToken()}); err != nil {
		t.Errorf("a page of another size: %v", err)
	}
	if _, err := list(&kvpilotv1.ListDecisionsRequest{Model: "m", PageToken: first.GetNextPageToken()}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("the token of another list: %v", err)
	}
}

func TestPagesOfLargeDecisionsAreShort(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	candidates := make([]decision.Candidate, 2000)
	for i := range candidates {
		candidates[i].Replica = replica.ID("a-replica-with-a-long-name-" + fmt.Sprint(i))
	}
	for i := range 60 {
		r.decisions.Add(&decision.Decision{
			Request: decision.Request{ID: fmt.Sprintf("%04d", i), Model: "m"},
			At:      time.Now(),
			Ranks:   decision.Ranks{Candidates: candidates},
		})
	}
	client := kvpilotv1.NewRoutingServiceClient(r.socket)
	ids, sizes := pages(t, func(in *kvpilotv1.ListDecisionsRequest) (*kvpilotv1.ListDecisionsResponse, error) {
		return client.ListDecisions(t.Context(), in)
	}, &kvpilotv1.ListDecisionsRequest{})
	if len(ids) != 60 || len(sizes) < 4 || slices.Max(sizes) > 20 {
		t.Errorf("%d decisions on pages of %v", len(ids), sizes)
	}
}

// The patience of a question to other routers is virtual here: long pages take their time under the race detector.
func TestPagesOfAFleetMissNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleetRig(t, keyed)
		began := time.Now().Add(-time.Hour)
		large := make([]decision.Candidate, 1000)
		for i := range large {
			large[i].Replica = replica.ID("a-replica-with-a-long-name-" + fmt.Sprint(i))
		}
		var want []string
		for i := range 260 {
			d := &decision.Decision{Request: decision.Request{Tenant: "team", Model: "m"}, At: began.Add(time.Duration(i) * time.Second)}
			at := []string{idA, idB, idC}[i%3]
			if d.ID = fmt.Sprintf("%s%04d", at, i); at == idC && i > 218 { // its pages are shorter than those of the others
				d.Candidates = large
			}
			record(f.nodes[at], d)
			want = append(want, d.ID)
		}
		slices.Reverse(want)
		for _, router := range []string{idA, idC} {
			got, sizes := pages(t, func(in *kvpilotv1.ListDecisionsRequest) (*kvpilotv1.ListDecisionsResponse, error) {
				return f.routing(router).ListDecisions(as(t, "ops"), in)
			}, &kvpilotv1.ListDecisionsRequest{})
			if !slices.Equal(got, want) {
				t.Errorf("at %s: %d decisions on pages of %v, in order and without gaps: false, want all %d", router, len(got), sizes, len(want))
			}
		}
	})
}
