package grpcapi

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

// errPanic is the hidden cause of a call that ended in a bug.
var errPanic = errors.New("panic")

// interceptors run around every call of the contract.
type interceptors struct {
	*admission
	*life
	senders *senders
	rules   rules
	log     *slog.Logger
}

// Unary runs around every unary call, over gRPC and REST.
func (a *interceptors) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
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
func (a *interceptors) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
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
		ss = &checkedStream{ServerStream: ss, around: a, method: m}
	}
	return next(srv, ss)
}

// enter checks the roles of a call's sender: the roles for a REST route are checked here for the second time.
func (a *interceptors) enter(ctx context.Context, method string, m *methodInfo) error {
	who := a.senders.of(ctx)
	if who.May(m.roles) {
		return nil
	}
	return a.permit(who, method, m, originOf(ctx))
}

// check applies the contract's rules to a message of a method that has some.
func (a *interceptors) check(m *methodInfo, req any) error {
	msg, ok := req.(proto.Message)
	if m.raw || !ok {
		return nil
	}
	return a.rules.check(msg)
}

// end gives every error its public form, and records the text that the caller must not see.
func (a *interceptors) end(ctx context.Context, name string, m *methodInfo, began time.Time, panicked any, err error) error {
	if panicked != nil {
		a.metrics.Panics.Add(ctx, 1)
		a.log.Error("a call panicked", "method", name, "panic", panicked, "stack", string(debug.Stack()))
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
		a.log.Log(ctx, level, "call failed", "method", name, "reason", apierror.Name(public.Reason), "error", public, "took", time.Since(began))
	}
	// The value itself, never a wrapped one: grpc-go would send the wrapper's text.
	return public
}

// checkedStream applies the rules to each message that comes in.
type checkedStream struct {
	grpc.ServerStream
	around *interceptors
	method *methodInfo
}

func (s *checkedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil || s.method.each {
		return err
	}
	return s.around.check(s.method, m)
}

// rules are the contract's rules for messages.
type rules struct {
	validator protovalidate.Validator
	metrics   *metrics
}

// check returns all that a message breaks.
func (r rules) check(msg proto.Message) error {
	err := r.validator.Validate(msg)
	if err == nil {
		return nil
	}
	r.metrics.Refused.Add("rules")
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
