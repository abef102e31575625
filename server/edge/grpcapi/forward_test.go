package grpcapi_test

import (
	"context"
	"testing"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/edge/callers"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// forwardRig is a router whose callers have the roles that their keys say.
func forwardRig(t *testing.T) (*rig, func(roles string) context.Context) {
	t.Helper()
	conf := grpcapi.DefaultConfig()
	for _, roles := range []string{"forward", "infer", "admin", "steer"} {
		conf.Keys = append(conf.Keys, callers.Key{Name: "t", Key: secret.New("key-of-" + roles), Roles: []string{roles}})
	}
	conf.Keys[3].Roles = []string{"infer", "steer"}
	r := newRig(t, conf)
	r.router.serve = func(_ context.Context, _ *intake.Call, to intake.Sink) error { return to.Write([]byte("x")) }
	return r, func(roles string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "key-of-"+roles)
	}
}

func TestForwardTakesOnePathOnly(t *testing.T) {
	r, as := forwardRig(t)
	forward := func(roles, path, query string) error {
		r.router.call = nil
		stream, err := kvpilotv1.NewInferenceServiceClient(r.socket).Forward(as(roles), &kvpilotv1.ForwardRequest{Path: path, Query: query, Body: []byte("{}")})
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = recvAll(stream)
		return err
	}
	for _, c := range [][2]string{
		{"/../metrics"}, {"//evil"}, {"/%6detrics"}, {"/a/./b"}, {"/a//b"}, {"/x%2fy"}, {`/x\y`}, {"/a b"}, {"/a\r\nX: y"}, {"/a?b=c"}, {"/a#b"}, {"http://evil/x"},
		{"/a", "b=c d"}, {"/a", "b\x00"}, {"/a", "b#c"},
	} {
		if err := forward("forward", c[0], c[1]); status.Code(err) != codes.InvalidArgument || r.router.call != nil {
			t.Errorf("%q %q: %v", c[0], c[1], err)
		}
	}
	if err := forward("forward", "/v1/chat/completions/", ""); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a path with a method of its own, without its role: %v", err)
	}
	if err := forward("admin", "/v1/chat/completions/", ""); err != nil || r.router.call.Route != openai.RouteChat || r.router.call.Path != "/v1/chat/completions" {
		t.Errorf("a known path is not forwarded as its route: %v, %+v", err, r.router.call)
	}
	if err := forward("forward", "/new/route", "a=%20"); err != nil || r.router.call.Path != "/new/route" || r.router.call.Route != openai.RouteOther {
		t.Errorf("%v, %+v", err, r.router.call)
	}
	if err := forward("admin", "/v1/load_lora_adapter", ""); status.Code(err) != codes.NotFound {
		t.Errorf("an adapter's path: %v", err)
	}
}

func TestOnlyTheRoleSteerSteers(t *testing.T) {
	r, as := forwardRig(t)
	for roles, want := range map[string]bool{"infer": false, "steer": true, "admin": true} {
		stream, err := kvpilotv1.NewInferenceServiceClient(r.socket).ChatCompletions(as(roles), &httpbody.HttpBody{Data: []byte("{}")})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := recvAll(stream); err != nil || r.router.call.Steers != want {
			t.Errorf("%s: %v, steers %v", roles, err, r.router.call.Steers)
		}
	}
	open := newRig(t, grpcapi.DefaultConfig())
	open.router.serve = r.router.serve
	stream, err := kvpilotv1.NewInferenceServiceClient(open.socket).ChatCompletions(t.Context(), &httpbody.HttpBody{Data: []byte("{}")})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := recvAll(stream); err != nil || open.router.call.Steers {
		t.Errorf("without credentials: %v, %+v", err, open.router.call)
	}
}

func TestAdaptersNeedARoleOrASetting(t *testing.T) {
	load := func(r *rig, ctx context.Context) codes.Code {
		stream, err := kvpilotv1.NewInferenceServiceClient(r.socket).LoadAdapter(ctx, &httpbody.HttpBody{Data: []byte("{}")})
		if err == nil {
			_, _, err = recvAll(stream)
		}
		return status.Code(err)
	}
	keyed, as := forwardRig(t)
	for roles, want := range map[string]codes.Code{"infer": codes.PermissionDenied, "forward": codes.PermissionDenied, "admin": codes.OK} {
		if got := load(keyed, as(roles)); got != want {
			t.Errorf("%s: %v", roles, got)
		}
	}
	conf := grpcapi.DefaultConfig()
	open := newRig(t, conf)
	open.router.serve = keyed.router.serve
	if got := load(open, t.Context()); got != codes.PermissionDenied {
		t.Errorf("without credentials: %v", got)
	}
	conf.OpenAdapters = true
	open.api.UseOverrides(conf)
	if got := load(open, t.Context()); got != codes.OK {
		t.Errorf("without credentials, with api.open_adapters: %v", got)
	}
}
