package grpcapi_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// Each method lets in the roles that the table of docs/api.md names, and no others.
func TestRolesOfEachMethod(t *testing.T) {
	c := grpcapi.DefaultConfig()
	roles := []string{"infer", "route", "observe", "forward", "admin", "gateway"}
	for _, role := range roles {
		c.Keys = append(c.Keys, grpcapi.Key{Name: role, Key: secret.New(role + "-key-0001"), Roles: []string{role}})
	}
	r := newRig(t, c)
	r.router.serve = func(context.Context, *intake.Call, intake.Sink) error { return nil }
	want := map[string]string{ // by letters of the roles
		"Forward": "fa", "LoadAdapter": "a", "UnloadAdapter": "a", "ListModels": "irofa", "GetModel": "irofa",
		"Register": "a", "Deregister": "a", "Drain": "a", "Undrain": "a", "ReloadConfig": "a", "RollbackConfig": "a", "ListConfigVersions": "a", "List": "roa", "Get": "roa", "Watch": "roa",
		"ExplainDecision": "irofa", "ListDecisions": "irofa", "WatchDecisions": "irofa", "ListPolicies": "irofa", "ListPrograms": "irofa", "GetLoads": "oa", "ListSplits": "oa", "SetSplitSide": "a", "GetStatus": "oa", "GetHistory": "oa", "ListTraces": "oa", "ListRouters": "oa",
	}
	protoregistry.GlobalFiles.RangeFilesByPackage("kvpilot.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				allowed, named := want[string(m.Name())]
				if !named {
					if allowed = "ra"; service.Name() == "InferenceService" {
						allowed = "ia"
					}
				}
				for _, role := range append(roles, "") {
					mayIn := role != "" && strings.ContainsRune(allowed, rune(role[0]))
					limit := 30 * time.Second
					if mayIn { // some that are let in go on
						limit = 100 * time.Millisecond
					}
					code := invoke(t, r.socket, service, m, role, limit)
					letIn := code != codes.PermissionDenied && code != codes.Unauthenticated
					if letIn != mayIn || role == "" && code != codes.Unauthenticated {
						t.Errorf("%s with the role %q: %s", m.FullName(), role, code)
					}
				}
			}
		}
		return true
	})
}

// invoke calls a method with an empty message and returns its code; DeadlineExceeded for one that goes on.
func invoke(t *testing.T, conn grpc.ClientConnInterface, service protoreflect.ServiceDescriptor, m protoreflect.MethodDescriptor, role string, limit time.Duration) codes.Code {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if role != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "x-api-key", role+"-key-0001")
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+string(service.FullName())+"/"+string(m.Name()))
	if err != nil {
		return status.Code(err)
	}
	_ = stream.SendMsg(dynamicpb.NewMessage(m.Input())) // the answer says whether it was taken
	_ = stream.CloseSend()
	return status.Code(stream.RecvMsg(dynamicpb.NewMessage(m.Output())))
}
