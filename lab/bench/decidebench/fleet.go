package decidebench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/internal/proc"
	"github.com/kvpilot/kvpilot/internal/reports"
	"github.com/kvpilot/kvpilot/lab/bench/measure"
)

const (
	model       = "bench"
	batchBlocks = 16 // stored by one batch of an engine
)

// fleet is a router before replicas that only say what a router asks them.
type fleet struct {
	router   *proc.Process
	engines  *measure.Child
	replicas []*http.Server
	folder   string
	rest     string
	admin    string
	conn     *grpc.ClientConn
	http     *http.Client
	routing  kvpilotv1.RoutingServiceClient
}

func (c Config) start(ctx context.Context) (_ *fleet, err error) {
	f := &fleet{http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: c.Clients}, Timeout: time.Minute}}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.stop())
		}
	}()
	batches := max(c.Blocks/c.Ranks/batchBlocks, 1)
	if f.engines, err = measure.StartSelf(ctx, "events", "engines", "--engines", strconv.Itoa(c.Ranks), "--batches", strconv.Itoa(batches), "--fresh"); err != nil {
		return nil, err
	}
	line, err := f.engines.Out.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("read the engines' sockets: %w", err)
	}
	var sockets []string
	if err := json.Unmarshal(line, &sockets); err != nil {
		return nil, err
	}
	var settings bytes.Buffer
	settings.WriteString("registry:\n  replicas:\n")
	for _, socket := range sockets {
		at, err := f.serveReplica(ctx)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&settings, "  - {url: \"http://%s\", events: {endpoint: %q, replay: none}}\n", at, socket)
	}
	if f.folder, err = os.MkdirTemp("", "kvpilot-bench-"); err != nil {
		return nil, err
	}
	file := filepath.Join(f.folder, "kvpilot.yaml")
	if err := os.WriteFile(file, settings.Bytes(), 0o600); err != nil {
		return nil, err
	}
	return f, c.startRouter(ctx, f, file, batches*batchBlocks*c.Ranks)
}

// startRouter returns when the router's index has all blocks.
func (c Config) startRouter(ctx context.Context, f *fleet, file string, blocks int) error {
	at, err := proc.FreeAddresses(ctx, 3)
	if err != nil {
		return err
	}
	args := append(c.Self, "serve", "--config", file, "--http", at[0], "--grpc", at[1], "--admin", at[2],
		"--set", "admin.profiles=true", "--set", "telemetry.log_level=error")
	if c.Core >= 0 {
		args = append([]string{"taskset", "-c", strconv.Itoa(c.Core)}, args...)
	}
	f.rest, f.admin = "http://"+at[0], at[2]
	cmd := proc.Bound(ctx, args...)
	cmd.Stderr = c.Progress
	if f.router, err = proc.Start("the router", cmd); err != nil {
		return err
	}
	fmt.Fprintf(c.Progress, "router %d, profiles at http://%s/debug/pprof; waiting for %d blocks\n", f.router.PID, at[2], blocks)
	if f.conn, err = grpc.NewClient(at[1], grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return err
	}
	f.routing = kvpilotv1.NewRoutingServiceClient(f.conn)
	if _, err := io.WriteString(f.engines.In, "go\n"); err != nil {
		return err
	}
	return measure.Await(ctx, time.Minute, func() error { return f.holds(ctx, at[2], blocks) })
}

// holds is an error until the router's metrics count so many blocks.
func (f *fleet) holds(ctx context.Context, admin string, blocks int) error {
	text, err := f.call(ctx, http.MethodGet, "http://"+admin+"/metrics", nil)
	if err != nil {
		return err
	}
	held := 0.
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if name == "kvpilot_kvindex_blocks" || strings.HasPrefix(name, "kvpilot_kvindex_blocks{") {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return err
			}
			held += n
		}
	}
	if int(held) < blocks {
		return fmt.Errorf("the index has %.0f of %d blocks", held, blocks)
	}
	return nil
}

