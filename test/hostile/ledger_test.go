package hostile

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/internal/proc"
	"github.com/kvpilot/kvpilot/server/kit/sleep"
	"github.com/kvpilot/kvpilot/test/programs"
)

// honest are the tenants that use the router next to an attacker.
var honest = []string{"one", "two", "three"}

// withTenants is the setting of a router with keys for the honest tenants and for an attacker.
func withTenants(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "keys")
	text := "attacker:key-of-attacker\nops:key-of-ops:admin\n"
	for _, tenant := range honest {
		text += tenant + ":key-of-" + tenant + "\n"
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return "api.keys_file=" + name
}

// crowd sends the requests of honest tenants until it is stopped, over REST and gRPC, on connections that stay and on new ones.
type crowd struct {
	p    *process
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu     sync.Mutex
	times  []time.Duration
	failed []string
}

func (p *process) crowd(t *testing.T) *crowd {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	c := &crowd{p: p, stop: stop}
	for _, tenant := range honest {
		c.wg.Go(func() { c.rest(ctx, tenant, &http.Transport{}) })
		c.wg.Go(func() { c.rest(ctx, tenant, &http.Transport{DisableKeepAlives: true}) })
		c.wg.Go(func() { c.rpc(ctx, tenant) })
	}
	return c
}

func (c *crowd) note(ctx context.Context, began time.Time, problem string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.times = append(c.times, time.Since(began))
	if problem != "" && ctx.Err() == nil {
		c.failed = append(c.failed, problem)
	}
}

// pace is the time between two requests of one of the crowd.
const pace = 20 * time.Millisecond

func (c *crowd) rest(ctx context.Context, tenant string, by *http.Transport) {
	client := &http.Client{Transport: by, Timeout: 20 * time.Second}
	defer by.CloseIdleConnections()
	for ctx.Err() == nil {
		began := time.Now()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.p.HTTP+"/v1/chat/completions", strings.NewReader(good))
		if err != nil {
			panic(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer key-of-"+tenant)
		resp, err := client.Do(r)
		problem := ""
		if err != nil {
			problem = err.Error()
		} else {
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				problem = fmt.Sprintf("%d %.200s", resp.StatusCode, text)
			}
		}
		c.note(ctx, began, problem)
		time.Sleep(pace)
	}
}

