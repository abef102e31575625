package grpcapi

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

func replicasNamed(ids ...string) []*replica.Replica {
	list := make([]*replica.Replica, len(ids))
	for i, id := range ids {
		list[i] = &replica.Replica{ID: replica.ID(id)}
	}
	return list
}

func namesOf(list []*replica.Replica) string {
	ids := make([]string, len(list))
	for i, r := range list {
		ids[i] = string(r.ID)
	}
	return strings.Join(ids, " ")
}

func TestPagesOfReplicasHaveEachOnce(t *testing.T) {
	ids := make([]string, 1203)
	for i := range ids {
		ids[i] = fmt.Sprintf("r%05d", i)
	}
	all := replicasNamed(ids...)
	for size, want := range map[uint32]string{0: "[500 500 203]", 9999: "[500 500 203]", 401: "[401 401 401]", 601: "[500 500 203]"} {
		in, got, sizes := &kvpilotv1.ListRequest{PageSize: size}, []*replica.Replica(nil), []int(nil)
		for more := true; more; more = in.GetPageToken() != "" {
			page, next, err := replicaPage(in, all)
			if err != nil || len(sizes) > 3 {
				t.Fatalf("size %d: %v after %v", size, err, sizes)
			}
			got, sizes, in.PageToken = append(got, page...), append(sizes, len(page)), next
		}
		if fmt.Sprint(sizes) != want || !slices.Equal(got, all) {
			t.Errorf("size %d: pages of %v, want %s", size, sizes, want)
		}
	}
}

func TestPagesOfReplicasAreStableUnderChange(t *testing.T) {
	in := &kvpilotv1.GetLoadsRequest{PageSize: 2}
	page, next, err := replicaPage(in, replicasNamed("b", "d", "f", "h"))
	if err != nil || namesOf(page) != "b d" {
		t.Fatalf("%s, %v", namesOf(page), err)
	}
	in.PageToken = next
	for now, want := range map[string]string{
		"b d f h":     "f h",
		"a b c f h":   "f h", // the last one of the page has gone, others have come before it
		"b d e f":     "e f",
		"b d":         "",
		"":            "",
		"a b c d e z": "e z",
	} {
		page, _, err := replicaPage(in, replicasNamed(strings.Fields(now)...))
		if err != nil || namesOf(page) != want {
			t.Errorf("of %q: %q, %v; want %q", now, namesOf(page), err, want)
		}
	}
	for _, other := range []paged{
		&kvpilotv1.GetLoadsRequest{PageToken: next, Model: "m"}, &kvpilotv1.ListRequest{PageToken: next, Model: "m"},
		&kvpilotv1.GetLoadsRequest{PageToken: "x"}, &kvpilotv1.GetLoadsRequest{PageToken: "e30"}, &kvpilotv1.GetLoadsRequest{PageToken: next + "AA"},
	} {
		_, _, err := replicaPage(other, nil)
		if e := apierror.From(err); err == nil || e.Reason != apierror.InvalidBody || e.Param != "page_token" {
			t.Errorf("%v: %v", other, err)
		}
	}
}
