package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// Client is a connection to a router.
type Client struct {
	conn      *grpc.ClientConn
	routing   kvpilotv1.RoutingServiceClient
	inference kvpilotv1.InferenceServiceClient
	replicas  kvpilotv1.ReplicaServiceClient
	settings  kvpilotv1.ConfigServiceClient
	router    kvpilotv1.RouterServiceClient
}

// Option changes how Dial connects.
type Option func(*options)

type options struct {
	tls  *tls.Config
	key  string
	grpc []grpc.DialOption
}

// WithTLS encrypts the connection; nil takes the system's roots. Without it the connection is
// plain text.
func WithTLS(c *tls.Config) Option {
	if c == nil {
		c = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return func(o *options) { o.tls = c }
}

// WithAPIKey sends key as a bearer token with every call.
func WithAPIKey(key string) Option { return func(o *options) { o.key = key } }

// WithGRPC adds gRPC's own options: interceptors, statistics handlers, a dialer for tests.
func WithGRPC(opts ...grpc.DialOption) Option {
	return func(o *options) { o.grpc = append(o.grpc, opts...) }
}

// retries is the service config: calls that change nothing when repeated are tried again while
// the router is unavailable.
const retries = `{
 "methodConfig": [{
  "name": [
   {"service": "kvpilot.v1.RoutingService", "method": "Tokenize"},
   {"service": "kvpilot.v1.RoutingService", "method": "Detokenize"},
   {"service": "kvpilot.v1.RoutingService", "method": "ReportReservation"},
   {"service": "kvpilot.v1.RoutingService", "method": "ExplainDecision"},
   {"service": "kvpilot.v1.RoutingService", "method": "ListDecisions"},
   {"service": "kvpilot.v1.RoutingService", "method": "ScoreOverlap"},
   {"service": "kvpilot.v1.RoutingService", "method": "GetLoads"},
   {"service": "kvpilot.v1.RoutingService", "method": "ListPrograms"},
   {"service": "kvpilot.v1.RoutingService", "method": "ListSplits"},
   {"service": "kvpilot.v1.RoutingService", "method": "SetSplitSide"},
   {"service": "kvpilot.v1.RoutingService", "method": "ListPolicies"},
   {"service": "kvpilot.v1.ReplicaService", "method": "List"},
   {"service": "kvpilot.v1.ReplicaService", "method": "Get"},
   {"service": "kvpilot.v1.ReplicaService", "method": "Register"},
   {"service": "kvpilot.v1.ReplicaService", "method": "Drain"},
   {"service": "kvpilot.v1.ReplicaService", "method": "Undrain"},
   {"service": "kvpilot.v1.InferenceService", "method": "ListModels"},
   {"service": "kvpilot.v1.InferenceService", "method": "GetModel"}
  ],
  "retryPolicy": {
   "maxAttempts": 4, "initialBackoff": "0.05s", "maxBackoff": "1s", "backoffMultiplier": 3,
   "retryableStatusCodes": ["UNAVAILABLE"]
  }
 }]
}`

// Dial prepares a connection to the router at target ("localhost:9000", "dns:///kvpilot:9000");
// it connects with the first call. Close the client when done.
func Dial(target string, opts ...Option) (*Client, error) {
	if scheme, rest, _ := strings.Cut(target, "://"); scheme == "http" || scheme == "https" || scheme == "grpc" || scheme == "grpcs" {
		return nil, fmt.Errorf("dial %s: a target is host:port of the router's gRPC address, without %s://: %s (WithTLS encrypts)", target, scheme, strings.TrimRight(rest, "/"))
	}
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	creds := insecure.NewCredentials()
	if o.tls != nil {
		creds = credentials.NewTLS(o.tls)
	}
	dial := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultServiceConfig(retries),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.ForceCodecV2(codec{encoding.GetCodecV2("proto")})),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: time.Minute, Timeout: 20 * time.Second}),
	}
	if o.key != "" {
		dial = append(dial, grpc.WithPerRPCCredentials(bearer{key: o.key, secure: o.tls != nil}))
	}
	conn, err := grpc.NewClient(target, append(dial, o.grpc...)...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", target, err)
	}
	return New(conn), nil
}

// New wraps a connection that the caller made. Close closes it.
func New(conn *grpc.ClientConn) *Client {
	return &Client{
		conn: conn, routing: kvpilotv1.NewRoutingServiceClient(conn),
		inference: kvpilotv1.NewInferenceServiceClient(conn), replicas: kvpilotv1.NewReplicaServiceClient(conn), settings: kvpilotv1.NewConfigServiceClient(conn),
		router: kvpilotv1.NewRouterServiceClient(conn),
	}
}

// Close ends the connection and all calls on it.
func (c *Client) Close() error { return c.conn.Close() }

// Router is the generated client of RouterService.
func (c *Client) Router() kvpilotv1.RouterServiceClient { return c.router }

// Routing is the generated client of RoutingService.
func (c *Client) Routing() kvpilotv1.RoutingServiceClient { return c.routing }

// Inference is the generated client of InferenceService.
func (c *Client) Inference() kvpilotv1.InferenceServiceClient { return c.inference }

// Settings is the generated client of ConfigService.
func (c *Client) Settings() kvpilotv1.ConfigServiceClient { return c.settings }

// Replicas is the generated client of ReplicaService.
func (c *Client) Replicas() kvpilotv1.ReplicaServiceClient { return c.replicas }

// bearer sends the API key.
type bearer struct {
	key    string
	secure bool
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.key}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. A key over plain text is
// the caller's choice, made by not asking for TLS.
func (b bearer) RequireTransportSecurity() bool { return b.secure }

// WithHeaders returns a context whose calls carry these headers, for example x-session-id,
// x-request-id or x-kvpilot-policy. Names and values alternate.
func WithHeaders(ctx context.Context, pairs ...string) context.Context {
	lower := make([]string, len(pairs))
	for i, p := range pairs {
		if i%2 == 0 {
			p = strings.ToLower(p)
		}
		lower[i] = p
	}
	return metadata.AppendToOutgoingContext(ctx, lower...)
}
