package grpcapi

import (
	"net/http"
	"net/url"
	"path"
	"strings"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// forwarding passes on paths that the contract does not have.
type forwarding struct {
	router    answering
	calls     calls
	admission *admission
	enabled   bool
}

func (s *forwarding) Forward(in *kvpilotv1.ForwardRequest, out bodies) error {
	who := s.calls.senders.of(out.Context())
	if !s.enabled || guarded(in.GetPath(), who.By == caller.Open) {
		return apierror.New(apierror.RouteNotFound, "there is no such route", nil)
	}
	at, route, err := s.target(in, who)
	if err != nil {
		return err
	}
	method := in.GetMethod()
	if method == "" {
		method = http.MethodPost
	}
	call, err := s.calls.raw(out.Context(), method, at)
	if err != nil {
		return err
	}
	call.Path, call.Route, call.RawQuery = at, route, in.GetQuery()
	call.Body, call.ContentType = in.GetBody(), contentType(out.Context(), in.GetContentType())
	to := sinkFor(out)
	return finish(to, s.router.Serve(out.Context(), call, to))
}

// target is where a forwarded call goes: a path that has one reading. The path of a method of its own is that method's route,
// and needs the roles of it.
func (s *forwarding) target(in *kvpilotv1.ForwardRequest, who *caller.Caller) (at string, route openai.Route, err error) {
	at = in.GetPath()
	if err := httpcall.CheckPath(at); err != nil {
		return "", 0, invalid("path", err.Error())
	}
	if err := httpcall.CheckQuery(in.GetQuery()); err != nil {
		return "", 0, invalid("query", err.Error())
	}
	short := strings.TrimSuffix(at, "/")
	for name, m := range s.admission.methods {
		if m.path == short && short != "" {
			if err := s.admission.permit(who, name, m, origin{}); err != nil {
				return "", 0, err
			}
			at = short
		}
	}
	if route = openai.RouteOf(at); route == openai.RouteRealtime {
		return "", 0, errNoUpgrade()
	}
	return at, route, nil
}

// guarded reports whether a path, escaped in any way, has its own method, which checks owners and roles. Without credentials
// there are no owners.
func guarded(name string, open bool) bool {
	for range 3 { // engines unescape once; proxies before them may too
		plain, err := url.PathUnescape(name)
		if err != nil {
			return true
		}
		name = plain
	}
	name = strings.ToLower(path.Clean("/" + name))
	for _, root := range []string{"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/responses"} {
		if root == "/v1/responses" && open {
			continue
		}
		if rest, found := strings.CutPrefix(name, root); found && (rest == "" || rest[0] == '/' || rest[0] == '?' || rest[0] == '#') {
			return true
		}
	}
	return false
}
