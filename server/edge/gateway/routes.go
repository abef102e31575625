package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// route is one binding of an RPC to a method and a path.
type route struct {
	method string
	// rpc is the full name of the method.
	rpc string
	// pattern is the path as the contract writes it: "/v1/models/{model=**}".
	pattern string
	// raw routes stream an engine's answer; others marshal messages of ours.
	raw bool
	// opaque routes take a body as it is, whatever its type; others take JSON.
	opaque bool
	// small routes take messages without a prompt.
	small bool
	// live routes read their body while they answer.
	live bool
	// upgrade routes make a WebSocket of the client's connection.
	upgrade bool
	// handler is the generated one, for routes whose path has no variable.
	handler runtime.HandlerFunc
}

// routes is the contract's table of routes, and a short way past the mux for those that have no
// variable in their path: the mux tries its patterns one by one.
type routes struct {
	exact   map[string][]*route // by path
	pattern map[string][]*route // by pattern, those with variables
}

const (
	httpBodyName = "google.api.HttpBody"
	realtimeName = "kvpilot.v1.InferenceService.Realtime"
)

// readRoutes reads the contract's annotations.
func readRoutes() (*routes, error) {
	t := &routes{exact: map[string][]*route{}, pattern: map[string][]*route{}}
	for _, file := range []protoreflect.FileDescriptor{
		kvpilotv1.File_kvpilot_v1_inference_proto, kvpilotv1.File_kvpilot_v1_routing_proto, kvpilotv1.File_kvpilot_v1_replica_proto,
		kvpilotv1.File_kvpilot_v1_config_proto,
	} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				if err := t.add(methods.Get(j)); err != nil {
					return nil, err
				}
			}
		}
	}
	return t, nil
}

func (t *routes) add(rpc protoreflect.MethodDescriptor) error {
	rule, _ := proto.GetExtension(rpc.Options(), annotations.E_Http).(*annotations.HttpRule)
	if rule == nil {
		return nil
	}
	for _, binding := range append([]*annotations.HttpRule{rule}, rule.GetAdditionalBindings()...) {
		method, pattern := verbOf(binding)
		if method == "" {
			return fmt.Errorf("%s: a binding without a known method", rpc.FullName())
		}
		r := &route{
			method: method, pattern: pattern, rpc: fullName(rpc),
			raw:     rpc.Output().FullName() == httpBodyName && rpc.IsStreamingServer(),
			opaque:  rpc.Input().FullName() == httpBodyName,
			small:   small(rpc.Input()),
			live:    rpc.IsStreamingClient(),
			upgrade: rpc.FullName() == realtimeName,
		}
		if strings.Contains(pattern, "{") {
			t.pattern[pattern] = append(t.pattern[pattern], r)
		} else {
			t.exact[pattern] = append(t.exact[pattern], r)
		}
	}
	return nil
}

// fullName is the name of a method as gRPC writes it.
func fullName(rpc protoreflect.MethodDescriptor) string {
	return "/" + string(rpc.Parent().FullName()) + "/" + string(rpc.Name())
}

func verbOf(rule *annotations.HttpRule) (method, pattern string) {
	switch p := rule.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		return http.MethodGet, p.Get
	case *annotations.HttpRule_Post:
		return http.MethodPost, p.Post
	case *annotations.HttpRule_Put:
		return http.MethodPut, p.Put
	case *annotations.HttpRule_Patch:
		return http.MethodPatch, p.Patch
	case *annotations.HttpRule_Delete:
		return http.MethodDelete, p.Delete
	}
	return "", ""
}

// find returns the route of a path without variables, or nil.
func (t *routes) find(method, path string) *route {
	for _, r := range t.exact[path] {
		if r.method == method {
			return r
		}
	}
	return nil
}

// allowed lists the methods that a path has.
func (t *routes) allowed(mux http.Handler, u *url.URL) []string {
	var list []string
	for _, r := range t.exact[u.Path] {
		list = append(list, r.method)
	}
	if list == nil { // a path with a variable, or none at all: the mux knows
		for _, method := range []string{http.MethodDelete, http.MethodGet, http.MethodPatch, http.MethodPost, http.MethodPut} {
			if probe(mux, method, u, &route{}) {
				list = append(list, method)
			}
		}
	}
	if slices.Contains(list, http.MethodGet) {
		list = append(list, http.MethodHead)
	}
	slices.Sort(list)
	return list
}

type probeKey struct{}

// probe asks the mux which generated handler answers, without calling it, and reports whether there is one.
func probe(mux http.Handler, method string, u *url.URL, found *route) bool {
	ctx := context.WithValue(context.Background(), probeKey{}, found)
	mux.ServeHTTP(nil, (&http.Request{Method: method, URL: u, Header: http.Header{}}).WithContext(ctx))
	return found.handler != nil
}

func isProbe(ctx context.Context) bool {
	_, ok := ctx.Value(probeKey{}).(*route)
	return ok
}

// tidy is u without a slash at its end, where only that way it names a route: engines send clients on to that
// route, which costs them their body twice.
func (t *routes) tidy(u *url.URL) *url.URL {
	path, found := strings.CutSuffix(u.Path, "/")
	if !found || len(t.exact[u.Path]) > 0 || len(t.exact[path]) == 0 {
		return u
	}
	short := *u
	short.Path, short.RawPath = path, ""
	return &short
}

// capture stands between the mux and every generated handler. It catches the handler when resolve
// asks for it; on a real request it tells which route with variables was found.
func (t *routes) capture(next runtime.HandlerFunc) runtime.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, params map[string]string) {
		if found, ok := r.Context().Value(probeKey{}).(*route); ok {
			found.handler = next
			return
		}
		if rq := requestFrom(r.Context()); rq != nil {
			if pattern, ok := runtime.HTTPPattern(r.Context()); ok {
				rq.matched(t.named(r.Method, pattern.String()))
			}
		}
		next(w, r, params)
	}
}

// named finds a route with variables by its pattern as the mux prints it.
func (t *routes) named(method, printed string) *route {
	for _, r := range t.pattern[strings.ReplaceAll(printed, "=*}", "}")] {
		if r.method == method {
			return r
		}
	}
	return nil
}

// resolve finds the generated handler of each route without variables, by asking the mux once.
func (t *routes) resolve(mux *runtime.ServeMux) error {
	var errs []error
	for path, list := range t.exact {
		for _, r := range list {
			if !probe(mux, r.method, &url.URL{Path: path}, r) {
				errs = append(errs, fmt.Errorf("%s %s is in the contract but not in the mux", r.method, path))
			}
		}
	}
	return errors.Join(errs...)
}
