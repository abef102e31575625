package hostile

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/internal/reports"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/test/stack"
)

const (
	victimKey   = "victim-key-0001"
	attackerKey = "attacker-key-01"
	forwardKey  = "attacker-key-fw"
	observerKey = "observer-key-01"
	adminKey    = "admin-key-00001"
	victimID    = "victims-request-1"
)

func tenants(t *testing.T) *stack.Stack {
	t.Helper()
	return stack.Start(t, stack.Options{Configure: func(c *config.Config) {
		c.API.Keys = []grpcapi.Key{
			{Name: "victim", Key: secret.New(victimKey)}, {Name: "attacker", Key: secret.New(attackerKey)},
			{Name: "attacker", Key: secret.New(forwardKey), Roles: []string{"infer", "route", "forward"}},
			{Name: "watchers", Key: secret.New(observerKey), Roles: []string{"observe"}},
			{Name: "operators", Key: secret.New(adminKey), Admin: true},
		}
		c.Router.UnknownRoutes = true
		c.Admin.Profiles = true
	}})
}

// reply is an answer as a client can tell it from others: ids that the client sent are masked.
type reply struct {
	status int
	body   string
	header string
}

// askWith makes a REST request with a key.
func askWith(t *testing.T, address, key, method, path, body string, header ...string) reply {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{resp.StatusCode, string(text), fmt.Sprint(slices.Sorted(maps.Keys(resp.Header)), resp.Header.Get("X-Kvpilot-Reason"), resp.Header.Get("Content-Type"))}
}

func (r reply) masked(id string) reply {
	r.body = strings.ReplaceAll(r.body, id, "ID")
	return r
}

// field reads a text of a JSON answer.
func (r reply) field(t *testing.T, name string) string {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal([]byte(r.body), &all); err != nil {
		t.Fatalf("%d %s: %v", r.status, r.body, err)
	}
	text, _ := all[name].(string)
	if text == "" {
		t.Fatalf("no %s in %d %s", name, r.status, r.body)
	}
	return text
}

// belongings are what the victim has.
type belongings struct{ decision, reservation, response, background string }

func belongingsOf(t *testing.T, s *stack.Stack) belongings {
	t.Helper()
	chosen := askWith(t, s.HTTP, victimKey, "POST", "/kvpilot/v1/choose", `{"model":"sim","text":"secret plan","request_id":"`+victimID+`","lease":"60s"}`)
	kept := askWith(t, s.HTTP, victimKey, "POST", "/v1/responses", `{"model":"sim","input":"secret plan","max_output_tokens":4}`)
	later := askWith(t, s.HTTP, victimKey, "POST", "/v1/responses", `{"model":"sim","input":"secret plan","max_output_tokens":4000,"background":true}`)
	return belongings{chosen.field(t, "decision_id"), chosen.field(t, "reservation_id"), kept.field(t, "id"), later.field(t, "id")}
}

// counter counts attacks and those that come through.
type counter struct {
	t             *testing.T
	tries, passed int
}

// same checks that a foreign thing is answered as one that does not exist.
func (c *counter) same(name string, foreign, unknown reply) {
	c.t.Helper()
	c.tries++
	if foreign != unknown || foreign.status < 400 {
		c.passed++
		c.t.Errorf("%s tells a foreign one from an unknown one:\n%+v\n%+v", name, foreign, unknown)
	}
}

func (c *counter) hidden(name, text string, secrets ...string) {
	c.t.Helper()
	c.tries++
	for _, s := range secrets {
		if strings.Contains(text, s) {
			c.passed++
			c.t.Errorf("%s shows %q: %.300s", name, s, text)
			return
		}
	}
}

