package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvpilot/kvpilot/client"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// rewrite replaces the settings file at once, as editors do.
func (f *fleet) rewrite(text string) {
	f.t.Helper()
	name := filepath.Join(filepath.Dir(f.file), rand.Text())
	if err := errors.Join(os.WriteFile(name, []byte(text), 0o600), os.Rename(name, f.file)); err != nil {
		f.t.Error(err)
	}
}

func (f *fleet) dial(options ...client.Option) *client.Client {
	f.t.Helper()
	c, err := client.Dial(f.grpc, options...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.Close() })
	return c
}

// cli runs a client command against the router.
func (f *fleet) cli(args ...string) (string, error) {
	var out bytes.Buffer
	err := run(context.Background(), append(args, "--address", f.grpc), nil, &out, io.Discard)
	return out.String(), err
}

// Valid, invalid and cut settings, two at once, by RPC and by the watch, while clients stream, and until the router has ended:
// no request is lost, and what is in force in the end is the last that was good.
func TestAStormOfReloadsLosesNoRequest(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for four seconds")
	}
	t.Parallel()
	f := startFleet(t, fleetOptions{yaml: "chooser: {policy: round-robin}\n"})
	good := func(i int) string {
		policy := []string{"predicted-ttft", "least-requests", "overlap-load", "round-robin"}[i%4]
		return strings.Replace(f.text, "chooser: {policy: round-robin}\n", fmt.Sprintf(
			"chooser:\n  policy: %s\n  shadow: random\n  hold_above: %dms\n  models: {sim: {objective: ttft}}\nrouter: {tokenize_timeout: %ds, headers: {address: %t}}\n"+
				"upstream: {dial_timeout: %ds, retry: {attempts: %d}, breaker: {failures: %d}}\ngateway: {stall_timeout: %ds}\ntelemetry: {log_level: %s}\nkvindex: {max_ranks: %d}\n",
			policy, 500*(i%2), 2+i%3, i%2 == 0, 1+i%4, 1+i%3, 3+i%5, 30+i%60, []string{"info", "debug"}[i%2], 512+i%2), 1)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var clients, reloaders sync.WaitGroup
	var asked, lost, refused atomic.Int64
	for i := range 6 {
		clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				asked.Add(1)
				stream := `,"stream":true`
				if n%3 == 0 {
					stream = ""
				}
				a := f.post("/v1/chat/completions", conversation(fmt.Sprintf("client %d", i), n%5+1, stream))
				if list := a.events(); a.err != nil || a.status != http.StatusOK || stream != "" && (len(list) == 0 || list[len(list)-1] != "[DONE]") {
					lost.Add(1)
					t.Logf("lost: %d %v %.300s", a.status, a.err, a.body)
				}
			}
		})
	}
	api := f.dial()
	reload := func() {
		_, err := api.Settings().ReloadConfig(context.Background(), &kvpilotv1.ReloadConfigRequest{})
		switch code := status.Code(err); code {
		case codes.OK:
		case codes.InvalidArgument:
			refused.Add(1)
		case codes.Unavailable, codes.Canceled: // the router is stopping
		default:
			t.Errorf("ReloadConfig: %v", err)
		}
	}
	over := make(chan struct{})
	for i := range 2 {
		reloaders.Go(func() {
			for n := i; ; n++ {
				select {
				case <-over:
					return
				case <-time.After(time.Duration(n%7) * time.Millisecond):
				}
				switch n % 6 {
				case 0, 1, 2:
					f.rewrite(good(n))
				case 3:
					f.rewrite(good(n) + "nonsense: true\n")
				case 4: // a write that is cut: what is there is the beginning
					text := good(n)[:n*37%len(good(n))]
					// One that ends with a line may be a whole file of fewer replicas, which nobody can tell from a cut one.
					_ = os.WriteFile(f.file, []byte(strings.TrimRight(text, "\n")), 0o600)
				case 5:
					_ = os.Truncate(f.file, 0)
				}
				if n%5 == 4 {
					versions, err := api.Settings().ListConfigVersions(context.Background(), &kvpilotv1.ListConfigVersionsRequest{})
					if list := versions.GetVersions(); err == nil && len(list) > 1 {
						_, _ = api.Settings().RollbackConfig(context.Background(), &kvpilotv1.RollbackConfigRequest{Version: list[len(list)-1].GetVersion()}) // it may be forgotten by now
					}
				}
				reload()
			}
		})
	}
	time.Sleep(4 * time.Second)
	f.eventually("ten files were applied, and ten refused", func() bool {
		return f.metric("kvpilot_config_reloads_total", `result="applied"`) >= 10 && f.metric("kvpilot_config_reloads_total", `result="refused"`) >= 10
	})
	close(over)
	reloaders.Wait()
	f.rewrite(good(0))
	reload()
	answer, err := api.Settings().ReloadConfig(context.Background(), &kvpilotv1.ReloadConfigRequest{DryRun: true})
	if err != nil || len(answer.GetChanges()) != 0 && !onlyRestart(answer.GetChanges()) {
		t.Errorf("after the storm: %v, %v", answer, err)
	}
	if a := f.post("/v1/chat/completions", conversation("after", 1, "")); a.status != http.StatusOK || a.header.Get("X-Kvpilot-Policy") != "predicted-ttft" {
		t.Errorf("status %d, policy %q", a.status, a.header.Get("X-Kvpilot-Policy"))
	}
	cancel()
	clients.Wait()
	if n := f.metric("kvpilot_config_reloads_total", `result="failed"`); n != 0 {
		t.Errorf("%v reloads failed", n)
	}
	t.Logf("%d requests, %d reloads refused", asked.Load(), refused.Load())
	if lost.Load() > 0 {
		t.Errorf("%d of %d requests were lost", lost.Load(), asked.Load())
	}
	// Reloads that are asked for while the router stops neither hold it up nor break it.
	stopping := make(chan struct{})
	reloaders.Go(func() {
		for {
			select {
			case <-stopping:
				return
			default:
				reload()
			}
		}
	})
	f.stop()
	close(stopping)
	reloaders.Wait()
}

