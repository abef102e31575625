package forward

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/kvpilot/kvpilot/server/domain/caller"
)

// keyCaller is the metadata with the sender of a call that one router passes on to another.
const keyCaller = "kvpilot-caller-bin"

// sender is the sender of a call on the way to another router.
type sender struct {
	Tenant  string        `json:"tenant,omitempty"`
	Name    string        `json:"name,omitempty"`
	Roles   []string      `json:"roles,omitempty"`
	By      caller.Source `json:"by"`
	Address string        `json:"address,omitempty"`
}

// Send is the context of a call that is passed on for who, with the headers of the original call that say how it is to be
// answered. Credentials are not among them.
func Send(ctx context.Context, who *caller.Caller, address string, h http.Header) context.Context {
	s := sender{Tenant: who.Tenant, Name: who.Name, By: who.By, Address: address}
	if who.Roles != 0 {
		s.Roles = strings.Split(who.Roles.String(), ",")
	}
	text, _ := json.Marshal(s)
	md := metadata.Pairs(keyCaller, string(text))
	for name, values := range h {
		if key := strings.ToLower(name); strings.HasPrefix(key, "x-") && key != "x-api-key" && !strings.HasSuffix(key, "-bin") {
			md[key] = values
		}
	}
	return metadata.NewOutgoingContext(ctx, md)
}

var errNoSender = errors.New("the call does not say for which caller it is passed on")

// Received is the sender of a call that another router has passed on, and the address that the call came from at first. The caller of
// Received must know that a router of the fleet has sent the call. Roles that this router does not know are left out.
func Received(ctx context.Context) (who *caller.Caller, address string, err error) {
	md, _ := metadata.FromIncomingContext(ctx)
	text := md[keyCaller]
	if len(text) != 1 {
		return nil, "", errNoSender
	}
	var s sender
	if err := json.Unmarshal([]byte(text[0]), &s); err != nil {
		return nil, "", errNoSender
	}
	who = &caller.Caller{Tenant: s.Tenant, Name: s.Name, By: s.By}
	for _, name := range s.Roles {
		role, _ := caller.ParseRole(name)
		who.Roles |= role
	}
	return who, s.Address, nil
}
