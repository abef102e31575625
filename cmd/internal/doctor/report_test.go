package doctor

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestTheReport(t *testing.T) {
	same := Finding{Status: Fail, Expected: "e", Seen: "two\nlines\x1b[31m", Change: "c"}
	a, b := same, same
	a.Subject, b.Subject = "a", "b"
	r := Report{Version: "1.0", Checks: []Result{
		{Check: "fine", Status: OK, Findings: []Finding{ok("x", "well"), ok("y", "well")}},
		{Check: "broken", Status: Fail, Findings: []Finding{a, b, ok("c", "well"), {Subject: "d", Status: Warn, Expected: "e", Seen: "slow", Change: "faster"}}},
		{Check: "empty", Status: OK},
	}}
	var text strings.Builder
	if err := r.WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	const want = `CHECK   RESULT  SEEN
fine    ok      x, y: well
broken  fail    a, b: two lines [31m
empty   ok      nothing to test

FAIL: broken a, b
  expected  e
  seen      two lines [31m
  change    c

WARN: broken d
  expected  e
  seen      slow
  change    faster

3 checks: 2 ok, 1 failed, 0 with warnings, 0 not tested
`
	if text.String() != want {
		t.Errorf("got\n%s\nwant\n%s", text.String(), want)
	}
	text.Reset()
	if err := r.WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal([]byte(text.String()), &back); err != nil || len(back.Checks) != 3 || back.Checks[1].Findings[0].Change != "c" {
		t.Errorf("%v: %+v", err, back)
	}
}
