package telemetry

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
)

// exportMethod is OTLP's one RPC.
const exportMethod = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

// retries makes gRPC itself try again when a collector is away for a moment.
const retries = `{"methodConfig":[{"name":[{"service":"opentelemetry.proto.collector.trace.v1.TraceService"}],
	"retryPolicy":{"maxAttempts":4,"initialBackoff":"0.3s","maxBackoff":"3s","backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE","RESOURCE_EXHAUSTED","ABORTED"]}}]}`

// otlpGRPC sends spans to a collector over gRPC. One goroutine uses it at a time.
type otlpGRPC struct {
	conn    *grpc.ClientConn
	headers []string // pairs
	buffer  []byte
}

// newOTLPGRPC makes the exporter; it dials when there is something to send.
func newOTLPGRPC(c Traces) (*otlpGRPC, error) {
	secure := credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})
	if c.Insecure {
		secure = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient(c.Endpoint, grpc.WithTransportCredentials(secure), grpc.WithDefaultServiceConfig(retries))
	if err != nil {
		return nil, err
	}
	e := &otlpGRPC{conn: conn}
	if !c.Token.IsEmpty() {
		e.headers = []string{"authorization", "Bearer " + c.Token.Reveal()}
	}
	return e, nil
}

// ExportSpans implements sdktrace.SpanExporter.
func (e *otlpGRPC) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	e.buffer = appendRequest(e.buffer[:0], spans)
	if len(e.headers) > 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, e.headers...)
	}
	var answer []byte
	if err := e.conn.Invoke(ctx, exportMethod, e.buffer, &answer, grpc.ForceCodec(plain{})); err != nil {
		return fmt.Errorf("export spans: %w", err)
	}
	return refused(answer)
}

// Shutdown implements sdktrace.SpanExporter.
func (e *otlpGRPC) Shutdown(context.Context) error { return e.conn.Close() }

// refused reads from a collector's answer whether it took everything.
func refused(answer []byte) error {
	partial, _ := field(answer, 1)
	if _, n := field(partial, 1); n > 0 {
		why, _ := field(partial, 2)
		return fmt.Errorf("the collector refused %d spans: %s", n, why)
	}
	return nil
}

// field finds a field of a message, as bytes or as a number; the zero values when there is none.
func field(b []byte, want protowire.Number) (text []byte, number uint64) {
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return nil, 0
		}
		b = b[size:]
		if size = protowire.ConsumeFieldValue(n, kind, b); size < 0 {
			return nil, 0
		}
		if n == want {
			switch kind {
			case protowire.BytesType:
				text, _ = protowire.ConsumeBytes(b)
			case protowire.VarintType:
				number, _ = protowire.ConsumeVarint(b)
			default: // neither of the kinds that are asked for
			}
		}
		b = b[size:]
	}
	return text, number
}

// plain is the codec of messages that are bytes already.
type plain struct{}

var (
	_           encoding.Codec = plain{}
	errNotBytes                = errors.New("not bytes")
)

func (plain) Name() string { return "proto" } // what they are

func (plain) Marshal(v any) ([]byte, error) {
	if b, ok := v.([]byte); ok {
		return b, nil
	}
	return nil, errNotBytes
}

func (plain) Unmarshal(data []byte, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return errNotBytes
	}
	*b = append([]byte(nil), data...)
	return nil
}