// Item 4: no key reads, releases, reports on, continues or cancels what another tenant has, and what it gets is what it would
// get for a name that nobody ever used.
func TestOtherTenantsThingsAreUnknown(t *testing.T) {
	s := tenants(t)
	own := belongingsOf(t, s)
	n := &counter{t: t}
	attackREST(n, s, own)
	attackOverGRPC(n, s, own)
	attackResponses(n, s, own)

	// The victim still has everything.
	for path, want := range map[string]string{
		"/kvpilot/v1/decisions/" + own.decision:           victimID,
		"/kvpilot/v1/requests/" + victimID + "/decisions": own.decision,
		"/kvpilot/v1/decisions":                           own.decision,
		"/v1/responses/" + own.response:                   own.response,
	} {
		if got := askWith(t, s.HTTP, victimKey, "GET", path, ""); got.status != 200 || !strings.Contains(got.body, want) {
			t.Errorf("the owner's %s: %d %.200s", path, got.status, got.body)
		}
	}
	if got := askWith(t, s.HTTP, victimKey, "POST", "/v1/responses", `{"model":"sim","input":"go on","max_output_tokens":2,"previous_response_id":"`+own.response+`"}`); got.status != 200 {
		t.Errorf("the owner continues: %d %s", got.status, got.body)
	}
	if got := askWith(t, s.HTTP, victimKey, "POST", "/kvpilot/v1/reservations/"+own.reservation+":report", `{"release":{"reason":"RELEASE_REASON_COMPLETED"}}`); got.status != 200 || !strings.Contains(got.body, "EFFECT_APPLIED") {
		t.Errorf("the owner releases: %d %s", got.status, got.body)
	}
	before := n.tries
	attackREST(n, s, own) // after its end, too
	reuseName(n, s, own)
	t.Logf("%d of %d foreign reads, releases, reports, continuations and cancels come through (%d of them after the reservation's end)", n.passed, n.tries, n.tries-before)

	for _, key := range []string{observerKey, adminKey} {
		if got := askWith(t, s.HTTP, key, "GET", "/kvpilot/v1/decisions/"+own.decision, ""); got.status != 200 || !strings.Contains(got.body, `"victim"`) {
			t.Errorf("an observer's view: %d %s", got.status, got.body)
		}
	}
}

func attackREST(n *counter, s *stack.Stack, own belongings) {
	t := n.t
	t.Helper()
	const nothing = "0123456789abcdef01234567"
	for _, key := range []string{attackerKey, forwardKey} {
		for _, path := range []string{"/kvpilot/v1/decisions/ID", "/kvpilot/v1/requests/ID/decisions"} {
			id := own.decision
			if strings.Contains(path, "requests") {
				id = victimID
			}
			n.same("GET "+path, askWith(t, s.HTTP, key, "GET", strings.Replace(path, "ID", id, 1), "").masked(id),
				askWith(t, s.HTTP, key, "GET", strings.Replace(path, "ID", nothing, 1), "").masked(nothing))
		}
		n.hidden("the list", askWith(t, s.HTTP, key, "GET", "/kvpilot/v1/decisions?limit=1000", "").body, own.decision, victimID)
		for _, event := range []string{`"release":{"reason":"RELEASE_REASON_FAILED"}`, `"renew":{}`, `"first_token":{}`, `"progress":{"output_tokens":5}`} {
			for _, more := range []string{``, `"attempt":0,`, `"attempt":1,`, `"tenant":"victim",`} {
				path, body := "/kvpilot/v1/reservations/ID:report", "{"+more+event+"}"
				n.same(body, askWith(t, s.HTTP, key, "POST", strings.Replace(path, "ID", own.reservation, 1), body, "X-Kvpilot-Tenant", "victim").masked(own.reservation),
					askWith(t, s.HTTP, key, "POST", strings.Replace(path, "ID", nothing, 1), body, "X-Kvpilot-Tenant", "victim").masked(nothing))
			}
		}
	}
}

// reuseName asks under the victim's request id, which is another one for another tenant.
func reuseName(n *counter, s *stack.Stack, own belongings) {
	t := n.t
	t.Helper()
	if got := askWith(t, s.HTTP, attackerKey, "POST", "/kvpilot/v1/choose", `{"model":"sim","text":"secret plan","request_id":"`+victimID+`","lease":"60s"}`); got.status != 200 || strings.Contains(got.body, own.reservation) {
		n.passed++
		t.Errorf("the victim's request id gives %d %s", got.status, got.body)
	} else {
		n.tries++
		askWith(t, s.HTTP, attackerKey, "POST", "/kvpilot/v1/reservations/"+got.field(t, "reservation_id")+":report", `{"release":{"reason":"RELEASE_REASON_COMPLETED"}}`)
	}
}