func (c *crowd) rpc(ctx context.Context, tenant string) {
	conn, err := grpc.NewClient("passthrough:///"+c.p.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	routing := kvpilotv1.NewRoutingServiceClient(conn)
	for ctx.Err() == nil {
		began := time.Now()
		within, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer key-of-"+tenant), 20*time.Second)
		_, err := routing.ChooseReplica(within, &kvpilotv1.ChooseReplicaRequest{Model: "sim", Booking: kvpilotv1.Booking_BOOKING_DRY_RUN, Prompt: &kvpilotv1.ChooseReplicaRequest_Text{Text: "hello"}})
		cancel()
		problem := ""
		if err != nil {
			problem = err.Error()
		}
		c.note(ctx, began, problem)
		time.Sleep(pace)
	}
}

// end stops the crowd, and reports the times of its requests and what failed.
func (c *crowd) end() (times []time.Duration, failed []string) {
	c.stop()
	c.wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.Sort(c.times)
	return c.times, c.failed
}

func p99(times []time.Duration) time.Duration { return times[len(times)*99/100] }

// besides runs an attack next to honest tenants: none of their requests may fail, and the router's memory has a bound in MiB.
func (p *process) besides(t *testing.T, most int64, attack func(ctx context.Context)) {
	t.Helper()
	quiet := p.crowd(t)
	time.Sleep(time.Second)
	undisturbed, failed := quiet.end()
	if len(failed) > 0 {
		t.Fatalf("undisturbed, %d of %d requests failed: %s", len(failed), len(undisturbed), failed[0])
	}
	if err := proc.ResetPeak(p.PID); err != nil {
		t.Skipf("the peak of memory cannot be reset here: %v", err)
	}
	c := p.crowd(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	attack(ctx)
	times, failed := c.end()
	_, peak := p.memory(t)
	peak >>= 20
	t.Logf("honest: %d requests, %d failed, p50 %s, p99 %s (undisturbed %s and %s); the router's peak is %d MiB",
		len(times), len(failed), times[len(times)/2], p99(times), undisturbed[len(undisturbed)/2], p99(undisturbed), peak)
	if len(failed) > 0 {
		t.Errorf("%d of %d honest requests failed, the first one: %s", len(failed), len(times), failed[0])
	}
	if peak > most {
		t.Errorf("the router took %d MiB, the bound is %d", peak, most)
	}
}

// memories are the limits that the attacks run with, and the bounds of the process in MiB.
var memories = map[string]int64{"512": 600, "256": 320}

func eachMemory(t *testing.T, run func(t *testing.T, p *process, most int64), set ...string) {
	t.Helper()
	for limit, most := range memories {
		t.Run(limit+" MiB", func(t *testing.T) {
			t.Parallel()
			var bytes int64
			fmt.Sscan(limit, &bytes)
			run(t, startProcess(t, append(slices.Clip(set), withTenants(t), fmt.Sprintf("memory.max_bytes=%d", bytes<<20))...), most)
		})
	}
}

// sockets opens connections, sends each the same bytes, and closes them when the test ends.
func sockets(t *testing.T, address string, n int, wire string) (open []net.Conn) {
	t.Helper()
	for range n {
		c, err := net.DialTimeout("tcp", address, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		io.WriteString(c, wire)
		open = append(open, c)
	}
	return open
}

func announced(key string, length, sent int) string {
	return fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		key, length, strings.Repeat("x", sent))
}

func TestAnnouncedBodiesLockNobodyOut(t *testing.T) {
	t.Parallel()
	eachMemory(t, func(t *testing.T, p *process, most int64) {
		p.besides(t, most, func(ctx context.Context) {
			sockets(t, p.HTTP, 3, announced("key-of-attacker", 25<<20, 131<<10))
			sockets(t, p.HTTP, 600, announced("key-of-attacker", 128<<10, 8))
			sleep.For(ctx, 8*time.Second)
		})
	})
}

// dials opens gRPC connections that read no byte of an answer's data.
func dials(t *testing.T, address string, n int) (list []*grpc.ClientConn) {
	t.Helper()
	for range n {
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		list = append(list, conn)
	}
	return list
}

func TestAnswersThatNobodyReadsAreCounted(t *testing.T) {
	eachMemory(t, func(t *testing.T, p *process, most int64) {
		decide(t, p, 1000)
		p.besides(t, most, func(ctx context.Context) {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer key-of-attacker")
			for _, conn := range dials(t, p.GRPC, 20) {
				for range 250 {
					stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, kvpilotv1.RoutingService_ListDecisions_FullMethodName)
					if err != nil {
						continue // the router has closed the connection
					}
					if stream.SendMsg(&kvpilotv1.ListDecisionsRequest{PageSize: 1000}) == nil {
						stream.CloseSend()
					}
				}
			}
			for _, c := range sockets(t, p.HTTP, 400, "GET /kvpilot/v1/decisions?page_size=1000 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key-of-attacker\r\n\r\n") {
				c.(*net.TCPConn).SetReadBuffer(4 << 10)
			}
			sockets(t, p.Admin, 400, strings.Repeat("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 50))
			sleep.For(ctx, 8*time.Second)
		})
	})
}

// decide makes decisions to list, of the attacker.
func decide(t *testing.T, p *process, n int) {
	t.Helper()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer key-of-attacker")
	routing := kvpilotv1.NewRoutingServiceClient(dials(t, p.GRPC, 1)[0])
	for range n {
		if _, err := routing.ChooseReplica(ctx, &kvpilotv1.ChooseReplicaRequest{Model: "sim", Booking: kvpilotv1.Booking_BOOKING_DRY_RUN, Prompt: &kvpilotv1.ChooseReplicaRequest_Text{Text: "hello"}}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestIdleStreamsWithoutCredentialsAreFew(t *testing.T) {
	t.Parallel()
	eachMemory(t, func(t *testing.T, p *process, most int64) {
		p.besides(t, most, func(ctx context.Context) {
			for _, conn := range dials(t, p.GRPC, 60) {
				for i := range 256 {
					if i%2 == 0 {
						reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
					} else {
						healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{})
					}
				}
			}
			sleep.For(ctx, 3*time.Second)
			within, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			if _, err := healthpb.NewHealthClient(dials(t, p.GRPC, 1)[0]).Check(within, &healthpb.HealthCheckRequest{}); err != nil {
				t.Errorf("a health check next to them: %v", err)
			}
		})
	})
}

func TestIdleStreamsOfATenantLeaveRoom(t *testing.T) {
	t.Parallel()
	eachMemory(t, func(t *testing.T, p *process, most int64) {
		p.besides(t, most, func(ctx context.Context) {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer key-of-attacker")
			for _, conn := range dials(t, p.GRPC, 60) {
				for range 256 {
					kvpilotv1.NewRoutingServiceClient(conn).WatchDecisions(ctx, &kvpilotv1.WatchDecisionsRequest{})
				}
			}
			sleep.For(ctx, 3*time.Second)
		})
	})
}

func TestRefusedBodiesSeeTheirAnswer(t *testing.T) {
	eachMemory(t, func(t *testing.T, p *process, most int64) {
		body := `{"model":"sim","messages":[{"role":"user","content":"` + strings.Repeat("a", 5<<20) + `"}],"max_tokens":2}`
		p.besides(t, most, func(ctx context.Context) {
			var mu sync.Mutex
			ends := map[string]int{}
			var wg sync.WaitGroup
			for range 60 {
				wg.Go(func() {
					by := &http.Transport{DisableKeepAlives: true}
					r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.HTTP+"/v1/chat/completions", strings.NewReader(body))
					if err != nil {
						panic(err)
					}
					r.Header.Set("Content-Type", "application/json")
					r.Header.Set("Authorization", "Bearer key-of-attacker")
					var end string
					if resp, err := by.RoundTrip(r); err != nil {
						end = err.Error()
					} else {
						resp.Body.Close()
						end = resp.Status
					}
					mu.Lock()
					ends[end]++
					mu.Unlock()
				})
			}
			wg.Wait()
			t.Logf("%v", ends)
			if n := ends["200 OK"] + ends["429 Too Many Requests"]; n != 60 || ends["200 OK"] == 0 {
				t.Errorf("the bodies ended %v, want 200 and 429 only", ends)
			}
		})
	})
}

func TestIdleSocketsLeaveFilesForOthers(t *testing.T) {
	t.Parallel()
	p := startWithin(t, 1024, withTenants(t))
	p.besides(t, 600, func(ctx context.Context) {
		for range 3 {
			for _, address := range []string{p.HTTP, p.GRPC, p.Admin} {
				sockets(t, address, 400, "")
			}
			resp, err := http.Get("http://" + p.Admin + "/readyz")
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Errorf("the admin address: %v %v", resp, err)
			} else {
				resp.Body.Close()
			}
			sleep.For(ctx, time.Second)
		}
	})
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID))
	if err != nil || len(files) > 700 {
		t.Errorf("the router has %d files open, %v", len(files), err)
	}
	if strings.Contains(p.log.String(), "too many open files") {
		t.Error("the router ran out of files")
	}
}

func TestStrangersDoNotLockTheFleetsAddress(t *testing.T) {
	t.Parallel()
	gossip, rpc := programs.FreeAddress(t), programs.FreeAddress(t)
	fleet := []string{"fleet.key=0123456789abcdef0123456789abcdef", "memory.max_bytes=536870912"}
	first := startProcess(t, append(fleet, "fleet.listen="+gossip, "fleet.rpc_listen="+rpc)...)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)
	wg.Go(func() {
		var open []net.Conn
		defer func() {
			for _, c := range open {
				c.Close()
			}
		}()
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			if c, err := net.DialTimeout("tcp", rpc, time.Second); err == nil {
				open = append(open, c)
			}
			if len(open) > 1200 {
				open[0].Close()
				open = open[1:]
			}
		}
	})
	time.Sleep(4 * time.Second)
	second := startProcess(t, append(fleet, "fleet.listen="+programs.FreeAddress(t), "fleet.rpc_listen="+programs.FreeAddress(t), "fleet.join="+gossip)...)
	for _, p := range []*process{first, second} {
		within, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		for {
			out, err := kvpilotv1.NewRouterServiceClient(dials(t, p.GRPC, 1)[0]).ListRouters(within, &kvpilotv1.ListRoutersRequest{})
			if err == nil && len(out.GetRouters()) == 2 && out.GetRouters()[1].GetState() == kvpilotv1.RouterState_ROUTER_STATE_ALIVE && out.GetRouters()[1].GetConnected() {
				break
			}
			if within.Err() != nil {
				t.Fatalf("next to strangers at the fleet's address, two routers do not find each other: %v, %v", out, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}
