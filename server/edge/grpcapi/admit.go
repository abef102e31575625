package grpcapi

import (
	"context"
	"net/http"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/edge/callers"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/observe/audit"
)

// admission identifies the senders of calls before anything of their messages is read, and checks their roles.
type admission struct {
	callers *callers.Callers
	methods map[string]*methodInfo
	// tenantHeader is the header of gateways, tenantKey the same as metadata have it.
	tenantHeader, tenantKey string
	audit                   *audit.Log
	metrics                 *metrics
}

// Known reports whether a method is one of the contract's.
func (a *admission) Known(method string) bool { return a.methods[method] != nil }

// Admit identifies the sender of a gRPC call before anything of its message is read.
func (a *admission) Admit(ctx context.Context, method string, md metadata.MD) (*caller.Caller, error) {
	m := a.methods[method]
	if m == nil {
		return nil, nil
	}
	by := callers.Credentials{Key: single(md, "x-api-key"), Authorization: single(md, "authorization"), Tenant: single(md, a.tenantKey), Client: single(md, "x-kvpilot-client-credential")}
	from := origin{requestID: single(md, "x-request-id")}
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			by.TLS = &info.State
		}
		from.address = httpcall.Host(p.Addr.String())
	}
	who, err := a.callers.Identify(by)
	if err != nil {
		return nil, a.unknown(err, method, from)
	}
	if err := a.permit(who, method, m, from); err != nil {
		return nil, err
	}
	return who, nil
}

// Authorize identifies the sender of a REST request before its body is read. rpc is the method that the route stands for;
// without a method, only the credentials are checked.
func (a *admission) Authorize(r *http.Request, requestID, rpc string) (*caller.Caller, error) {
	by := credentialsOf(r)
	by.Tenant, by.Client = r.Header.Get(a.tenantHeader), r.Header.Get(callers.HeaderClient)
	return a.authorize(r, by, requestID, rpc)
}

// Admin identifies the senders of requests to the admin surface, where browsers send a key as the password of basic authentication.
type Admin struct{ admission *admission }

// Admin returns the senders of the admin surface.
func (a *admission) Admin() Admin { return Admin{a} }

// Authorize is API.Authorize for the admin surface.
func (a Admin) Authorize(r *http.Request, requestID, rpc string) (*caller.Caller, error) {
	return a.admission.authorize(r, browserCredentials(r), requestID, rpc)
}

func credentialsOf(r *http.Request) callers.Credentials {
	return callers.Credentials{Key: r.Header.Get("X-Api-Key"), Authorization: r.Header.Get("Authorization"), TLS: r.TLS}
}

func browserCredentials(r *http.Request) callers.Credentials {
	by := credentialsOf(r)
	if _, password, ok := r.BasicAuth(); ok {
		by.Key = password
	}
	return by
}

func (a *admission) authorize(r *http.Request, by callers.Credentials, requestID, rpc string) (*caller.Caller, error) {
	who, err := a.callers.IdentifyWaiting(r.Context(), by)
	from := origin{httpcall.Host(r.RemoteAddr), requestID}
	m := a.methods[rpc]
	if m == nil {
		rpc = r.URL.Path
	}
	if err == nil && m != nil {
		return who, a.permit(who, rpc, m, from)
	}
	return who, a.unknown(err, rpc, from)
}

// Allow checks that the sender of a request to the admin surface has one of the roles.
func (a Admin) Allow(r *http.Request, roles caller.Roles) error {
	from, path := origin{httpcall.Host(r.RemoteAddr), r.Header.Get(httpcall.HeaderRequestID)}, r.URL.Path
	who, err := a.admission.callers.IdentifyWaiting(r.Context(), browserCredentials(r))
	if err != nil {
		return a.admission.unknown(err, path, from)
	}
	if err := a.admission.permit(who, path, &methodInfo{roles: roles}, from); err != nil {
		return err
	}
	if who.By != caller.Open && (strings.HasPrefix(path, "/console") || strings.HasPrefix(path, "/debug")) {
		a.admission.audit.Write(audit.Event{Kind: audit.Read, Outcome: audit.OK, Address: from.address, RequestID: from.requestID, Method: path}.From(who))
	}
	return nil
}

// unknown counts and records a refusal of credentials, and returns it.
func (a *admission) unknown(err error, method string, from origin) error {
	if err == nil {
		return nil
	}
	a.metrics.Refused.Add("unauthenticated")
	public := apierror.From(err)
	a.audit.Write(audit.Event{
		Kind: audit.Refused, Outcome: apierror.Name(public.Reason), Address: from.address, RequestID: from.requestID, Method: method, Detail: public.Message,
	})
	return err
}

// permit rejects a caller that has none of a method's roles.
func (a *admission) permit(who *caller.Caller, method string, m *methodInfo, from origin) error {
	if who.May(m.roles) {
		return nil
	}
	a.metrics.Refused.Add("role")
	needs := m.roles &^ caller.Admin
	if needs == 0 {
		needs = caller.Admin
	}
	err := apierror.New(apierror.PermissionDenied, "the caller needs the role "+strings.ReplaceAll(needs.String(), ",", " or "), nil)
	a.audit.Write(audit.Event{
		Kind: audit.Refused, Outcome: apierror.Name(err.Reason), Address: from.address, RequestID: from.requestID, Method: method,
	}.From(who))
	return err
}
