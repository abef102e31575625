package kvevents

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	vllmcontrol "github.com/kvpilot/kvpilot/gen/vllm/control"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// An endpoint "grpc://host:port" (or "grpcs://", with TLS) is no event socket but vLLM's Control service, which
// lists the sockets and names the engine process.

// controlTimeout bounds each call.
const controlTimeout = 5 * time.Second

// viaControl reports whether endpoint names a Control service.
func viaControl(endpoint string) bool {
	return strings.HasPrefix(endpoint, "grpc://") || strings.HasPrefix(endpoint, "grpcs://")
}

// control is a connection to one Control service.
type control struct {
	conn   *grpc.ClientConn
	client vllmcontrol.ControlClient
	host   string
}

func dialControl(endpoint string) (*control, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Port() == "" {
		return nil, fmt.Errorf("endpoint %q: must have the form grpc://host:port", endpoint)
	}
	creds := insecure.NewCredentials()
	if u.Scheme == "grpcs" {
		creds = credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})
	}
	conn, err := grpc.NewClient("passthrough:///"+u.Host, grpc.WithTransportCredentials(creds))
	if err != nil {
		return nil, err
	}
	return &control{conn: conn, client: vllmcontrol.NewControlClient(conn), host: u.Hostname()}, nil
}

func (c *control) close() { _ = c.conn.Close() } // no call is in flight

// sockets finds the addresses that the rank publishes on.
func (c *control) sockets(ctx context.Context, rank int, topic string) (replica.Events, error) {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	reply, err := c.client.GetKvEventSources(ctx, &vllmcontrol.GetKvEventSourcesRequest{})
	if err != nil {
		return replica.Events{}, fmt.Errorf("vllm.Control/GetKvEventSources: %w", err)
	}
	s, err := pick(reply.GetSources(), rank)
	if err != nil {
		return replica.Events{}, err
	}
	events := replica.Events{Topic: s.GetTopic(), Rank: rank}
	if topic != "" {
		events.Topic = topic // the setting overrides the engine
	}
	if events.Endpoint, err = c.reachable(s.GetEndpoint()); err != nil {
		return replica.Events{}, err
	}
	if replay := s.GetReplayEndpoint(); replay != "" {
		if events.Replay, err = c.reachable(replay); err != nil {
			return replica.Events{}, err
		}
	}
	return events, nil
}

// instance is the name of the engine process; empty when the service does not name it.
func (c *control) instance(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	info, err := c.client.GetServerInfo(ctx, &vllmcontrol.GetServerInfoRequest{})
	if err != nil {
		return "" // an older service; replays recognise the engine too
	}
	return info.GetInstanceId()
}

// pick finds the rank's source among the replica's.
func pick(sources []*vllmcontrol.KvEventSource, rank int) (*vllmcontrol.KvEventSource, error) {
	var usable []*vllmcontrol.KvEventSource
	for _, s := range sources {
		encoding := s.GetEncoding()
		if strings.EqualFold(s.GetTransport(), "zmq") && (encoding == "" || strings.EqualFold(encoding, "msgpack")) && s.GetEndpoint() != "" {
			usable = append(usable, s)
		}
	}
	for _, s := range usable {
		if s.DataParallelRank != nil && int(s.GetDataParallelRank()) == rank {
			return s, nil
		}
	}
	if len(usable) == 1 && usable[0].DataParallelRank == nil && rank == 0 {
		return usable[0], nil
	}
	return nil, fmt.Errorf("the engine names %d event sources and none for rank %d", len(sources), rank)
}

// reachable turns an address as the engine has bound it into one to dial.
func (c *control) reachable(endpoint string) (string, error) {
	rest, isTCP := strings.CutPrefix(endpoint, "tcp://")
	if !isTCP {
		return endpoint, nil
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return "", fmt.Errorf("event source %q: %w", endpoint, err)
	}
	if host != "*" && !strings.Contains(host, "::") {
		return "", fmt.Errorf("the engine dials %s and binds nothing: configure this endpoint with bind", endpoint)
	}
	return "tcp://" + net.JoinHostPort(c.host, port), nil
}
