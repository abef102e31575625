package grpcapi

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/kvpilot/kvpilot/server/domain/caller"
)

// Every RPC of the contract has a row in methodRoles, and every row stands for an RPC. A new RPC without a row fails here, and
// no router starts with one.
func TestEveryMethodHasARole(t *testing.T) {
	roles, seen := methodRoles(), map[string]bool{}
	protoregistry.GlobalFiles.RangeFilesByPackage("kvpilot.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				name := "/" + string(service.FullName()) + "/" + string(service.Methods().Get(j).Name())
				seen[name] = true
				if roles[name] == 0 {
					t.Errorf("%s has no role in methodRoles", name)
				}
			}
		}
		return true
	})
	for name, r := range roles {
		if !seen[name] {
			t.Errorf("%s is in methodRoles and not in the contract", name)
		}
		changes := false
		for _, verb := range []string{"/Register", "/Deregister", "/Drain", "/Undrain", "/LoadAdapter", "/UnloadAdapter", "/ReloadConfig", "/RollbackConfig", "/ListConfigVersions", "/SetSplitSide"} {
			changes = changes || strings.HasSuffix(name, verb)
		}
		if changes != (r == caller.Admin) {
			t.Errorf("%s needs %s", name, r)
		}
	}
	list, err := readMethods()
	if err != nil || len(list) != len(seen) {
		t.Errorf("%d methods of %d are known: %v", len(list), len(seen), err)
	}
}

func TestForwardKeepsAwayFromWhatHasOwners(t *testing.T) {
	for _, name := range []string{
		"/v1/responses", "/v1/responses/resp_1", "/v1/responses/resp_1/cancel", "/v1/responses/", "v1/responses/x", "//v1//responses/x",
		"/v1/./responses/x", "/v1/x/../responses/x", "/v1/%72esponses/x", "/v1/%2572esponses/x", "/v1%2fresponses/x", "/V1/Responses/x",
		"/v1/responses?x", "/v1/load_lora_adapter", "/v1/unload_lora_adapter/", "/v1/resp%zz",
	} {
		if !guarded(name, false) {
			t.Errorf("%s is forwarded", name)
		}
	}
	for _, name := range []string{"/v1/new", "/v1/responsesx", "/classify/responses", "/sleep", ""} {
		if guarded(name, false) {
			t.Errorf("%s is not forwarded", name)
		}
	}
}
