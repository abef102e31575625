package server

import (
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"sync/atomic"
	"testing"
)

func TestARouterThatLeavesSendsItsClientsAway(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(protocol, func(t *testing.T) {
			var leaving atomic.Bool
			s := httptest.NewUnstartedServer(closing(&leaving, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
			s.EnableHTTP2 = protocol == "HTTP/2.0"
			s.StartTLS()
			defer s.Close()
			// reused reports whether a request went over a connection that was there.
			reused := func() (again bool) {
				t.Helper()
				ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { again = i.Reused }})
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
				if err != nil {
					t.Fatal(err)
				}
				response, err := s.Client().Do(request)
				if err != nil {
					t.Fatal(err)
				}
				response.Body.Close()
				if response.Proto != protocol {
					t.Fatalf("the answer came by %s", response.Proto)
				}
				return again
			}
			if reused() || !reused() {
				t.Error("connections are not kept")
			}
			leaving.Store(true)
			if !reused() {
				t.Error("a connection was cut off before its next request")
			}
			if reused() {
				t.Error("a connection is kept by a router that leaves")
			}
		})
	}
}
