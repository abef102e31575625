package grpcapi

import (
	"fmt"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/caller"
)

// methodInfo has the facts about an RPC that the interceptor needs.
type methodInfo struct {
	input protoreflect.MessageDescriptor
	// path is the path of its first REST route; empty when that is no POST.
	path string
	// raw requests are HttpBody: no rules apply, and the router logs the call.
	raw bool
	// roles are the roles of which a caller needs one.
	roles caller.Roles
	// each message of the stream is answered separately, a broken rule too: the handler applies them.
	each bool
}

// readMethods lists the contract's RPCs by full name.
func readMethods() (map[string]*methodInfo, error) {
	list := map[string]*methodInfo{}
	roles := methodRoles()
	for _, file := range []protoreflect.FileDescriptor{
		kvpilotv1.File_kvpilot_v1_inference_proto, kvpilotv1.File_kvpilot_v1_routing_proto, kvpilotv1.File_kvpilot_v1_replica_proto,
		kvpilotv1.File_kvpilot_v1_config_proto, kvpilotv1.File_kvpilot_v1_router_proto,
	} {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				rpc := service.Methods().Get(j)
				name := "/" + string(service.FullName()) + "/" + string(rpc.Name())
				if roles[name] == 0 {
					return nil, fmt.Errorf("%s has no role in methodRoles and could not be called", name)
				}
				rule, _ := proto.GetExtension(rpc.Options(), annotations.E_Http).(*annotations.HttpRule)
				list[name] = &methodInfo{
					path:  rule.GetPost(),
					roles: roles[name], input: rpc.Input(), raw: rpc.Input().FullName() == "google.api.HttpBody",
				}
			}
		}
	}
	list[kvpilotv1.RoutingService_TrackReservation_FullMethodName].each = true
	return list, nil
}

// inputs are the messages with rules that are compiled at start, so that no request waits for it.
func inputs(methods map[string]*methodInfo) []protoreflect.MessageDescriptor {
	var list []protoreflect.MessageDescriptor
	for _, m := range methods {
		if !m.raw {
			list = append(list, m.input)
		}
	}
	return list
}
