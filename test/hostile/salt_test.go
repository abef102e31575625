package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/edge/callers"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/test/stack"
)

// tenants gives the callers named keys: the key of "a" is "key-of-a-".
func addTenants(c *config.Config, names ...string) {
	for _, name := range names {
		c.API.Keys = append(c.API.Keys, callers.Key{Name: name, Key: secret.New("key-of-" + name + "-")})
	}
}

// as sends a body with a tenant's key.
func as(t *testing.T, s *stack.Stack, tenant, path, body string) (*http.Response, []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.HTTP+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer key-of-"+tenant+"-")
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, text
}

// cached is what the engine says that it had of the prompt.
func cached(t *testing.T, text []byte) int {
	t.Helper()
	var answer struct {
		Usage struct {
			Details *struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
			Input *struct {
				Cached int `json:"cached_tokens"`
			} `json:"input_tokens_details"`
			Anthropic int `json:"cache_read_input_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	switch u := answer.Usage; {
	case u.Details != nil:
		return u.Details.Cached
	case u.Input != nil:
		return u.Input.Cached
	default:
		return u.Anthropic
	}
}

func oneReplica(change func(*config.Config)) stack.Options {
	return stack.Options{Replicas: 1, Configure: change}
}

// secrets are one long text on each route that has a prompt cache. Texts of different numbers differ from their first
// word on.
func secrets(number int) map[string]string {
	text := strconv.Itoa(number) + strings.Repeat(" The tenant's own secret contract, clause by clause.", 40)
	return map[string]string{
		"/v1/chat/completions": `{"model":"sim","max_tokens":2,"messages":[{"role":"user","content":"` + text + `"}]}`,
		"/v1/completions":      `{"model":"sim","max_tokens":2,"prompt":"as text ` + text + `"}`,
		"/v1/messages":         `{"model":"sim","max_tokens":2,"messages":[{"role":"user","content":"for messages ` + text + `"}]}`,
		"/v1/responses":        `{"model":"sim","max_output_tokens":2,"input":"for responses ` + text + `"}`,
	}
}

// Item 6: a tenant cannot find out what another one has sent, neither from kvpilot's headers and decisions nor from
// what the engine had in its cache.
func TestCacheOracle(t *testing.T) {
	s := stack.Start(t, oneReplica(func(c *config.Config) {
		addTenants(c, "victim", "thief")
		c.Router.TenantSalt, c.Router.TenantSaltSecret = intake.SwitchOn, secret.New("a secret of the fleet")
	}))
	guesses, hits, found, looked := 0, 0, 0, 0
	// The thief guesses the very prompt, each time one that it has not sent before, and the victim's salt as it might be.
	for number, more := range []string{``, `"cache_salt":"victim",`, `"cache_salt":"key-of-victim-",`, `"cache_salt":null,`} {
		for n := range 10 {
			for path, body := range secrets(100*number + n) {
				as(t, s, "victim", path, body)
				resp, text := as(t, s, "victim", path, body)
				looked++
				if cached(t, text) > 0 && resp.Header.Get("X-Kvpilot-Overlap-Tokens") != "0" {
					found++
				}
				resp, text = as(t, s, "thief", path, strings.Replace(body, `{`, `{`+more, 1))
				guesses++
				if resp.StatusCode != http.StatusOK {
					t.Fatalf("%s: %d %s", path, resp.StatusCode, text)
				}
				if cached(t, text) > 0 || resp.Header.Get("X-Kvpilot-Overlap-Tokens") != "0" {
					hits++
				}
			}
		}
	}
	if hits > 0 || found != looked {
		t.Errorf("%d of %d guesses hit; the victim found its own blocks %d of %d times", hits, guesses, found, looked)
	}
	t.Logf("%d of %d guesses told anything; the victim's own blocks were found %d of %d times", hits, guesses, found, looked)
}

// Item 6: without the salt, kvpilot itself does not tell.
func TestOverlapIsNotTold(t *testing.T) {
	s := stack.Start(t, oneReplica(func(c *config.Config) { addTenants(c, "victim", "thief") }))
	asked, told := 0, 0
	for path, body := range secrets(1) {
		as(t, s, "victim", path, body)
		resp, _ := as(t, s, "thief", path, body)
		asked++
		if resp.Header.Get("X-Kvpilot-Overlap-Tokens") != "" || resp.Header.Get("X-Kvpilot-Choice") != "" {
			told++
		}
		for _, route := range []string{"/v1/route:choose", "/v1/route:choose?x"} {
			asked++
			resp, text := as(t, s, "thief", route, body)
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("%s: %d %s", route, resp.StatusCode, text)
			}
			var choice map[string]any
			if err := json.Unmarshal(text, &choice); err != nil {
				t.Fatal(err)
			}
			for _, field := range []string{"overlapGpuTokens", "overlap_gpu_tokens", "predictedTtft", "predicted_ttft", "reason", "decision"} {
				if v := choice[field]; v != nil && v != 0.0 && v != "" && v != "CHOICE_REASON_UNSPECIFIED" {
					t.Errorf("%s tells %s: %v", route, field, v)
					told++
				}
			}
		}
	}
	if told > 0 {
		t.Errorf("%d of %d answers tell what replicas hold", told, asked)
	}
	t.Logf("%d of %d answers tell what replicas hold", told, asked)
}

// Item 9: a tenant over its limits is told so in the words of the API that it calls, and another one is served.
func TestLimitsInTheWordsOfEachAPI(t *testing.T) {
	s := stack.Start(t, oneReplica(func(c *config.Config) {
		addTenants(c, "limited", "tokens", "free")
		c.Tenants = quota.Config{"limited": {RequestsPerSecond: 0.05}, "tokens": {TokensPerMinute: 60}}
	}))
	resp, text := as(t, s, "limited", "/v1/chat/completions", good)
	if resp.StatusCode != http.StatusOK || resp.Header.Get("X-Ratelimit-Limit-Requests") != "1" || resp.Header.Get("X-Ratelimit-Remaining-Requests") != "0" {
		t.Fatalf("the first request: %d %s %v", resp.StatusCode, text, resp.Header)
	}
	resp, text = as(t, s, "limited", "/v1/chat/completions", good)
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
	millis, _ := strconv.Atoi(resp.Header.Get("Retry-After-Ms"))
	if resp.StatusCode != http.StatusTooManyRequests || !strings.Contains(string(text), `"type":"rate_limit_error"`) || !strings.Contains(string(text), `"code":"rate_limit_exceeded"`) {
		t.Errorf("OpenAI's form: %d %s", resp.StatusCode, text)
	}
	if seconds < 15 || seconds > 20 || millis > seconds*1000 || millis <= (seconds-1)*1000 || resp.Header.Get("X-Ratelimit-Reset-Requests") == "" {
		t.Errorf("headers %v", resp.Header)
	}
	resp, text = as(t, s, "limited", "/v1/messages", `{"model":"sim","max_tokens":2,"messages":[{"role":"user","content":"hi"}]}`)
	if resp.StatusCode != http.StatusTooManyRequests || !strings.HasPrefix(string(text), `{"type":"error","error":{"type":"rate_limit_error"`) {
		t.Errorf("Anthropic's form: %d %s", resp.StatusCode, text)
	}
	conn, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer key-of-limited-"), 10*time.Second)
	defer cancel()
	stream, err := kvpilotv1.NewInferenceServiceClient(conn).ChatCompletions(ctx, &httpbody.HttpBody{Data: []byte(good)})
	if err == nil {
		_, err = stream.Recv()
	}
	checkStatus(t, err)
	_, err = kvpilotv1.NewRoutingServiceClient(conn).ChooseReplica(ctx, &kvpilotv1.ChooseReplicaRequest{Model: "sim"})
	checkStatus(t, err)

	// Tokens: the first request goes and takes more than there is, the next one waits for it to be paid for.
	as(t, s, "tokens", "/v1/chat/completions", good)
	as(t, s, "tokens", "/v1/chat/completions", `{"model":"sim","max_tokens":50,"ignore_eos":true,"messages":[{"role":"user","content":"hi"}]}`)
	resp, text = as(t, s, "tokens", "/v1/chat/completions", `{"model":"sim","max_tokens":50,"ignore_eos":true,"messages":[{"role":"user","content":"hi"}]}`)
	if resp.StatusCode != http.StatusTooManyRequests || !strings.Contains(string(text), "tokens per minute") || resp.Header.Get("X-Ratelimit-Limit-Tokens") != "60" {
		t.Errorf("tokens: %d %s %v", resp.StatusCode, text, resp.Header)
	}
	if resp, text := as(t, s, "free", "/v1/chat/completions", good); resp.StatusCode != http.StatusOK || resp.Header.Get("X-Ratelimit-Limit-Requests") != "" {
		t.Errorf("a tenant without limits: %d %s", resp.StatusCode, text)
	}
}

// checkStatus looks at a refusal as gRPC clients see it.
func checkStatus(t *testing.T, err error) {
	t.Helper()
	st := status.Convert(err)
	var retry *errdetails.RetryInfo
	var info *errdetails.ErrorInfo
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.RetryInfo:
			retry = d
		case *errdetails.ErrorInfo:
			info = d
		}
	}
	if st.Code() != codes.ResourceExhausted || info.GetReason() != "RATE_LIMIT_EXCEEDED" || info.GetMetadata()["x-ratelimit-remaining-requests"] != "0" {
		t.Errorf("gRPC's form: %v %v", err, info)
	}
	if d := retry.GetRetryDelay().AsDuration(); d < 15*time.Second || d > 20*time.Second {
		t.Errorf("retry in %s", fmt.Sprint(d))
	}
}
