package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

func TestOutcomes(t *testing.T) {
	for status, want := range map[int]retry.Verdict{200: retry.OK, 204: retry.OK, 307: retry.OK, 400: retry.ClientFault, 404: retry.ClientFault, 422: retry.ClientFault,
		429: retry.Refused, 500: retry.EngineError, 501: retry.ClientFault, 502: retry.Gateway, 503: retry.Unavailable, 504: retry.Gateway} {
		got := Classify(&Response{Status: status}, nil)
		if got != want {
			t.Errorf("%d: got %v, want %v", status, got, want)
		}
		if status >= 400 && status < 500 && got.Fault() {
			t.Errorf("%d counts against the replica", status)
		}
		retry := status == 429 || status == 500 || status == 502 || status == 503 || status == 504
		if got.Retryable() != retry {
			t.Errorf("%d: retryable %v, want %v", status, got.Retryable(), retry)
		}
	}
	if o := Classify(nil, fmt.Errorf("wrapped: %w", context.Canceled)); o != retry.Canceled || o.Fault() || o.Retryable() {
		t.Errorf("canceled: got %v", o)
	}
	if o := Classify(nil, errors.New("other")); o != retry.OwnFault {
		t.Errorf("unknown error: got %v", o)
	}
}

func TestARequestThatCannotBeWrittenIsItsOwnFault(t *testing.T) {
	c := New(DefaultConfig(), Params{})
	target := Target{Replica: &replica.Replica{ID: "r", URL: "http://127.0.0.1:1"}}
	for name, r := range map[string]Request{
		"a space in the query": {Method: "POST", Path: "/v1/chat/completions", Query: "a=b c"},
		"a line in the query":  {Method: "POST", Path: "/v1/chat/completions", Query: "a=b\r\nX: y"},
		"a space in the path":  {Method: "POST", Path: "/v1/chat completions"},
		"no path":              {Method: "POST"},
		"no method":            {Method: "PO ST", Path: "/"},
	} {
		_, err := c.Do(t.Context(), target, &r)
		if got := Classify(nil, err); got != retry.Unsendable || got.Fault() || got.Retryable() || got.Cause() != retry.CauseRequest {
			t.Errorf("%s: %v (%v), caused by the %v", name, got, err, got.Cause())
		}
	}
	c.transport.shut()
	if _, err := c.Do(t.Context(), target, &Request{Method: "POST", Path: "/"}); Classify(nil, err) != retry.OwnFault {
		t.Errorf("after the client was closed: %v (%v)", Classify(nil, err), err)
	}
}

// ahead is a context whose deadline has passed and which has not been told.
type ahead struct{ context.Context }

func (ahead) Deadline() (time.Time, bool) { return time.Now().Add(-time.Millisecond), true }

func TestTheCallersDeadlineIsNoFaultOfTheReplica(t *testing.T) {
	timeout := &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		want retry.Verdict
	}{
		"the caller's time is over": {ahead{context.Background()}, timeout, retry.Canceled},
		"another failure then":      {ahead{context.Background()}, &net.OpError{Op: "dial", Err: os.ErrPermission}, retry.Unreachable},
		"the dial took too long":    {context.Background(), timeout, retry.Unreachable},
	} {
		if got := Classify(nil, failed(c.ctx, "r", phaseDial, c.err)); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestTheConfigurationIsChecked(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	if err := (Config{}).Validate(); err == nil {
		t.Error("an empty configuration passes")
	}
}
