package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// memoryAttacks make the router hold memory that the attacker hardly pays for.
func memoryAttacks() []attack {
	return []attack{
		{name: "unread-lists", sends: "8 connections with 200 ListDecisions each that read nothing", fast: true, prepare: record, run: unreadLists},
		{name: "unread-rest-lists", sends: "400 REST lists that are not read", prepare: record, run: func(ctx context.Context, w *world) error {
			w.sockets(ctx, w.router().http, "GET /kvpilot/v1/decisions?page_size=100 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+attackerKey+"\r\n\r\n", 400, true)
			return nil
		}},
		{name: "announced-bodies", sends: "bodies of 64 MiB announced and smaller ones, at most 1/400 of the large ones sent, again when refused", fast: true, run: func(ctx context.Context, w *world) error {
			w.announce(ctx, 3, 64<<20)
			return nil
		}},
		{name: "announced-many", sends: "1,280 sockets that announce as much together", run: func(ctx context.Context, w *world) error {
			w.announce(ctx, 1280, 128<<10)
			return nil
		}},
		{name: "bodies-at-once", sends: "60 bodies of 5 MB at once, again and again", run: wholeBodies, check: noResets},
		{name: "idle-streams", sends: "20,000 keyless streams of Reflection and Health.Watch", run: idleStreams},
		{name: "idle-sockets", sends: "400 idle sockets to a router with 1,024 files", fleet: fleet{files: 1024}, run: func(ctx context.Context, w *world) error {
			w.sockets(ctx, w.router().http, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n", 400, true)
			return nil
		}, fast: true},
		{name: "huge-messages", sends: "8 gRPC messages of 50 MB at a time, made of tiny parts", run: hugeMessages},
		{name: "fleet-port", sends: "341 and 1,024 keyless connections to the gossip and the other fleet port of each of three routers", fleet: fleet{routers: 3}, run: func(ctx context.Context, w *world) error {
			var wait sync.WaitGroup
			for _, r := range w.routers {
				wait.Go(func() { w.sockets(ctx, r.gossip, "\x16\x03\x01", 341, true) })
				wait.Go(func() { w.sockets(ctx, r.rpc, "\x16\x03\x01", 1024, true) })
			}
			wait.Wait()
			return nil
		}},
	}
}

// announce opens n bodies of a size and sends a 400th of each. The room that they leave is filled with smaller ones.
func (w *world) announce(ctx context.Context, n, size int) {
	var wait sync.WaitGroup
	defer wait.Wait()
	wait.Go(func() { w.sockets(ctx, w.router().http, announced(size, size/400), n, true) })
	for less := size / 2; less >= 512; less /= 2 {
		wait.Go(func() { w.sockets(ctx, w.router().http, announced(less, min(less/2, 140<<10)), 3, true) })
	}
}

// announced is a request whose body is announced and does not come.
func announced(length, sent int) string {
	return fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s",
		attackerKey, length, strings.Repeat(" ", sent))
}

// record makes decisions for lists to contain.
func record(ctx context.Context, w *world) error {
	conn, err := connect(w.router().grpc, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	routing := kvpilotv1.NewRoutingServiceClient(conn)
	for n := range 1000 {
		if _, err := routing.ChooseReplica(as(ctx, attackerKey), &kvpilotv1.ChooseReplicaRequest{Model: "sim", Booking: kvpilotv1.Booking_BOOKING_DRY_RUN, Prompt: &kvpilotv1.ChooseReplicaRequest_Text{Text: fmt.Sprint("list me ", n)}}); err != nil {
			return err
		}
	}
	return nil
}

// unreadLists asks for lists over connections that stop reading.
func unreadLists(ctx context.Context, w *world) error {
	var wait sync.WaitGroup
	defer wait.Wait()
	for range 8 {
		wait.Go(func() {
			stopped := make(chan struct{})
			conn, err := connect(w.router().grpc, func(c net.Conn) net.Conn {
				return &deaf{Conn: c, stopped: stopped, closed: make(chan struct{})}
			})
			if err != nil {
				return
			}
			defer conn.Close()
			routing := kvpilotv1.NewRoutingServiceClient(conn)
			if _, err := routing.ListPolicies(as(ctx, attackerKey), &kvpilotv1.ListPoliciesRequest{}); err != nil {
				w.found.add("not connected", 1)
				return
			}
			close(stopped)
			var calls sync.WaitGroup
			defer calls.Wait()
			for range 200 {
				calls.Go(func() {
					_, err := routing.ListDecisions(as(ctx, attackerKey), &kvpilotv1.ListDecisionsRequest{PageSize: 100})
					if err == nil {
						w.found.add("answered", 1)
					}
				})
			}
		})
	}
	return nil
}

// wholeBodies sends 60 bodies of 5 MB in each burst.
func wholeBodies(ctx context.Context, w *world) error {
	client := hostile(false)
	text := `{"model":"sim","max_tokens":1,"messages":[{"role":"user","content":"` + strings.Repeat("a", 5<<20) + `"}]}`
	for ctx.Err() == nil {
		var wait sync.WaitGroup
		for range 60 {
			wait.Go(func() { w.send(ctx, client, "POST", "http://"+w.router().http+"/v1/chat/completions", text) })
		}
		wait.Wait()
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	return nil
}

// noResets checks that each refusal reached its sender.
func noResets(w *world) (string, []string) {
	note := "answers " + w.found.String()
	if n := w.found.get("without an answer"); n > 0 {
		return note, []string{fmt.Sprintf("%d bodies were cut off without an answer", n)}
	}
	return note, nil
}

// hugeMessages sends messages that decode to many times their size.
func hugeMessages(ctx context.Context, w *world) error {
	message := bytes.Repeat([]byte("\x2a\x04\x0a\x00\x12\x00"), 8<<20) // entries of a map
	var wait sync.WaitGroup
	defer wait.Wait()
	for range 8 {
		wait.Go(func() {
			conn, err := connect(w.router().grpc, nil)
			if err != nil {
				return
			}
			defer conn.Close()
			for ctx.Err() == nil {
				var answer []byte
				err := conn.Invoke(as(ctx, attackerKey), kvpilotv1.RoutingService_ChooseReplica_FullMethodName, message, &answer, grpc.ForceCodecV2(rawBytes{}), grpc.MaxCallSendMsgSize(1<<30))
				w.found.add(status.Code(err).String(), 1)
			}
		})
	}
	return nil
}

// rawBytes is the codec of messages that are bytes already.
type rawBytes struct{}

func (rawBytes) Name() string { return "proto" }

func (rawBytes) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.([]byte)
	if !ok {
		return nil, fmt.Errorf("cannot send %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

func (rawBytes) Unmarshal(mem.BufferSlice, any) error { return nil }

// idleStreams opens streams without a key and leaves them.
func idleStreams(ctx context.Context, w *world) error {
	var wait sync.WaitGroup
	defer wait.Wait()
	for range 80 {
		wait.Go(func() {
			conn, err := connect(w.router().grpc, nil)
			if err != nil {
				return
			}
			defer conn.Close()
			for n := range 250 {
				if err := idleStream(ctx, conn, n%2 == 0); err != nil {
					w.found.add("refused", 1)
				} else {
					w.found.add("opened", 1)
				}
				if ctx.Err() != nil {
					return
				}
			}
			<-ctx.Done()
		})
	}
	return nil
}

func idleStream(ctx context.Context, conn *grpc.ClientConn, reflection bool) error {
	if reflection {
		s, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
		if err != nil {
			return err
		}
		return s.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
	}
	_, err := grpc_health_v1.NewHealthClient(conn).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}
