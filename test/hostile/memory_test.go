package hostile

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// keyed is the setting of a router that asks for keys.
func keyed(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(name, []byte("team-a:key-of-team-a\nops:key-of-operators:admin\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return "api.keys_file=" + name
}

// wire sends bytes as the message and drops what comes: the attack costs the attacker little.
type wire struct{}

func (wire) Name() string { return "proto" }

func (wire) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (wire) Unmarshal(mem.BufferSlice, any) error { return nil }

// send makes a call whose message is what it is given.
func send(method string, message []byte, options ...grpc.CallOption) func(context.Context, *grpc.ClientConn) error {
	return func(ctx context.Context, conn *grpc.ClientConn) error {
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method, append(options, grpc.ForceCodecV2(wire{}), grpc.MaxCallSendMsgSize(1<<30))...)
		if err != nil {
			return err
		}
		if err := stream.SendMsg(message); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err := stream.CloseSend(); err != nil {
			return err
		}
		for {
			if err := stream.RecvMsg(nil); err != nil {
				if errors.Is(err, io.EOF) {
					return nil
				}
				return err
			}
		}
	}
}

func marshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// attackGRPC makes calls at once, each on a connection of its own, and returns how they ended.
func attackGRPC(t *testing.T, address string, calls int, call func(context.Context, *grpc.ClientConn) error) map[codes.Code]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	ends := map[codes.Code]int{}
	for range calls {
		wg.Go(func() {
			conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err == nil {
				err = call(ctx, conn)
				conn.Close()
			}
			mu.Lock()
			ends[status.Code(err)]++
			mu.Unlock()
		})
	}
	wg.Wait()
	t.Logf("the calls ended %v", ends)
	return ends
}

// Item 1: nothing of a message is read before its key was checked.
func TestGRPCMessagesWithoutAKeyTakeNoMemory(t *testing.T) {
	p := startProcess(t, keyed(t))
	message := marshal(t, &kvpilotv1.ChooseReplicaRequest{Prompt: &kvpilotv1.ChooseReplicaRequest_Text{Text: strings.Repeat("a", 60<<20)}})
	for name, attack := range map[string]struct {
		calls int
		call  func(context.Context, *grpc.ClientConn) error
	}{
		"gzip":   {12, send(kvpilotv1.RoutingService_ChooseReplica_FullMethodName, message, grpc.UseCompressor(gzip.Name))},
		"plain":  {16, send(kvpilotv1.RoutingService_ChooseReplica_FullMethodName, message)},
		"stream": {16, send(kvpilotv1.InferenceService_ChatCompletions_FullMethodName, message)},
	} {
		t.Run(name, func(t *testing.T) {
			grown := p.peak(t, func() {
				if ends := attackGRPC(t, p.GRPC, attack.calls, attack.call); ends[codes.Unauthenticated] != attack.calls {
					t.Errorf("the calls ended %v, all must be %s", ends, codes.Unauthenticated)
				}
			})
			if grown > 64 {
				t.Errorf("the router's memory grew by %d MiB for callers without a key", grown)
			}
		})
	}
}

// Item 1: callers that may call are bounded too.
func TestGRPCMessagesOfCallersAreBounded(t *testing.T) {
	text := strings.Repeat("a", 60<<20)
	choose := marshal(t, &kvpilotv1.ChooseReplicaRequest{Booking: kvpilotv1.Booking_BOOKING_DRY_RUN, Prompt: &kvpilotv1.ChooseReplicaRequest_Text{Text: text}})
	chat := marshal(t, &httpbody.HttpBody{Data: []byte(`{"model":"sim","messages":[{"role":"user","content":"` + text + `"}]}`)})
	label := []byte("\x2a\x04\x0a\x00\x12\x00") // an entry of a map in field 5
	for name, attack := range map[string]struct {
		calls int
		call  func(context.Context, *grpc.ClientConn) error
	}{
		"gzip":       {12, send(kvpilotv1.RoutingService_ChooseReplica_FullMethodName, choose, grpc.UseCompressor(gzip.Name))},
		"plain":      {16, send(kvpilotv1.RoutingService_ChooseReplica_FullMethodName, choose)},
		"raw":        {16, send(kvpilotv1.InferenceService_ChatCompletions_FullMethodName, chat)},
		"no prompt":  {8, send(kvpilotv1.RoutingService_GetLoads_FullMethodName, bytes.Repeat(label, 10<<20))},
		"many parts": {8, send(kvpilotv1.RoutingService_ChooseReplica_FullMethodName, bytes.Repeat(label, 10<<20))},
		"extensions": {8, send(kvpilotv1.InferenceService_ChatCompletions_FullMethodName, bytes.Repeat([]byte("\x1a\x00"), 30<<20))},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProcess(t, "memory.max_bytes=640MiB")
			p.bounded(t, func() { attackGRPC(t, p.GRPC, attack.calls, attack.call) })
		})
	}
}

