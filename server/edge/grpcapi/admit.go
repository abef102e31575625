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

// Known reports whether a method is one of the contract's.
func (a *API) Known(method string) bool { return a.methods[method] != nil }

// origin is where a call came from, for the audit log.
type origin struct{ address, requestID string }

func originOf(ctx context.Context) origin {
	if e := httpcall.From(ctx); e != nil {
		return origin{e.Client, e.RequestID}
	}
	md, _ := metadata.FromIncomingContext(ctx)
	if p := passedOn(ctx); p != nil {
		return origin{p.address, single(md, "x-request-id")}
	}
	return origin{clientOf(ctx), single(md, "x-request-id")}
}

// Admit identifies the sender of a gRPC call before anything of its message is read.
func (a *API) Admit(ctx context.Context, method string, md metadata.MD) (*caller.Caller, error) {
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
	who, err := a.Callers.Identify(by)
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
func (a *API) Authorize(r *http.Request, requestID, rpc string) (*caller.Caller, error) {
	by := credentialsOf(r)
	by.Tenant, by.Client = r.Header.Get(a.tenantHeader), r.Header.Get(callers.HeaderClient)
	return a.authorize(r, by, requestID, rpc)
}

// Admin identifies the senders of requests to the admin surface, where browsers send a key as the password of basic authentication.
type Admin struct{ api *API }

// Admin returns the senders of the admin surface.
func (a *API) Admin() Admin { return Admin{a} }

// Authorize is API.Authorize for the admin surface.
func (a Admin) Authorize(r *http.Request, requestID, rpc string) (*caller.Caller, error) {
	return a.api.authorize(r, browserCredentials(r), requestID, rpc)
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

func (a *API) authorize(r *http.Request, by callers.Credentials, requestID, rpc string) (*caller.Caller, error) {
	who, err := a.Callers.IdentifyWaiting(r.Context(), by)
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
	who, err := a.api.Callers.IdentifyWaiting(r.Context(), browserCredentials(r))
	if err != nil {
		return a.api.unknown(err, path, from)
	}
	if err := a.api.permit(who, path, &methodInfo{roles: roles}, from); err != nil {
		return err
	}
	if who.By != caller.Open && (strings.HasPrefix(path, "/console") || strings.HasPrefix(path, "/debug")) {
		a.api.Audit.Write(audit.Event{Kind: audit.Read, Outcome: audit.OK, Address: from.address, RequestID: from.requestID, Method: path}.From(who))
	}
	return nil
}

// unknown counts and records a refusal of credentials, and returns it.
func (a *API) unknown(err error, method string, from origin) error {
	if err == nil {
		return nil
	}
	a.metrics.refused.Add(context.Background(), 1, a.metrics.unknownKey)
	public := apierror.From(err)
	a.Audit.Write(audit.Event{
		Kind: audit.Refused, Outcome: apierror.Name(public.Reason), Address: from.address, RequestID: from.requestID, Method: method, Detail: public.Message,
	})
	return err
}

// permit rejects a caller that has none of a method's roles.
func (a *API) permit(who *caller.Caller, method string, m *methodInfo, from origin) error {
	if who.May(m.roles) {
		return nil
	}
	a.metrics.refused.Add(context.Background(), 1, a.metrics.notAllowed)
	needs := m.roles &^ caller.Admin
	if needs == 0 {
		needs = caller.Admin
	}
	err := apierror.New(apierror.PermissionDenied, "the caller needs the role "+strings.ReplaceAll(needs.String(), ",", " or "), nil)
	a.Audit.Write(audit.Event{
		Kind: audit.Refused, Outcome: apierror.Name(err.Reason), Address: from.address, RequestID: from.requestID, Method: method,
	}.From(who))
	return err
}

// record writes what a call did to the fleet, or what it read, into the audit log.
func (a *API) record(ctx context.Context, kind audit.Kind, method, target string, err error) {
	a.recordWith(ctx, audit.Event{Kind: kind, Method: method, Target: target}, err)
}

// recordWith completes an event with the caller and the outcome, and writes it.
func (a *API) recordWith(ctx context.Context, e audit.Event, err error) {
	from := originOf(ctx)
	e.Outcome, e.Address, e.RequestID = audit.OK, from.address, from.requestID
	if err != nil {
		e.Outcome = apierror.Name(apierror.From(err).Reason)
	}
	a.Audit.Write(e.From(a.caller(ctx)))
}

// recordRead writes that a call reads what belongs to other tenants. Without credentials there are none. A call that another router
// has passed on is written there.
func (a *API) recordRead(ctx context.Context, method, target string) {
	if who := a.caller(ctx); who.By != caller.Open && who.May(caller.Observe) && passedOn(ctx) == nil {
		a.record(ctx, audit.Read, method, target, nil)
	}
}

// mayRegister rejects registration without credentials unless the operator allows it.
func (a *API) mayRegister() error {
	if !a.Callers.Open() || a.Registration {
		return nil
	}
	return apierror.New(apierror.PermissionDenied, "registration is off: set registry.registration.enabled, or use API keys", nil)
}

// mayLoadAdapters rejects changes of all engines without credentials unless the operator allows them.
func (a *API) mayLoadAdapters() error {
	if !a.Callers.Open() || a.conf.Load().OpenAdapters {
		return nil
	}
	return apierror.New(apierror.PermissionDenied, "adapters are loaded and unloaded by callers with the role admin, and this router has no credentials: set api.keys, or api.open_adapters", nil)
}

// clientOf is the address that a call came from, without its port.
func clientOf(ctx context.Context) string {
	if e := httpcall.From(ctx); e != nil {
		return e.Client
	}
	if p, ok := peer.FromContext(ctx); ok {
		return httpcall.Host(p.Addr.String())
	}
	return ""
}

func single(md metadata.MD, name string) string {
	if v := md[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}