// serveReplica answers a router's questions to a vLLM replica other than inference, and returns its address.
func (f *fleet) serveReplica(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	mux := http.NewServeMux()
	for path, body := range map[string]string{
		"/health": "", "/version": `{"version":"0.24.0"}`,
		"/v1/models": `{"object":"list","data":[{"id":"` + model + `","object":"model","created":1,"owned_by":"vllm","root":"` + model + `","parent":null,"max_model_len":1048576}]}`,
		"/metrics":   "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100000\"} 1\n",
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, body) // the router is gone then
		})
	}
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	f.replicas = append(f.replicas, s)
	go func() { _ = s.Serve(l) }() // it ends with stop
	return l.Addr().String(), nil
}

func booking(book bool) kvpilotv1.Booking {
	if book {
		return kvpilotv1.Booking_BOOKING_RESERVE
	}
	return kvpilotv1.Booking_BOOKING_NONE
}

func bookingHeader(book bool) string {
	if book {
		return "reserve"
	}
	return "none"
}

// grpcAsk asks over gRPC; booked questions are released.
func (f *fleet) grpcAsk(book bool) func(context.Context, []uint32) error {
	return func(ctx context.Context, ids []uint32) error {
		out, err := f.routing.ChooseReplica(ctx, &kvpilotv1.ChooseReplicaRequest{
			Model: model, Booking: booking(book), Prompt: &kvpilotv1.ChooseReplicaRequest_TokenIds{TokenIds: &kvpilotv1.TokenIds{Ids: ids}},
		})
		if err != nil || !book {
			return err
		}
		_, err = f.routing.ReportReservation(ctx, reports.Completed(out.GetReservationId()))
		return err
	}
}

// typedAsk is grpcAsk with the same messages as JSON.
func (f *fleet) typedAsk(book bool) func(context.Context, []uint32) error {
	return func(ctx context.Context, ids []uint32) error {
		body := appendIDs(fmt.Appendf(nil, `{"model":%q,"booking":%q,"tokenIds":{"ids":`, model, booking(book)), ids)
		return f.restAsk(ctx, "/kvpilot/v1/choose", append(body, "}}"...), book)
	}
}

// bodyAsk sends the completions request itself, whose prompt is the ids.
func (f *fleet) bodyAsk(book bool) func(context.Context, []uint32) error {
	return func(ctx context.Context, ids []uint32) error {
		body := appendIDs(fmt.Appendf(nil, `{"model":%q,"prompt":`, model), ids)
		return f.restAsk(ctx, "/v1/route:choose", append(body, '}'), book)
	}
}

func appendIDs(body []byte, ids []uint32) []byte {
	body = append(body, '[')
	for i, id := range ids {
		if i > 0 {
			body = append(body, ',')
		}
		body = strconv.AppendUint(body, uint64(id), 10)
	}
	return append(body, ']')
}

func (f *fleet) restAsk(ctx context.Context, path string, body []byte, book bool) error {
	text, err := f.call(ctx, http.MethodPost, f.rest+path, body, "X-Kvpilot-Booking", bookingHeader(book))
	if err != nil || !book {
		return err
	}
	var out struct {
		ReservationID string `json:"reservation_id"`
	}
	if err := json.Unmarshal(text, &out); err != nil {
		return err
	}
	_, err = f.call(ctx, http.MethodPost, f.rest+"/kvpilot/v1/reservations/"+out.ReservationID+":report", []byte(`{"release":{"reason":"RELEASE_REASON_COMPLETED"}}`))
	return err
}

func (f *fleet) call(ctx context.Context, method, url string, body []byte, header ...string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := f.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: status %d: %.200s", url, resp.StatusCode, text)
	}
	return text, err
}

// stop ends all processes and servers.
func (f *fleet) stop() error {
	var errs []error
	if f.conn != nil {
		errs = append(errs, f.conn.Close())
	}
	if f.router != nil {
		f.router.Stop(30 * time.Second)
		errs = append(errs, f.router.Err())
	}
	if f.engines != nil {
		errs = append(errs, f.engines.In.Close())
		_, _ = io.Copy(io.Discard, f.engines.Out) // unread output must not block the engines
		errs = append(errs, f.engines.Wait())
	}
	for _, s := range f.replicas {
		errs = append(errs, s.Close())
	}
	f.http.CloseIdleConnections()
	if f.folder != "" {
		errs = append(errs, os.RemoveAll(f.folder))
	}
	return errors.Join(errs...)
}