func attackOverGRPC(n *counter, s *stack.Stack, own belongings) {
	t := n.t
	t.Helper()
	conn, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	api := kvpilotv1.NewRoutingServiceClient(conn)
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+attackerKey, "x-kvpilot-tenant", "victim"), 20*time.Second)
	defer cancel()
	told := func(id string, m proto.Message, err error) reply {
		st := status.Convert(err)
		text := st.Message() + fmt.Sprint(st.Details())
		if err == nil {
			return reply{status: 0, body: fmt.Sprint(m)}
		}
		return reply{status: 400 + int(st.Code()), body: text}.masked(id)
	}
	const nothing = "0123456789abcdef01234567"
	for name, call := range map[string]func(id string) (proto.Message, error){
		"ExplainDecision": func(id string) (proto.Message, error) {
			return api.ExplainDecision(ctx, &kvpilotv1.ExplainDecisionRequest{Key: &kvpilotv1.ExplainDecisionRequest_DecisionId{DecisionId: id}})
		},
		"a release": func(id string) (proto.Message, error) {
			return api.ReportReservation(ctx, reports.Release(id, kvpilotv1.ReleaseReason_RELEASE_REASON_FAILED))
		},
		"a renewal":     func(id string) (proto.Message, error) { return api.ReportReservation(ctx, reports.Renew(id)) },
		"a first token": func(id string) (proto.Message, error) { return api.ReportReservation(ctx, reports.FirstToken(id)) },
		"progress":      func(id string) (proto.Message, error) { return api.ReportReservation(ctx, reports.Progress(id, 9)) },
	} {
		m, err := call(own.reservation)
		m2, err2 := call(nothing)
		n.same(name, told(own.reservation, m, err), told(nothing, m2, err2))
	}
	attackTrack(ctx, n, api, own)
	watch, err := api.WatchDecisions(ctx, &kvpilotv1.WatchDecisionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Header(); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{victimKey, attackerKey} { // the first is not seen, the second ends the wait
		askWith(t, s.HTTP, key, "POST", "/kvpilot/v1/choose", `{"model":"sim","text":"secret plan","booking":"BOOKING_DRY_RUN","request_id":"by-`+key+`"}`)
	}
	seen, err := watch.Recv()
	if err != nil {
		t.Fatal(err)
	}
	n.hidden("the watch", fmt.Sprint(seen), victimKey, "victim")
	if _, err := api.GetLoads(ctx, &kvpilotv1.GetLoadsRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("GetLoads: %v", err)
	}
}

