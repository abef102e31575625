package forward

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/domain/caller"
)

// keyCaller is the metadata with the sender of a call that one router passes on to another, a peerv1.ForwardedCaller.
const keyCaller = "kvpilot-caller-bin"

// Send is the context of a call that is passed on for who, with the headers of the original call that say how it is to be
// answered. Credentials are not among them, and neither are headers that gRPC does not carry.
func Send(ctx context.Context, who *caller.Caller, address string, h http.Header) context.Context {
	sender := &peerv1.ForwardedCaller{
		Tenant: strings.ToValidUTF8(who.Tenant, "\ufffd"), Name: strings.ToValidUTF8(who.Name, "\ufffd"), By: string(who.By), Address: strings.ToValidUTF8(address, "\ufffd"),
	}
	if who.Roles != 0 {
		sender.Roles = strings.Split(who.Roles.String(), ",")
	}
	text, _ := proto.Marshal(sender) // it fails for invalid text only
	md := metadata.Pairs(keyCaller, string(text))
	for name, values := range h {
		key := strings.ToLower(name)
		if strings.HasPrefix(key, "x-") && key != "x-api-key" && !strings.HasSuffix(key, "-bin") && isCarried(key, values) {
			md[key] = values
		}
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// isCarried reports whether gRPC accepts a header as metadata. A call with one that it does not accept fails.
func isCarried(key string, values []string) bool {
	odd := func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9') && !strings.ContainsRune("-_.", c)
	}
	if strings.ContainsFunc(key, odd) {
		return false
	}
	for _, v := range values {
		for i := range len(v) {
			if v[i] < ' ' || v[i] > '~' {
				return false
			}
		}
	}
	return true
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
	var sender peerv1.ForwardedCaller
	if err := proto.Unmarshal([]byte(text[0]), &sender); err != nil {
		return nil, "", errNoSender
	}
	who = &caller.Caller{Tenant: sender.GetTenant(), Name: sender.GetName(), By: caller.Source(sender.GetBy())}
	for _, name := range sender.GetRoles() {
		role, _ := caller.ParseRole(name)
		who.Roles |= role
	}
	return who, sender.GetAddress(), nil
}