func onlyRestart(list []*kvpilotv1.ConfigChange) bool {
	for _, c := range list {
		if !c.GetNeedsRestart() {
			return false
		}
	}
	return true
}

// A stream that is under way when everything about its choice changes goes on to its end.
func TestAStreamOutlivesAReload(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{replicas: 1})
	f.engines[0].SetFaults(enginesim.Faults{EngineFaults: enginesim.EngineFaults{Stall: true}})
	answered := make(chan answer, 1)
	id, header := newTrace(91)
	go func() {
		answered <- postTo(t, "http://"+f.http+"/v1/chat/completions", conversation("long", 1, `,"stream":true`), "traceparent", header)
	}()
	f.eventually("the engine has the request", func() bool { return sawTrace(f.engines, id) })
	f.rewrite(f.text + "api: {keys: [{name: a, key: sesame-open}]}\nchooser: {policy: random}\nrouter: {tokenize_timeout: 1s}\nupstream: {stall_timeout: 1s, retry: {attempts: 1}}\n")
	if out, err := f.cli("reload"); err != nil || !strings.Contains(out, "Version 2 is in force") {
		t.Fatalf("%s %v", out, err)
	}
	time.Sleep(1500 * time.Millisecond) // longer than the new stall timeout, which is not its own
	f.engines[0].SetFaults(enginesim.Faults{})
	a := <-answered
	if list := a.events(); a.err != nil || a.status != http.StatusOK || len(list) == 0 || list[len(list)-1] != "[DONE]" {
		t.Errorf("status %d, %v: %s", a.status, a.err, a.body)
	}
	if a := f.post("/v1/chat/completions", conversation("no key", 1, "")); a.status != http.StatusUnauthorized {
		t.Errorf("without the new key: status %d", a.status)
	}
	if a := f.post("/v1/chat/completions", conversation("a key", 1, ""), "Authorization", "Bearer sesame-open"); a.status != http.StatusOK || a.header.Get("X-Kvpilot-Policy") != "random" {
		t.Errorf("with the new key: status %d, policy %q", a.status, a.header.Get("X-Kvpilot-Policy"))
	}
}