// attackTrack binds and releases on a stream whose end releases what was bound.
func attackTrack(ctx context.Context, n *counter, api kvpilotv1.RoutingServiceClient, own belongings) {
	n.t.Helper()
	stream, err := api.TrackReservation(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	for i, id := range []string{own.reservation, "0123456789abcdef01234567"} {
		for _, report := range []*kvpilotv1.ReservationReport{
			reports.Bind(id),
			reports.Completed(id),
		} {
			report.Sequence = uint64(i)
			if err := stream.Send(report); err != nil {
				n.t.Fatal(err)
			}
			out, err := stream.Recv()
			if err != nil {
				n.t.Fatal(err)
			}
			n.tries++
			if out.GetReason() != kvpilotv1.ErrorReason_ERROR_REASON_RESERVATION_NOT_FOUND || out.GetReservation() != nil {
				n.passed++
				n.t.Errorf("on a stream: %v", out)
			}
		}
	}
	if err := stream.CloseSend(); err != nil {
		n.t.Fatal(err)
	}
	for err == nil {
		_, err = stream.Recv()
	}
}

func attackResponses(n *counter, s *stack.Stack, own belongings) {
	t := n.t
	t.Helper()
	const nothing = "resp_0123456789abcdef0123456789abcdef"
	for _, id := range []string{own.response, own.background} {
		for name, call := range map[string]func(id string) reply{
			"GET": func(id string) reply { return askWith(t, s.HTTP, attackerKey, "GET", "/v1/responses/"+id, "") },
			"GET, escaped": func(id string) reply {
				return askWith(t, s.HTTP, attackerKey, "GET", "/v1/responses/%72"+strings.TrimPrefix(id, "r"), "")
			},
			"GET, stream": func(id string) reply {
				return askWith(t, s.HTTP, attackerKey, "GET", "/v1/responses/"+id+"?stream=true", "")
			},
			"cancel": func(id string) reply {
				return askWith(t, s.HTTP, attackerKey, "POST", "/v1/responses/"+id+"/cancel", "")
			},
			"DELETE": func(id string) reply { return askWith(t, s.HTTP, attackerKey, "DELETE", "/v1/responses/"+id, "") },
			"DELETE with the role forward": func(id string) reply {
				return askWith(t, s.HTTP, forwardKey, "DELETE", "/v1/responses/"+id, "{}")
			},
			"below it with the role forward": func(id string) reply {
				return askWith(t, s.HTTP, forwardKey, "GET", "/v1/responses/"+id+"/input_items", "")
			},
			"continue": func(id string) reply { return proceed(t, s, "/v1/responses", `"previous_response_id":"`+id+`"`) },
			"continue, the last of two": func(id string) reply {
				return proceed(t, s, "/v1/responses", `"previous_response_id":null,"previous_response_id":"`+id+`"`)
			},
			"continue, an escaped name": func(id string) reply { return proceed(t, s, "/v1/responses", `"previous_response\u005fid":"`+id+`"`) },
			"continue, an escaped id": func(id string) reply {
				return proceed(t, s, "/v1/responses", `"previous_response_id":"\u0072`+strings.TrimPrefix(id, "r")+`"`)
			},
			"continue, pinned": func(id string) reply {
				return askWith(t, s.HTTP, attackerKey, "POST", "/v1/responses", `{"model":"sim","input":"go on","previous_response_id":"`+id+`"}`, "X-Kvpilot-Pin", replicaID(t, s))
			},
			"continue, streamed": func(id string) reply {
				return proceed(t, s, "/v1/responses", `"stream":true,"previous_response_id":"`+id+`"`)
			},
			"render":            func(id string) reply { return proceed(t, s, "/v1/responses/render", `"previous_response_id":"`+id+`"`) },
			"choose":            func(id string) reply { return proceed(t, s, "/v1/route:choose", `"previous_response_id":"`+id+`"`) },
			"a name of its own": func(id string) reply { return proceed(t, s, "/v1/responses", `"request_id":"`+id+`"`) },
		} {
			foreign, unknown := call(id).masked(id), call(nothing).masked(nothing)
			n.same(name, foreign, unknown)
			n.hidden(name, foreign.body, "secret")
		}
	}
	conn, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-api-key", forwardKey)
	for _, path := range []string{"/v1/responses/" + own.response, "/v1/%72esponses/" + own.response, "/v1/../v1/responses/" + own.response} {
		n.tries++
		stream, err := kvpilotv1.NewInferenceServiceClient(conn).Forward(ctx, &kvpilotv1.ForwardRequest{Method: "GET", Path: path})
		var m *httpbody.HttpBody
		if err == nil {
			m, err = stream.Recv()
		}
		if status.Code(err) != codes.NotFound {
			n.passed++
			t.Errorf("Forward to %s: %v, %v", path, m, err)
		}
	}
}

func proceed(t *testing.T, s *stack.Stack, path, members string) reply {
	t.Helper()
	return askWith(t, s.HTTP, attackerKey, "POST", path, `{"model":"sim","input":"go on","max_output_tokens":2,`+members+`}`)
}

func replicaID(t *testing.T, s *stack.Stack) string {
	t.Helper()
	got := askWith(t, s.HTTP, observerKey, "GET", "/kvpilot/v1/replicas", "")
	var list struct {
		Replicas []struct {
			ID string `json:"replica_id"`
		} `json:"replicas"`
	}
	if err := json.Unmarshal([]byte(got.body), &list); err != nil || len(list.Replicas) == 0 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	return list.Replicas[0].ID
}

// Item 4: a key without the roles for it changes nothing of the fleet and sees nothing of the operators' pages.
func TestKeysWithoutRolesMoveNothing(t *testing.T) {
	s := tenants(t)
	id := replicaID(t, s)
	tries, passed := 0, 0
	for _, a := range []struct{ at, method, path, body string }{
		{s.HTTP, "POST", "/kvpilot/v1/replicas", `{"replica_id":"evil","url":"http://127.0.0.1:1"}`},
		{s.HTTP, "POST", "/kvpilot/v1/replicas/" + id + ":drain", `{}`},
		{s.HTTP, "POST", "/kvpilot/v1/replicas/" + id + ":undrain", `{}`},
		{s.HTTP, "DELETE", "/kvpilot/v1/replicas/" + id, ``},
		{s.HTTP, "POST", "/v1/load_lora_adapter", `{"lora_name":"x","lora_path":"/x"}`},
		{s.HTTP, "POST", "/v1/unload_lora_adapter", `{"lora_name":"x"}`},
		{s.HTTP, "GET", "/kvpilot/v1/loads", ``},
		{s.HTTP, "POST", "/sleep", `{"model":"sim"}`},
		{s.Admin, "GET", "/console/", ``},
		{s.Admin, "GET", "/kvpilot/v1/status", ``},
		{s.Admin, "GET", "/kvpilot/v1/history", ``},
		{s.Admin, "GET", "/kvpilot/v1/traces", ``},
		{s.Admin, "GET", "/kvpilot/v1/replicas", ``},
		{s.Admin, "GET", "/kvpilot/v1/loads", ``},
		{s.Admin, "GET", "/kvpilot/v1/decisions", ``},
		{s.Admin, "GET", "/kvpilot/v1/decisions/x", ``},
		{s.Admin, "POST", "/kvpilot/v1/choose", `{"booking":"BOOKING_DRY_RUN"}`},
		{s.HTTP, "GET", "/kvpilot/v1/status", ``},
		{s.HTTP, "GET", "/kvpilot/v1/history", ``},
		{s.HTTP, "GET", "/kvpilot/v1/traces", ``},
		{s.Admin, "GET", "/debug/pprof/heap", ``},
		{s.Admin, "GET", "/debug/pprof/cmdline", ``},
	} {
		tries++
		if got := askWith(t, a.at, attackerKey, a.method, a.path, a.body); got.status != http.StatusForbidden {
			passed++
			t.Errorf("%s %s: %d %.200s", a.method, a.path, got.status, got.body)
		}
	}
	t.Logf("%d of %d come through", passed, tries)
	for path, want := range map[string]int{"/kvpilot/v1/status": 200, "/kvpilot/v1/decisions": 200, "/kvpilot/v1/config/versions": 403, "/debug/pprof/cmdline": 403} {
		if got := askWith(t, s.Admin, observerKey, "GET", path, ""); got.status != want {
			t.Errorf("an observer's %s: %d", path, got.status)
		}
	}
	for body, want := range map[string]int{`{"text":"x","booking":"BOOKING_DRY_RUN"}`: 200, `{"text":"x"}`: 403} {
		if got := askWith(t, s.Admin, observerKey, "POST", "/kvpilot/v1/choose", body); got.status != want {
			t.Errorf("an observer chooses with %s: %d %s", body, got.status, got.body)
		}
	}
	for _, path := range []string{"/kvpilot/v1/replicas", "/kvpilot/v1/replicas/" + id, "/kvpilot/v1/config:reload", "/v1/chat/completions"} { // nothing but a drain changes here
		if got := askWith(t, s.Admin, adminKey, "POST", path, `{}`); got.status != 404 && got.status != 405 {
			t.Errorf("POST %s at the admin address: %d %s", path, got.status, got.body)
		}
	}
	for _, key := range []string{"", observerKey, attackerKey, adminKey} {
		want := map[string]int{"": http.StatusUnauthorized, adminKey: http.StatusOK}[key]
		if got := askWith(t, s.Admin, key, "POST", "/kvpilot/v1/replicas/"+id+":undrain", `{}`); got.status != cmp.Or(want, http.StatusForbidden) {
			t.Errorf("a drain at the admin address with the key %q: %d %s", key, got.status, got.body)
		}
	}
	if got := askWith(t, s.Admin, adminKey, "POST", "/kvpilot/v1/replicas/"+id+":drain", `{}`, "Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"); got.status != http.StatusForbidden {
		t.Errorf("another origin's page drains with an operator's key: %d %s", got.status, got.body)
	}
	if got := askWith(t, s.Admin, adminKey, "GET", "/debug/pprof/cmdline", ""); got.status != 200 {
		t.Errorf("an admin's profile: %d", got.status)
	}
	if got := askWith(t, s.HTTP, observerKey, "POST", "/v1/chat/completions", good); got.status != http.StatusForbidden {
		t.Errorf("an observer's chat: %d", got.status)
	}
	if got := askWith(t, s.HTTP, attackerKey, "POST", "/v1/chat/completions", good); got.status != http.StatusOK {
		t.Errorf("a chat: %d %s", got.status, got.body)
	}
	for _, path := range []string{"/healthz", "/metrics"} { // open as before
		resp, err := http.Get("http://" + s.Admin + path)
		if err != nil {
			t.Fatal(err)
		}
		first, _ := bufio.NewReader(resp.Body).ReadString('\n')
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %s", path, resp.StatusCode, first)
		}
	}
}
