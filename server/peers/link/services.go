package link

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/peers/identity"
	"github.com/kvpilot/kvpilot/server/peers/refusals"
)

// Index serves the method of that name for the router with the id from, Facts and Limits theirs.
type (
	Index interface {
		PullIndex(from string, in *pb.PullIndexRequest, out grpc.ServerStreamingServer[pb.PullIndexResponse]) error
	}
	Facts interface {
		ShareFacts(ctx context.Context, in *pb.ShareFactsRequest) (*pb.ShareFactsResponse, error)
	}
	Limits interface {
		ShareLimits(ctx context.Context, from string, in *pb.ShareLimitsRequest) (*pb.ShareLimitsResponse, error)
	}
)

// Services are further services that the other routers may call.
type Services interface {
	RegisterForPeers(to grpc.ServiceRegistrar)
}

// register adds the services of the contract, and the services of Offer, to a server.
func (l *Links) register(to grpc.ServiceRegistrar) {
	pb.RegisterDecideServiceServer(to, l)
	if l.params.Index != nil {
		pb.RegisterIndexServiceServer(to, indexServer{links: l})
	}
	if l.params.Facts != nil {
		pb.RegisterFactsServiceServer(to, factsServer{links: l})
	}
	if l.params.Limits != nil {
		pb.RegisterLimitsServiceServer(to, limitsServer{links: l})
	}
	if l.services != nil {
		l.services.RegisterForPeers(to)
	}
}

// check refuses a message that breaks a rule of the contract.
func (l *Links) check(in proto.Message) error {
	if err := l.rules.Validate(in); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}

type indexServer struct {
	pb.UnimplementedIndexServiceServer
	links *Links
}

// PullIndex implements pb.IndexServiceServer.
func (s indexServer) PullIndex(in *pb.PullIndexRequest, out grpc.ServerStreamingServer[pb.PullIndexResponse]) error {
	if err := s.links.check(in); err != nil {
		return err
	}
	return s.links.params.Index.PullIndex(identity.PeerID(out.Context()), in, out)
}

type factsServer struct {
	pb.UnimplementedFactsServiceServer
	links *Links
}

// ShareFacts implements pb.FactsServiceServer.
func (s factsServer) ShareFacts(ctx context.Context, in *pb.ShareFactsRequest) (*pb.ShareFactsResponse, error) {
	if err := s.links.check(in); err != nil {
		return nil, err
	}
	return s.links.params.Facts.ShareFacts(ctx, in)
}

type limitsServer struct {
	pb.UnimplementedLimitsServiceServer
	links *Links
}

// ShareLimits implements pb.LimitsServiceServer.
func (s limitsServer) ShareLimits(ctx context.Context, in *pb.ShareLimitsRequest) (*pb.ShareLimitsResponse, error) {
	if err := s.links.check(in); err != nil {
		return nil, err
	}
	return s.links.params.Limits.ShareLimits(ctx, identity.PeerID(ctx), in)
}

// maxMethod bounds the name of an unknown method in logs and errors, in bytes.
const maxMethod = 128

// refuseUnknown answers calls of methods that this router does not serve, as a router of another wire version makes them.
func (l *Links) refuseUnknown(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	method = method[:min(len(method), maxMethod)]
	l.params.Refused.Refuse(refusals.Wire, identity.PeerID(stream.Context()), "a router calls a method of another wire version", "method", method, "own", l.params.WireMajor)
	return status.Errorf(codes.Unimplemented, "this router speaks wire version %d and does not serve %s", l.params.WireMajor, method)
}
