package gateway

import (
	"context"
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
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// route is one binding of an RPC to a method and a path.
type route struct {
	method string
	// rpc is the full name of the method.
	rpc string
	// pattern is the path as the contract writes it: "/v1/models/{model=**}".
	pattern string
	// raw routes carry an HttpBody in either direction. They call the method directly; others go through the generated handlers.
	raw bool
	// small routes take messages without a prompt.
	small bool
	takes taking
}

// taking is the kind of body that a route takes.
type taking uint8

const (
	takesJSON    taking = iota
	takesAny            // of any content type
	takesForm           // a form, which the handler reads while it arrives
	takesLive           // messages, which the handler answers while they arrive
	takesUpgrade        // none: the connection becomes a WebSocket
)

func takingOf(rpc protoreflect.MethodDescriptor, pattern string) taking {
	switch {
	case rpc.FullName() == realtimeName:
		return takesUpgrade
	case rpc.IsStreamingClient():
		return takesLive
	case openai.RouteOf(pattern).TakesForm():
		return takesForm
	case rpc.Input().FullName() == httpBodyName || strings.Contains(pattern, "{"):
		return takesAny
	}
	return takesJSON
}

// takes returns the kind of body that a path takes; paths without a route take any.
func (r routed) takes() taking {
	if r.route == nil {
		return takesAny
	}
	return r.route.takes
}

// rpc returns the full name of the method; empty when there is none.
func (r routed) rpc() string {
	if r.route == nil {
		return ""
	}
	return r.route.rpc
}

// routed is where a request goes.
type routed struct {
	route   *route            // nil when there is none
	params  map[string]string // the variables of the path
	pattern string            // the route as metrics and spans name it; empty when there is none
}

// routes is the contract's table of routes.
type routes struct {
	// exact are the routes without a variable, by path: the mux compares its patterns one by one.
	exact map[string][]*route
	// patterns matches the paths of the others. Its handlers only report the match.
	patterns *runtime.ServeMux
}

const (
	httpBodyName = "google.api.HttpBody"
	realtimeName = "kvpilot.v1.InferenceService.Realtime"
)

// readRoutes reads the contract's annotations.
func readRoutes() (*routes, error) {
	none := func(context.Context, *runtime.ServeMux, runtime.Marshaler, http.ResponseWriter, *http.Request, int) {}
	malformed := func(context.Context, *runtime.ServeMux, runtime.Marshaler, http.ResponseWriter, *http.Request, error) {
	}
	t := &routes{exact: map[string][]*route{}, patterns: runtime.NewServeMux(
		runtime.WithRoutingErrorHandler(none), runtime.WithErrorHandler(malformed),
		runtime.WithDisableHTTPMethodOverride(), runtime.WithDisablePathLengthFallback(),
	)}
	for _, file := range []protoreflect.FileDescriptor{
		kvpilotv1.File_kvpilot_v1_inference_proto, kvpilotv1.File_kvpilot_v1_routing_proto, kvpilotv1.File_kvpilot_v1_replica_proto,
		kvpilotv1.File_kvpilot_v1_config_proto, kvpilotv1.File_kvpilot_v1_router_proto,
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
	name := "/" + string(rpc.Parent().FullName()) + "/" + string(rpc.Name())
	for _, binding := range append([]*annotations.HttpRule{rule}, rule.GetAdditionalBindings()...) {
		method, pattern := verbOf(binding)
		if method == "" {
			return fmt.Errorf("%s: a binding without a known method", rpc.FullName())
		}
		r := &route{
			method: method, pattern: pattern, rpc: name,
			raw:   rpc.Input().FullName() == httpBodyName || rpc.Output().FullName() == httpBodyName,
			small: small(rpc.Input()), takes: takingOf(rpc, pattern),
		}
		if !strings.Contains(pattern, "{") {
			t.exact[pattern] = append(t.exact[pattern], r)
			continue
		}
		report := func(w http.ResponseWriter, _ *http.Request, params map[string]string) {
			if m, ok := w.(*match); ok {
				m.routed = routed{r, params, pattern}
			}
		}
		if err := t.patterns.HandlePath(method, pattern, report); err != nil {
			return fmt.Errorf("%s: %w", rpc.FullName(), err)
		}
	}
	return nil
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

// match is the route and the variables of a path. It is the ResponseWriter through which the handlers of routes.patterns
// report; nothing is written to it.
type match struct {
	http.ResponseWriter
	routed
}

// find returns the route of a path. Routes without variables have nil params.
func (t *routes) find(method string, u *url.URL) routed {
	if list := t.exact[u.Path]; len(list) > 0 {
		for _, r := range list {
			if r.method == method {
				return routed{route: r, pattern: r.pattern}
			}
		}
		return routed{}
	}
	var m match
	t.patterns.ServeHTTP(&m, &http.Request{Method: method, URL: u})
	return m.routed
}

// allowed lists the methods that a path has.
func (t *routes) allowed(u *url.URL) []string {
	var list []string
	for _, method := range []string{http.MethodDelete, http.MethodGet, http.MethodPatch, http.MethodPost, http.MethodPut} {
		if t.find(method, u).route != nil {
			list = append(list, method)
		}
	}
	if slices.Contains(list, http.MethodGet) {
		list = append(list, http.MethodHead)
	}
	slices.Sort(list)
	return list
}

// trimSlash is u without a slash at its end when only that path has a route. Engines redirect such clients, which then send
// their body twice.
func (t *routes) trimSlash(u *url.URL) *url.URL {
	path, found := strings.CutSuffix(u.Path, "/")
	if !found || len(t.exact[u.Path]) > 0 || len(t.exact[path]) == 0 {
		return u
	}
	short := *u
	short.Path, short.RawPath = path, ""
	return &short
}