func TestReloadCommands(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 1})
	say := func(want []string, args ...string) {
		t.Helper()
		out, err := f.cli(args...)
		if err != nil {
			t.Errorf("%v: %v", args, err)
		}
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("%v says\n%s\nwithout %q", args, out, w)
			}
		}
		if strings.Contains(out, "hunter2") {
			t.Errorf("%v shows a secret:\n%s", args, out)
		}
	}
	say([]string{"Nothing has changed; version 1"}, "reload")
	f.rewrite(f.text + "chooser: {policy: round-robin}\nkvindex: {max_ranks: 100}\ntelemetry: {traces: {token: hunter2hunter2}}\n")
	say([]string{"The settings are valid.", "Would be applied:\n  chooser.policy: predicted-ttft -> round-robin\n", "Needs a restart:\n  kvindex.max_ranks: 512 -> 100\n", "telemetry.traces.token: (none) -> ******"}, "reload", "--dry-run")
	if a := f.post("/v1/chat/completions", conversation("dry", 1, "")); a.header.Get("X-Kvpilot-Policy") != "predicted-ttft" {
		t.Error("a dry run changed the policy")
	}
	say([]string{"Version 2 is in force.", "Applied:\n  chooser.policy", "Needs a restart:"}, "reload")
	say([]string{"*2", "call", "127.0.0.1", "chooser.policy", "start"}, "config", "versions")
	say([]string{"Version 3 is in force.", "round-robin -> predicted-ttft"}, "config", "rollback", "1")
	say([]string{"rollback to 1"}, "config", "versions")
	say([]string{`"rollback_of": "1"`, `"hash"`}, "config", "versions", "-o", "json")

	f.rewrite("chooser: {policy: nonsense}\nrouter: {tokenize_timeout: 0s}\napi: {keys_file: /nonexistent}\n")
	var own *exitError
	_, err := f.cli("reload")
	if !errors.As(err, &own) || own.code != exitRefused || !strings.Contains(err.Error(), "chooser.policy") || !strings.Contains(err.Error(), "router.tokenize_timeout") || !strings.Contains(err.Error(), "the old ones stay") {
		t.Errorf("error %v, want one with code %d that names both settings", err, exitRefused)
	}
	f.rewrite("api: {keys_file: /nonexistent}\n")
	if _, err := f.cli("reload", "--dry-run"); !errors.As(err, &own) || !strings.Contains(err.Error(), "keys_file") {
		t.Errorf("error %v, want one that names the file", err)
	}
	for _, bad := range []string{"99", "x", "0"} {
		if _, err := f.cli("config", "rollback", bad); err == nil || !strings.Contains(err.Error(), "version") {
			t.Errorf("rollback %s: %v", bad, err)
		}
	}
	if strings.Contains(f.log.String(), "hunter2") {
		t.Error("the log shows a secret")
	}
}