// records are bodies that are small for what has to be remembered of them.
func records(size int) map[string][2]string {
	fill := func(head, one, end string) string {
		return head + strings.Repeat(one, (size-len(head)-len(end))/len(one)) + end
	}
	return map[string][2]string{
		"messages":      {"/v1/chat/completions", fill(`{"model":"sim","messages":[{}`, `,{}`, `]}`)},
		"members":       {"/v1/chat/completions", fill(`{"model":"sim"`, `,"":1`, `}`)},
		"items":         {"/v1/responses", fill(`{"model":"sim","input":[{}`, `,{}`, `]}`)},
		"texts":         {"/v1/completions", fill(`{"model":"sim","prompt":["a"`, `,"a"`, `]}`)},
		"lists of ids":  {"/v1/completions", fill(`{"model":"sim","prompt":[[1]`, `,[1]`, `]}`)},
		"ids":           {"/v1/completions", fill(`{"model":"sim","prompt":[1`, `,1`, `]}`)},
		"text":          {"/v1/completions", fill(`{"model":"sim","prompt":"`, `abc `, `"}`)},
		"a message":     {"/v1/chat/completions", fill(`{"model":"sim","messages":[{"role":"user","content":"`, `abc `, `"}]}`)},
		"content parts": {"/v1/chat/completions", fill(`{"model":"sim","messages":[{"role":"user","content":[{}`, `,{}`, `]}]}`)},
		"tools":         {"/v1/chat/completions", fill(`{"model":"sim","messages":[{"role":"user","content":"a"}],"tools":[{}`, `,{}`, `]}`)},
		"line breaks":   {"/v1/chat/completions", fill(`{"model":"sim","messages":[{"role":"user","content":"`, `\n`, `"}]}`)},
		"render":        {"/v1/chat/completions/render", fill(`{"model":"sim","messages":[{}`, `,{}`, `]}`)},
		"anthropic":     {"/v1/messages", fill(`{"model":"sim","max_tokens":1,"messages":[{}`, `,{}`, `]}`)},
		"decide":        {"/v1/route:choose", fill(`{"model":"sim","messages":[{}`, `,{}`, `]}`)},
		"typed ids":     {"/kvpilot/v1/choose", fill(`{"model":"sim","token_ids":{"ids":[1`, `,1`, `]}}`)},
		"typed list":    {"/kvpilot/v1/choose", fill(`{"model":"sim","text":"a","candidates":{"allow":["a"`, `,"a"`, `]}}`)},
		"typed unknown": {"/kvpilot/v1/choose", fill(`{"model":"sim"`, `,"a":1`, `}`)},
		"no prompt":     {"/kvpilot/v1/replicas", fill(`{"replica_id":"a","labels":{"":""`, `,"a":"a"`, `}}`)},
	}
}

// Item 2: what is remembered of a body is bounded by its size, and so is the time.
func TestRecordsOfABodyAreBounded(t *testing.T) {
	const size = 60 << 20
	for name, b := range records(size) {
		t.Run(name, func(t *testing.T) {
			p := startProcess(t, "memory.max_bytes=640MiB")
			began := time.Now()
			p.bounded(t, func() {
				client := &http.Client{Timeout: time.Minute}
				resp, err := client.Post("http://"+p.HTTP+b[0], "application/json", strings.NewReader(b[1]))
				if err != nil {
					t.Errorf("no answer within a minute: %v", err)
					return
				}
				answer, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
				resp.Body.Close()
				t.Logf("%d %s", resp.StatusCode, bytes.TrimSpace(answer))
				if resp.StatusCode == http.StatusNotFound {
					t.Errorf("%s is no route", b[0])
				}
			})
			if took := time.Since(began); took > size/(8<<20)*time.Second {
				t.Errorf("it took %s, the bound is a second for 8 MB", took)
			}
		})
	}
}
