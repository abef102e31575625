package kvevents

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// An endpoint "grpc://host:port" (or "grpcs://", with TLS) is no event socket but vLLM's Control service, which
// tells where the sockets are and which engine process answers. Its messages are small and read
// field by field here; the numbers are those of control.proto, package vllm.
const (
	methodSources = "/vllm.Control/GetKvEventSources"
	methodInfo    = "/vllm.Control/GetServerInfo"

	controlTimeout = 5 * time.Second
)

// viaControl reports whether endpoint names a Control service.
func viaControl(endpoint string) bool {
	return strings.HasPrefix(endpoint, "grpc://") || strings.HasPrefix(endpoint, "grpcs://")
}

// control is a connection to one Control service.
type control struct {
	conn *grpc.ClientConn
	host string
}

func dialControl(endpoint string) (*control, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Port() == "" {
		return nil, fmt.Errorf("endpoint %q is not of the form grpc://host:port", endpoint)
	}
	creds := insecure.NewCredentials()
	if u.Scheme == "grpcs" {
		creds = credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})
	}
	conn, err := grpc.NewClient("passthrough:///"+u.Host, grpc.WithTransportCredentials(creds), grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
	if err != nil {
		return nil, err
	}
	return &control{conn: conn, host: u.Hostname()}, nil
}

func (c *control) close() { _ = c.conn.Close() } // nothing is under way

// call makes one call with an empty request.
func (c *control) call(ctx context.Context, method string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	var request, reply []byte
	if err := c.conn.Invoke(ctx, method, &request, &reply); err != nil {
		return nil, fmt.Errorf("ask %s: %w", method, err)
	}
	return reply, nil
}

// sockets asks where the rank publishes.
func (c *control) sockets(ctx context.Context, rank int, topic string) (replica.Events, error) {
	reply, err := c.call(ctx, methodSources)
	if err != nil {
		return replica.Events{}, err
	}
	var sources []source
	err = eachField(reply, func(num protowire.Number, _ uint64, data []byte) error {
		if num != 1 {
			return nil
		}
		s, err := readSource(data)
		sources = append(sources, s)
		return err
	})
	if err != nil {
		return replica.Events{}, err
	}
	s, err := pick(sources, rank)
	if err != nil {
		return replica.Events{}, err
	}
	events := replica.Events{Topic: s.topic, Rank: rank}
	if topic != "" {
		events.Topic = topic // the operator knows better
	}
	if events.Endpoint, err = c.reachable(s.endpoint); err != nil {
		return replica.Events{}, err
	}
	if s.replay != "" {
		if events.Replay, err = c.reachable(s.replay); err != nil {
			return replica.Events{}, err
		}
	}
	return events, nil
}

// instance asks for the name of the engine process; empty when the service does not say.
func (c *control) instance(ctx context.Context) string {
	reply, err := c.call(ctx, methodInfo)
	if err != nil {
		return "" // an older service; replays recognise the engine too
	}
	var id string
	err = eachField(reply, func(num protowire.Number, _ uint64, data []byte) error {
		if num == 3 {
			id = string(data)
		}
		return nil
	})
	if err != nil {
		return ""
	}
	return id
}

// source is one KvEventSource.
type source struct {
	transport, endpoint, topic, replay, encoding string
	rank                                         int // -1: not said
}

func readSource(b []byte) (source, error) {
	s := source{rank: -1}
	err := eachField(b, func(num protowire.Number, value uint64, data []byte) error {
		switch num {
		case 1:
			s.transport = string(data)
		case 2:
			s.endpoint = string(data)
		case 3:
			s.topic = string(data)
		case 4:
			s.replay = string(data)
		case 5:
			s.rank = int(uint32(value))
		case 6:
			s.encoding = string(data)
		default: // schema_version and the engine's limits: decoding needs neither
		}
		return nil
	})
	return s, err
}

// pick finds the rank's source among those of the replica.
func pick(sources []source, rank int) (source, error) {
	var usable []source
	for _, s := range sources {
		if strings.EqualFold(s.transport, "zmq") && (s.encoding == "" || strings.EqualFold(s.encoding, "msgpack")) && s.endpoint != "" {
			usable = append(usable, s)
		}
	}
	for _, s := range usable {
		if s.rank == rank {
			return s, nil
		}
	}
	if len(usable) == 1 && usable[0].rank < 0 && rank == 0 {
		return usable[0], nil
	}
	return source{}, fmt.Errorf("the engine names %d event sources and none for rank %d", len(sources), rank)
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

// eachField walks over a message's fields; value is that of numbers, data that of strings and messages.
func eachField(b []byte, visit func(num protowire.Number, value uint64, data []byte) error) error {
	for len(b) > 0 {
		num, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		var value uint64
		var data []byte
		switch kind {
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			data, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, kind, b)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		if err := visit(num, value, data); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// rawCodec passes messages as the bytes they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) ([]byte, error) {
	if b, ok := v.(*[]byte); ok {
		return *b, nil
	}
	return nil, errors.New("not bytes")
}

func (rawCodec) Unmarshal(data []byte, v any) error {
	if b, ok := v.(*[]byte); ok {
		*b = append([]byte(nil), data...)
		return nil
	}
	return errors.New("not bytes")
}