func TestReloadOverRESTIsForAdmins(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(keys, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("caller:caller-key\nops:ops-key-1234:admin\n")
	f := startFleet(t, fleetOptions{replicas: 1, yaml: "api: {keys_file: " + keys + "}\n", key: "ops-key-1234"})
	for _, c := range []struct {
		path, key string
		status    int
		says      string
	}{
		{"/kvpilot/v1/config:reload", "", http.StatusUnauthorized, ""},
		{"/kvpilot/v1/config:reload", "caller-key", http.StatusForbidden, ""},
		{"/kvpilot/v1/config/versions/1:rollback", "caller-key", http.StatusForbidden, ""},
		{"/kvpilot/v1/config:reload", "ops-key-1234", http.StatusOK, `"unchanged":true`},
		{"/kvpilot/v1/config/versions/0:rollback", "ops-key-1234", http.StatusBadRequest, "version"},
		{"/kvpilot/v1/config/versions/7:rollback", "ops-key-1234", http.StatusNotFound, "no such version"},
	} {
		a := f.post(c.path, "{}", "Authorization", "Bearer "+c.key)
		if a.status != c.status || !strings.Contains(strings.ReplaceAll(string(a.body), " ", ""), strings.ReplaceAll(c.says, " ", "")) {
			t.Errorf("%s as %q: status %d %s, want %d with %q", c.path, c.key, a.status, a.body, c.status, c.says)
		}
	}
	if a := f.post("/openapi.json", ""); !bytes.Contains(get(t, "http://"+f.http+"/openapi.json"), []byte("/kvpilot/v1/config/versions")) {
		t.Errorf("the REST surface's description lacks it (%d)", a.status)
	}
	// The keys change in their file alone.
	write("other:other-key-1\nops:ops-key-1234:admin\n")
	if out, err := f.cli("reload", "--key", "ops-key-1234"); err != nil || !strings.Contains(out, "api.keys_file") {
		t.Fatalf("%s %v", out, err)
	}
	for key, want := range map[string]int{"caller-key": http.StatusUnauthorized, "other-key-1": http.StatusOK} {
		if a := f.post("/v1/chat/completions", conversation("keyed", 1, ""), "Authorization", "Bearer "+key); a.status != want {
			t.Errorf("%s: status %d, want %d", key, a.status, want)
		}
	}
	// Nothing turns keys off while the router runs.
	write("# none\n")
	if _, err := f.cli("reload", "--key", "ops-key-1234"); err == nil || !strings.Contains(err.Error(), "holds no key") {
		t.Errorf("a file without keys: %v", err)
	}
	f.rewrite("registry:\n  replicas: [{id: r0, url: \"" + f.urls[0] + "\"}]\n")
	if _, err := f.cli("reload", "--key", "ops-key-1234"); err == nil || !strings.Contains(err.Error(), "only a restart turns keys off") {
		t.Errorf("settings without keys: %v", err)
	}
	if out, err := f.cli("config", "versions", "--key", "ops-key-1234"); err != nil || !strings.Contains(out, "ops (127.0.0.1)") {
		t.Errorf("the history does not say who: %s %v", out, err)
	}
}

func get(t *testing.T, url string) []byte {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Kubernetes mounts a ConfigMap as links to links and swaps the middle one.
func TestTheWatchFollowsKubernetes(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for eight looks at the files, two seconds each")
	}
	dir := t.TempDir()
	mount := func(version, settings, keys string) {
		t.Helper()
		folder := filepath.Join(dir, "..2026_"+version)
		err := errors.Join(os.Mkdir(folder, 0o700), os.WriteFile(filepath.Join(folder, "more.yaml"), []byte(settings), 0o600),
			os.WriteFile(filepath.Join(folder, "keys"), []byte(keys), 0o600),
			os.Symlink(folder, filepath.Join(dir, "..data_tmp")), os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		if err != nil {
			t.Fatal(err)
		}
	}
	f := startFleet(t, fleetOptions{replicas: 1})
	// The settings are read through a link from now on; what it leads to says the same.
	keyed := "api: {keys_file: " + filepath.Join(dir, "keys") + "}\n"
	mount("1", f.text+keyed, "a:first-key-1\n")
	for _, name := range []string{"more.yaml", "keys"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Remove(f.file), os.Symlink(filepath.Join(dir, "more.yaml"), f.file)); err != nil {
		t.Fatal(err)
	}
	status := func(key string) int {
		return f.post("/v1/chat/completions", conversation("keyed", 1, ""), "Authorization", "Bearer "+key).status
	}
	f.eventually("the keys are in force", func() bool {
		return status("wrong-key") == http.StatusUnauthorized && status("first-key-1") == http.StatusOK
	})
	mount("2", f.text+keyed+"chooser: {policy: random}\n", "a:second-key\n")
	f.eventually("both files are followed", func() bool {
		a := f.post("/v1/chat/completions", conversation("keyed", 1, ""), "Authorization", "Bearer second-key")
		return a.status == http.StatusOK && a.header.Get("X-Kvpilot-Policy") == "random" && status("first-key-1") == http.StatusUnauthorized
	})
	// A mount that is wrong leaves all as it is, and is counted once.
	mount("3", f.text+keyed+"chooser: {policy: nonsense}\n", "a:third-key-1\n")
	f.eventually("the refusal is counted", func() bool { return f.metric("kvpilot_config_reloads_total", `result="refused"`) == 1 })
	if status("second-key") != http.StatusOK || status("third-key-1") != http.StatusUnauthorized {
		t.Error("part of a wrong version is in force")
	}
	if f.metric("kvpilot_config_info", `version="3"`) != 1 || f.metric("kvpilot_config_last_success_seconds") < float64(time.Now().Unix()-60) {
		t.Error("the metrics do not say which version is in force, and since when")
	}
	// A file that was emptied to be written anew is no wish for defaults.
	_ = os.Remove(f.file)
	if err := os.WriteFile(f.file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f.eventually("the empty file is refused", func() bool { return f.metric("kvpilot_config_reloads_total", `result="refused"`) == 2 })
	if status("second-key") != http.StatusOK {
		t.Error("an empty file changed the keys")
	}
}

// Replicas of the fixed list come, move and go, and aliases with them.
func TestTheFixedListChangesByReload(t *testing.T) {
	f := startFleet(t, fleetOptions{})
	one := fmt.Sprintf("registry:\n  probe: {interval: 200ms, up: 1}\n  aliases: {other: sim}\n  replicas: [{id: r1, url: %q}]\n", f.urls[1])
	f.rewrite(one)
	if out, err := f.cli("reload"); err != nil || !strings.Contains(out, "registry.replicas[r0].url") || !strings.Contains(out, "registry.aliases.other") {
		t.Fatalf("%s %v", out, err)
	}
	for range 4 {
		if a := f.post("/v1/chat/completions", strings.Replace(conversation("x", 1, ""), `"model":"sim"`, `"model":"other"`, 1)); a.status != http.StatusOK || a.header.Get("X-Kvpilot-Replica") != "r1" {
			t.Errorf("status %d from %q: %s", a.status, a.header.Get("X-Kvpilot-Replica"), a.body)
		}
	}
	f.rewrite(f.text)
	if _, err := f.cli("reload"); err != nil {
		t.Fatal(err)
	}
	f.eventually("r0 is back", func() bool {
		return f.post("/v1/chat/completions", conversation("y", 1, "")).status == http.StatusOK && f.metric("kvpilot_registry_replicas", `state="ready"`) == 2
	})
}
