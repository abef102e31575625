package grpcapi

import (
	"context"
	"net"
	"net/http"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/kvpilot/kvpilot/server/apierror"
	"github.com/kvpilot/kvpilot/server/inproc"
)

// Known reports whether a method is one of the contract's.
func (a *API) Known(method string) bool { return a.methods[method] != nil }

// CarriesPrompt reports whether a method's messages may be as large as prompts are.
func (a *API) CarriesPrompt(method string) bool {
	m := a.methods[method]
	return m != nil && m.prompt
}

// Admit names the tenant of a gRPC call by its metadata, before anything of its message is read.
func (a *API) Admit(method string, md metadata.MD) (tenant string, err error) {
	m := a.methods[method]
	if a.keys.Load() == nil || m == nil {
		return "", nil
	}
	who, err := a.allowed(m, single(md, "x-api-key"), single(md, "authorization"))
	return who.tenant, err
}

// Authorize names the tenant of a REST request by its headers, before its body is read.
func (a *API) Authorize(h http.Header) (tenant string, err error) {
	who, err := a.keys.Load().find(h)
	if err != nil {
		a.metrics.refused.Add(context.Background(), 1, a.metrics.unknownKey)
	}
	return who.tenant, err
}

// allowed finds the holder of a key and whether it may call the method. It counts refusals.
func (a *API) allowed(m *methodInfo, key, authorization string) (holder, error) {
	who, err := a.keys.Load().holder(key, authorization)
	if err != nil {
		a.metrics.refused.Add(context.Background(), 1, a.metrics.unknownKey)
		return holder{}, err
	}
	if m.admin && !who.admin {
		a.metrics.refused.Add(context.Background(), 1, a.metrics.notAllowed)
		return holder{}, apierror.New(apierror.PermissionDenied, "the API key may not change the fleet or the settings", nil)
	}
	return who, nil
}

// mayRegister refuses registration where anybody could register.
func (a *API) mayRegister() error {
	if a.keys.Load() != nil || a.Registration {
		return nil
	}
	return apierror.New(apierror.PermissionDenied, "registration is off: set registry.registration.enabled, or use API keys", nil)
}

// clientOf is the address that a call came from, without its port.
func clientOf(ctx context.Context) string {
	address := ""
	if e := inproc.FromContext(ctx); e != nil {
		address = e.RemoteAddr
	} else if p, ok := peer.FromContext(ctx); ok {
		address = p.Addr.String()
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	return host
}

func single(md metadata.MD, name string) string {
	if v := md[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}
