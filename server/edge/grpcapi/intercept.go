package grpcapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
)

// errPanic is the hidden cause of a call that ended in a bug.
var errPanic = errors.New("panic")

// caller is the sender of a call. It has no role when credentials are needed and were not checked.
func (a *API) caller(ctx context.Context) *caller.Caller {
	var who *caller.Caller
	if e := httpcall.From(ctx); e != nil {
		who = e.Caller
	} else if c := guard.FromContext(ctx); c != nil {
		who = c.Caller
	} else if p := passedOn(ctx); p != nil {
		return p.caller
	}
	switch {
	case who != nil:
		return who
	case a.Callers.Open():
		return a.anonymous
	}
	return &caller.Caller{}
}

// tenant owns what a call makes; empty when no credentials are asked for.
func (a *API) tenant(ctx context.Context) string { return a.caller(ctx).Tenant }

// observes reports whether the caller may see what belongs to others.
func (a *API) observes(ctx context.Context) bool { return a.caller(ctx).May(caller.Observe) }

// Unary runs around every unary call, over gRPC and REST.
func (a *API) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	m := a.methods[info.FullMethod]
	if m == nil {
		return next(ctx, req) // health and reflection
	}
	began := time.Now()
	defer func() { err = a.end(ctx, info.FullMethod, m, began, recover(), err) }()
	if err := a.enter(ctx, info.FullMethod, m); err != nil {
		return nil, err
	}
	if err := a.check(m, req); err != nil {
		return nil, err
	}
	return next(ctx, req)
}

// Stream runs around every streaming call, over gRPC and REST.
func (a *API) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	m := a.methods[info.FullMethod]
	if m == nil && strings.HasPrefix(info.FullMethod, "/grpc.reflection.") {
		return a.untilLeave(func() error { return next(srv, ss) })
	}
	if m == nil {
		return next(srv, ss)
	}
	began := time.Now()
	defer func() { err = a.end(ss.Context(), info.FullMethod, m, began, recover(), err) }()
	if err := a.enter(ss.Context(), info.FullMethod, m); err != nil {
		return err
	}
	if !m.raw {
		ss = &checkedStream{ServerStream: ss, api: a, method: m}
	}
	return next(srv, ss)
}

// enter checks the roles of a call's sender: those of a REST route are checked here for the second time.
func (a *API) enter(ctx context.Context, method string, m *methodInfo) error {
	who := a.caller(ctx)
	if who.May(m.roles) {
		return nil
	}
	return a.permit(who, method, m, originOf(ctx))
}

// check applies the contract's rules.
func (a *API) check(m *methodInfo, req any) error {
	msg, ok := req.(proto.Message)
	if m.raw || !ok {
		return nil
	}
	err := a.rules.Validate(msg)
	if err == nil {
		return nil
	}
	a.metrics.refused.Add(context.Background(), 1, a.metrics.brokenRules)
	broken, ok := errors.AsType[*protovalidate.ValidationError](err)
	if !ok || len(broken.Violations) == 0 {
		return err
	}
	list := make([]apierror.Violation, len(broken.Violations))
	for i, v := range broken.Violations {
		list[i] = apierror.Violation{Field: protovalidate.FieldPathString(v.Proto.GetField()), Description: v.Proto.GetMessage()}
	}
	return apierror.Violated(list, err)
}

// end gives every error its public form, and records what the caller must not see.
func (a *API) end(ctx context.Context, name string, m *methodInfo, began time.Time, panicked any, err error) error {
	if panicked != nil {
		a.metrics.panics.Add(ctx, 1)
		a.Log.Error("a call panicked", "method", name, "panic", panicked, "stack", string(debug.Stack()))
		return apierror.New(apierror.Internal, "internal error", errPanic)
	}
	if err == nil {
		return nil
	}
	public := apierror.From(err)
	if !m.raw { // the router has logged the others
		level := slog.LevelDebug
		if public.Fault() == apierror.FaultOurs {
			level = slog.LevelError
		}
		a.Log.Log(ctx, level, "call failed", "method", name, "reason", apierror.Name(public.Reason), "error", public, "took", time.Since(began))
	}
	// The value itself, never a wrapped one: grpc-go would send the wrapper's text.
	return public
}

// checkedStream applies the rules to each message that comes in.
type checkedStream struct {
	grpc.ServerStream
	api    *API
	method *methodInfo
}

func (s *checkedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil || s.method.each {
		return err
	}
	return s.api.check(s.method, m)
}

// headers are a REST client's headers, or a gRPC client's metadata in the same form.
func headers(ctx context.Context) http.Header {
	if e := httpcall.From(ctx); e != nil {
		return e.Header
	}
	md, _ := metadata.FromIncomingContext(ctx)
	h := make(http.Header, len(md))
	for key, values := range md {
		if key == "" || key[0] == ':' || transportKey(key) {
			continue
		}
		h[http.CanonicalHeaderKey(key)] = values
	}
	return h
}

// transportKey reports metadata that belongs to gRPC itself.
func transportKey(key string) bool {
	switch key {
	case "content-type", "te", "user-agent", "host", "connection":
		return true
	}
	return strings.HasPrefix(key, "grpc-") || strings.HasSuffix(key, "-bin")
}
