package doctor

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/memlimit"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
	"github.com/kvpilot/kvpilot/test/pki"
)

// In a set-up without faults every check is ok, or has nothing to test.
func TestAHealthySetUp(t *testing.T) {
	t.Parallel()
	for name, w := range map[string]*world{
		"two replicas":          {},
		"sockets as reported":   {replica: func(int, running) string { return "labels: {zone: a}" }},
		"data-parallel ranks":   {engine: func(_ int, c *enginesim.Config) { c.Ranks = 3 }, replica: func(_ int, r running) string { return "ranks: 3\n" + r.sockets() }},
		"ranks as reported":     {engine: func(_ int, c *enginesim.Config) { c.Ranks = 2 }, replica: func(int, running) string { return "labels: {}" }},
		"an older version":      {engine: func(_ int, c *enginesim.Config) { c.Version = "0.12.0" }},
		"the Rust front end":    {engine: func(_ int, c *enginesim.Config) { c.Rust, c.Version = true, "0.28.0" }, replica: func(_ int, r running) string { return "block_size: 16\nblocks: 40000\n" + r.sockets() }},
		"large blocks":          {engine: func(_ int, c *enginesim.Config) { c.Core.BlockSize, c.Core.Blocks = 528, 2000 }},
		"a key":                 {engine: func(_ int, c *enginesim.Config) { c.APIKey = "sesame-open" }, registry: "  access: {api_key: sesame-open}\n"},
		"adapters and an alias": {engine: func(_ int, c *enginesim.Config) { c.Adapters = []string{"tuned"} }, registry: "  aliases: {gpt: sim}\n"},
		"caches are pushed":     {engine: func(_ int, c *enginesim.Config) { c.Transfer.Connector = "nixl-push" }, replica: func(_ int, r running) string { return "labels: {kv_connector: nixl-push}\n" + r.sockets() }},
		"caches are kept": {engine: func(_ int, c *enginesim.Config) { c.Transfer.Connector = "mooncake" }, replica: func(_ int, r running) string {
			return "labels: {kv_connector: mooncake, kv_bootstrap: \"" + r.url + "\"}\n" + r.sockets()
		}},
		"caches are passed on":   {engine: func(_ int, c *enginesim.Config) { c.Transfer.Connector = "nixl" }, replica: func(_ int, r running) string { return "labels: {kv_connector: nixl}\n" + r.sockets() }},
		"hashes as byte strings": {engine: func(_ int, c *enginesim.Config) { c.BytesHashes = true }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wants := map[string]want{}
			if strings.Contains(name, "Rust") {
				wants["metrics"] = want{Warn, "r0", "process_start_time_seconds", "restarts"}
			}
			p := w.start(t)
			expect(t, p, wants)
		})
	}
}

func TestWithoutSending(t *testing.T) {
	w := &world{params: func(p *Params) { p.NoSend = true }}
	for _, r := range Local(t.Context(), w.start(t)) {
		if r.Check == "blocks" && r.Status != Skip || r.Check == "parity" && r.Status != OK {
			t.Errorf("%+v", r)
		}
	}
}

// second is a fault of the second replica alone.
func second(f enginesim.Faults) func(int) enginesim.Faults {
	return func(i int) enginesim.Faults {
		if i == 1 {
			return f
		}
		return enginesim.Faults{}
	}
}

// only changes the second replica alone.
func only(change func(*enginesim.Config)) func(int, *enginesim.Config) {
	return func(i int, c *enginesim.Config) {
		if i == 1 {
			change(c)
		}
	}
}

// settings replaces the second replica's sockets.
func settings(change func(r running) string) func(int, running) string {
	return func(i int, r running) string {
		if i == 1 {
			return change(r)
		}
		return r.sockets()
	}
}

// Every break is found by one check, with the advice that repairs it.
func TestBrokenReplicas(t *testing.T) {
	t.Parallel()
	nobody := refusing(t)
	for _, tc := range []struct {
		name  string
		world world
		check string
		want  want
	}{
		// The longest first: the others run meanwhile.
		{"replays are asked of the event socket", world{replica: settings(func(r running) string {
			return fmt.Sprintf("events: {endpoint: '%s', replay: '%s'}", r.events[0], r.events[0])
		})}, "replay", want{Fail, "r1", "replay (first)", "set events.replay"}},
		{"the port is closed", world{url: urlOf(1, "http://"+nobody)}, "network", want{Fail, "r1", "connection refused", "--host 0.0.0.0"}},
		{"the name is unknown", world{url: urlOf(1, "http://no.such.name.invalid:8000")}, "network", want{Fail, "r1", "not resolved", "correct the name in the replica's url"}},
		{"health says 503", world{faults: second(enginesim.Faults{Where: enginesim.Where{Paths: []string{"/health"}}, AnswerFaults: enginesim.AnswerFaults{Status: 503}})}, "health", want{Fail, "r1", "dead", "restart it"}},
		{"health hangs", world{faults: second(enginesim.Faults{Where: enginesim.Where{Paths: []string{"/health"}}, ConnectionFaults: enginesim.ConnectionFaults{Hang: true}}), registry: "  probe: {timeout: 300ms}\n"}, "health", want{Fail, "r1", "no answer within 300ms", "look at the process"}},
		{"the url ends with /v1", world{url: func(i int, url string) string { return url + strings.Repeat("/v1", i) }}, "health", want{Fail, "r1", "status 404", "remove /v1"}},
		{"a key is missing", world{engine: only(func(c *enginesim.Config) { c.APIKey = "sesame-open" })}, "key", want{Fail, "r1", "asks for a key", "api_key_file"}},
		{"the key is wrong", world{engine: only(func(c *enginesim.Config) { c.APIKey = "sesame-open" }), registry: "  access: {api_key: another-key}\n"}, "key", want{Fail, "r1", "refuses the key", "--api-key"}},
		{"a version is too old", world{engine: func(_ int, c *enginesim.Config) { c.Version = "0.8.5" }}, "version", want{Fail, "r1", "0.8.5", "install vLLM 0.9 or later"}},
		{"versions differ", world{engine: only(func(c *enginesim.Config) { c.Version = "0.30.0" })}, "version", want{Warn, "sim", "0.30.0 on r1; 0.32.0 on r0", "one vLLM version per pool"}},
		{"the version is hidden", world{faults: second(enginesim.Faults{Where: enginesim.Where{Paths: []string{"/version"}}, AnswerFaults: enginesim.AnswerFaults{Status: 404}})}, "version", want{Warn, "r1", "status 404", "GET /version"}},
		{"context lengths differ", world{engine: only(func(c *enginesim.Config) { c.Core.MaxModelLen = 4096 })}, "models", want{Fail, "sim", "max_model_len 131072 on r0; max_model_len 4096 on r1", "--max-model-len"}},
		{"an adapter is missing", world{engine: only(func(c *enginesim.Config) { c.Adapters = []string{"tuned"} })}, "models", want{Warn, "sim", "tuned on r1", "--lora-modules"}},
		{"an alias for nothing", world{registry: "  aliases: {gpt: qwen}\n"}, "models", want{Fail, "registry.aliases", "replicas serve sim", "--served-model-name qwen"}},
		{"metrics are off", world{faults: second(enginesim.Faults{Where: enginesim.Where{Paths: []string{"/metrics"}}, AnswerFaults: enginesim.AnswerFaults{Status: 404}})}, "metrics", want{Fail, "r1", "status 404", "--disable-log-stats"}},
		{"prefix caching is off", world{engine: only(func(c *enginesim.Config) { c.Core.PrefixCaching = false })}, "metrics", want{Fail, "r1", "False", "--enable-prefix-caching"}},
		{"block sizes differ", world{engine: only(func(c *enginesim.Config) { c.Core.BlockSize = 32 })}, "metrics", want{Warn, "sim", "block size 16 on r0; block size 32 on r1", "--block-size"}},
		{"the configured block size is wrong", world{replica: settings(func(r running) string { return "block_size: 64\n" + r.sockets() })}, "metrics", want{Fail, "r1", "the engine's is 16", "remove block_size"}},
		{"ranks are not configured", world{engine: only(func(c *enginesim.Config) { c.Ranks = 2 })}, "ranks", want{Fail, "r1", "metrics of 2 engines", "set ranks: 2"}},
		{"too many ranks are configured", world{replica: settings(func(r running) string { return "ranks: 2\n" + r.sockets() })}, "ranks", want{Fail, "r1", "metrics of 1", "--data-parallel-size 2"}},
		{"no tokenizer", world{faults: second(enginesim.Faults{Where: enginesim.Where{Paths: []string{"/tokenize"}}, AnswerFaults: enginesim.AnswerFaults{Status: 404}})}, "tokenize", want{Fail, "r1", "unsupported", "POST /tokenize"}},
		{"no detokenizer", world{faults: second(enginesim.Faults{Where: enginesim.Where{Paths: []string{"/detokenize"}}, AnswerFaults: enginesim.AnswerFaults{Status: 404}})}, "tokenize", want{Warn, "r1", "unsupported", "POST /detokenize"}},
		{"no render routes", world{engine: func(_ int, c *enginesim.Config) { c.ScaleOut = false }}, "tokenize", want{Warn, "r1", "render is not there", "--enable-scale-out"}},
		{"other ids by one of two ways", world{faults: second(enginesim.Faults{Where: enginesim.Where{Paths: []string{"/tokenize"}}, AnswerFaults: enginesim.AnswerFaults{WrongIDs: true}})}, "tokenize", want{Fail, "r1", "they part at token", "one vLLM behind this URL"}},
		{"another tokenizer", world{engine: only(func(c *enginesim.Config) { c.Vocabulary = otherWords{} })}, "parity", want{Fail, "sim", `they part at token`, "different tokenizers"}},
		{"another chat template", world{engine: only(func(c *enginesim.Config) { c.Vocabulary = otherTemplate{} })}, "parity", want{Fail, "sim", "they part at token", "--chat-template"}},
		{"another rendering of tools", world{engine: only(func(c *enginesim.Config) { c.Vocabulary = otherTools{} })}, "parity", want{Fail, "sim", "they part at token", "render tools differently"}},
		{"no connector", world{replica: func(_ int, r running) string { return "labels: {kv_connector: nixl}\n" + r.sockets() }}, "transfer", want{Fail, "r1", "there are none", "--kv-transfer-config"}},
		{"no bootstrap server", world{engine: func(_ int, c *enginesim.Config) { c.Transfer.Connector = "nixl" }, replica: func(_ int, r running) string {
			return "labels: {kv_connector: mooncake, kv_bootstrap: \"" + r.url + "\"}\n" + r.sockets()
		}}, "transfer", want{Fail, "r1", "/query", "VLLM_MOONCAKE_BOOTSTRAP_PORT"}},
		{"another connector", world{engine: func(_ int, c *enginesim.Config) { c.Transfer.Connector = "nixl-push" }, replica: func(_ int, r running) string { return "labels: {kv_connector: nixl}\n" + r.sockets() }}, "transfer", want{Fail, "r1", "NixlPushConnector", "nixl-push"}},
		{"one group each", world{replica: func(i int, r running) string {
			return fmt.Sprintf("labels: {kv_connector: nixl, kv_group: g%d}\n%s", i, r.sockets())
		}}, "transfer", want{Warn, "r1", "alone in the group", "kv_group"}},
		{"two that prefill", world{replica: func(_ int, r running) string { return "labels: {kv_connector: nixl, role: prefill}\n" + r.sockets() }}, "transfer", want{Warn, "r1", "alone in the group", "other role"}},
		{"a role that is none", world{replica: func(_ int, r running) string { return "labels: {kv_connector: nixl, role: leader}\n" + r.sockets() }}, "transfer", want{Warn, "r1", "counts as both", "correct the label"}},
		{"the event port is closed", world{replica: settings(func(r running) string {
			return fmt.Sprintf("events: {endpoint: 'tcp://%s', replay: '%s'}", nobody, r.replays[0])
		})}, "events", want{Fail, "r1", "connection refused", "--kv-events-config"}},
		{"the sockets are exchanged", world{replica: settings(func(r running) string {
			return fmt.Sprintf("events: {endpoint: '%s', replay: '%s'}", r.replays[0], r.events[0])
		})}, "events", want{Fail, "r1", "a ROUTER socket", "exchanged"}},
		{"another program at the event port", world{replica: settings(func(r running) string {
			return fmt.Sprintf("events: {endpoint: 'tcp://%s', replay: '%s'}", strings.TrimPrefix(r.url, "http://"), r.replays[0])
		})}, "events", want{Fail, "r1", "", "another program"}},
		{"no events", world{engine: func(_ int, c *enginesim.Config) { c.Version = "0.20.0" }, replica: func(int, running) string { return "labels: {}" }}, "events", want{Warn, "r1", "no endpoint is set", "registry.events.endpoint"}},
		{"no replay socket", world{replica: settings(func(r running) string { return fmt.Sprintf("events: {endpoint: '%s'}", r.events[0]) })}, "replay", want{Warn, "r1", "none is set", "replay_endpoint"}},
		{"the replay port is closed", world{replica: settings(func(r running) string {
			return fmt.Sprintf("events: {endpoint: '%s', replay: 'tcp://%s'}", r.events[0], nobody)
		})}, "replay", want{Fail, "r1", "connection refused", "replay_endpoint"}},
		{"the engine publishes nothing", world{faults: second(enginesim.Faults{EngineFaults: enginesim.EngineFaults{StopEvents: true}})}, "blocks", want{Fail, "r1", "no event came within", `"publisher":"zmq"`}},
		{"the topic does not match", world{replica: settings(func(r running) string {
			return fmt.Sprintf("events: {endpoint: '%s', replay: '%s', topic: other}", r.events[0], r.replays[0])
		})}, "events", want{Fail, "r1", `"other"`, "events.topic"}},
		{"the topic does not match, and is not reported", world{engine: silentSources, replica: settings(func(r running) string {
			return fmt.Sprintf("events: {endpoint: '%s', replay: '%s', topic: other}", r.events[0], r.replays[0])
		})}, "blocks", want{Fail, "r1", "", "events.topic"}},
		{"the engine publishes other tokens", world{faults: second(enginesim.Faults{EngineFaults: enginesim.EngineFaults{LieEvents: true}})}, "blocks", want{Fail, "r1", "they part at token", "the same one"}},
		{"requests fail", world{engine: func(_ int, c *enginesim.Config) { c.Version = "0.12.0" }, faults: second(enginesim.Faults{Where: enginesim.Where{Paths: []string{"/v1/completions"}}, AnswerFaults: enginesim.AnswerFaults{Status: 500}})}, "blocks", want{Fail, "r1", "500", "log"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if tc.check == "replay" && tc.want.seen == "replay (first)" && testing.Short() {
				t.Skip("twelve seconds")
			}
			expect(t, tc.world.start(t), map[string]want{tc.check: tc.want})
		})
	}
}

func urlOf(which int, url string) func(int, string) string {
	return func(i int, own string) string {
		if i == which {
			return url
		}
		return own
	}
}

// otherWords is a tokenizer with other ids, otherTemplate a chat template that ends in another way, otherTools one that writes
// tools twice.
type (
	otherWords    struct{}
	otherTemplate struct{ sameWords }
	otherTools    struct{ sameWords }
	sameWords     struct{}
)

func (sameWords) Encode(text string, special bool) []uint32 { return vocab.EncodePrompt(text, special) }
func (sameWords) Decode(ids []uint32) string                { return string(vocab.Decode(nil, ids, false)) }

func (otherWords) Encode(text string, special bool) []uint32 {
	ids := vocab.EncodePrompt(text, special)
	for i := range ids {
		ids[i] ^= 1
	}
	return ids
}

func (otherWords) Decode(ids []uint32) string {
	back := make([]uint32, len(ids))
	for i, id := range ids {
		back[i] = id ^ 1
	}
	return string(vocab.Decode(nil, back, false))
}

func (o otherWords) Render(c vocab.Chat) (vocab.Rendered, error) { return vocab.Render(c) }

func (otherTemplate) Render(c vocab.Chat) (vocab.Rendered, error) {
	r, err := vocab.Render(c)
	r.IDs = append(r.IDs, 7, 7)
	return r, err
}

func (otherTools) Render(c vocab.Chat) (vocab.Rendered, error) {
	c.Tools = append(c.Tools, c.Tools...)
	return vocab.Render(c)
}

func TestATokenizerThatIsNotTheEngines(t *testing.T) {
	t.Parallel()
	w := &world{replicas: 1, faults: func(int) enginesim.Faults {
		return enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{WrongIDs: true}}
	}}
	expect(t, w.start(t), map[string]want{
		"tokenize": {Warn, "r0", "", "loses text"},
		"blocks":   {Fail, "r0", "they part at token", "one vLLM behind the URL"},
	})
}

func TestTwoReplicasWithOneEventSocket(t *testing.T) {
	t.Parallel()
	var first string
	w := &world{replica: func(i int, r running) string {
		if i == 0 {
			first = r.sockets()
		}
		return first
	}}
	expect(t, w.start(t), map[string]want{"events": {Fail, "r1", "r0 has the same", "ports of their own"}})
}

func TestOneRankWithoutEvents(t *testing.T) { // alone: the port behind its socket must be free
	if testing.Short() {
		t.Skip("SKIPPED: it waits for five seconds")
	}
	w := &world{replicas: 1, engine: func(_ int, c *enginesim.Config) { c.Ranks = 2 }, replica: func(_ int, r running) string {
		// The second rank is taken to be at the port behind the first one's, which is the replay of nobody.
		return fmt.Sprintf("ranks: 2\nevents: {endpoint: '%s', replay: '%s'}", r.events[1], r.replays[1])
	}}
	expect(t, w.start(t), map[string]want{
		"events": {Fail, "r0/0", "which r0/1 reports as its own", "set events.endpoint to tcp://127.0.0.1:"},
	})
	w.engine = func(i int, c *enginesim.Config) { silentSources(i, c); c.Ranks = 2 }
	expect(t, w.start(t), map[string]want{
		"events": {Fail, "r0/1", "connection refused", "rank n is at PORT + n"},
		"blocks": {Fail, "r0/0", "no event came within", "this replica's engine"},
	})
}

func TestTheReplicasTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := pki.New(t, "ours"), pki.New(t, "theirs")
	behind := func(c *tls.Config) func(net.Listener) net.Listener {
		return func(l net.Listener) net.Listener { return tls.NewListener(l, c) }
	}
	named := pki.Cert{Names: []string{"engine.internal"}}
	trust := func(file, more string) string {
		return fmt.Sprintf("  access: {tls: {ca_file: %s, server_name: engine.internal%s}}\n", file, more)
	}
	for name, tc := range map[string]struct {
		world world
		wants map[string]want
	}{
		// The certificates of the tests end within the hour.
		"well, and ends soon": {world{scheme: "https", listen: behind(ours.Server(named)), registry: trust(ours.File, "")}, map[string]want{"tls": {Warn, "r1", "it expires on", "--ssl-certfile"}}},
		"another authority":   {world{scheme: "https", listen: behind(theirs.Server(named)), registry: trust(ours.File, "")}, map[string]want{"tls": {Fail, "r1", `not trusted (issuer "theirs")`, "tls.ca_file"}}},
		"another name":        {world{scheme: "https", listen: behind(ours.Server(pki.Cert{Names: []string{"other"}})), registry: trust(ours.File, "")}, map[string]want{"tls": {Fail, "r1", "is for other", "tls.server_name"}}},
		"expired":             {world{scheme: "https", listen: behind(ours.Server(pki.Cert{Names: named.Names, Expired: true})), registry: trust(ours.File, "")}, map[string]want{"tls": {Fail, "r1", "expired on", "certificate"}}},
		"no TLS":              {world{scheme: "https", registry: trust(ours.File, "")}, map[string]want{"tls": {Fail, "r1", "does not speak TLS", ""}}},
		"TLS unexpected":      {world{listen: behind(ours.Server(named))}, map[string]want{"health": {Fail, "r1", "status 400", "https://"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			expect(t, tc.world.start(t), tc.wants)
		})
	}
}

// before is a proxy in front of the second replica.
func before(t *testing.T, change func(*http.Response) error) func(int, string) string {
	return func(i int, own string) string {
		if i != 1 {
			return own
		}
		u, err := url.Parse(own)
		if err != nil {
			t.Fatal(err)
		}
		p := httputil.NewSingleHostReverseProxy(u)
		p.ModifyResponse = change
		p.Transport = &http.Transport{DisableKeepAlives: true}
		s := httptest.NewServer(p)
		t.Cleanup(s.Close)
		return s.URL
	}
}

func TestClocks(t *testing.T) {
	for by, words := range map[time.Duration]string{time.Hour: "ahead of this machine", -10 * time.Minute: "behind this machine"} {
		w := &world{url: before(t, func(r *http.Response) error {
			r.Header.Set("Date", time.Now().Add(by).UTC().Format(http.TimeFormat))
			return nil
		})}
		expect(t, w.start(t), map[string]want{"clocks": {Warn, "r1", words, "NTP"}})
	}
}

func TestTheMachine(t *testing.T) {
	for name, tc := range map[string]struct {
		machine func(*fakeMachine)
		yaml    string
		want    want
	}{
		"files":  {func(m *fakeMachine) { m.files = 1024 }, "", want{Warn, "open files", "1024", "LimitNOFILE"}},
		"memory": {func(*fakeMachine) {}, "memory: {max_bytes: 2147483648}\n", want{Fail, "memory.max_bytes", "control group", "max_bytes: 0"}},
		"enough of a machine": {func(m *fakeMachine) {
			m.memory = memlimit.Limit{Bytes: 3 << 30, From: "machine"}
			m.files = 100
		}, "memory: {max_bytes: 4294967296}\n", want{Warn, "open files", "100", "ulimit"}},
		"processors": {func(m *fakeMachine) {
			m.procs, m.texts = 64, map[string]string{"/sys/fs/cgroup/cpu.max": "200000 100000"}
		}, "", want{Warn, "GOMAXPROCS", "64", "remove GOMAXPROCS"}},
		"ports": {func(m *fakeMachine) {
			m.texts = map[string]string{"/proc/sys/net/ipv4/ip_local_port_range": "32768\t33768"}
		}, "", want{Warn, "local ports", "32768 to 33768", "ip_local_port_range"}},
		"backlog": {func(m *fakeMachine) { m.texts = map[string]string{"/proc/sys/net/core/somaxconn": "128"} }, "", want{Warn, "net.core.somaxconn", "128", "4096"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{yaml: tc.yaml, params: func(p *Params) { tc.machine(p.machine.(*fakeMachine)) }}
			expect(t, w.start(t), map[string]want{"limits": tc.want})
		})
	}
	if q, limited := cpuQuota("max 100000"); limited {
		t.Errorf("max is %v processors", q)
	}
	this := thisMachine{}
	if n, known := this.Files(); known && n == 0 || this.Processors() < 1 || this.Read("/no/such/file") != "" {
		t.Errorf("%+v", this)
	}
}

func TestSettings(t *testing.T) {
	dir := t.TempDir()
	open := filepath.Join(dir, "keys")
	if err := os.WriteFile(open, []byte("team:plain-key-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	short := filepath.Join(dir, "short")
	if err := os.WriteFile(short, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	ours := pki.New(t, "ours")
	cert, key := ours.Issue(pki.Cert{})
	late, lateKey := ours.Issue(pki.Cert{Expired: true})
	tlsOf := func(cert, key string) []string { return []string{"listen.tls_cert=" + cert, "listen.tls_key=" + key} }
	for name, tc := range map[string]struct {
		set  []string
		want want
	}{
		"a value":               {[]string{"chooser.policy=fastest"}, want{Fail, "", "chooser.policy", "docs/config.md"}},
		"a key that is missing": {[]string{"registry.access.api_key_file=" + filepath.Join(dir, "none")}, want{Fail, "", "no such file", "named files"}},
		"a variable not set":    {[]string{"registry.access.api_key_env=NO_SUCH_VARIABLE"}, want{Fail, "", "NO_SUCH_VARIABLE", "variables"}},
		"callers' keys":         {[]string{"api.keys_file=" + short}, want{Fail, "api", "short", "kvpilot key new"}},
		"a file that all read":  {[]string{"api.keys_file=" + open}, want{Warn, "api.keys_file", "0644", "chmod o="}},
		"a missing certificate": {tlsOf(filepath.Join(dir, "none"), key), want{Fail, "listen", "no such file", "listen.tls_cert"}},
		"one that ends soon":    {tlsOf(cert, key), want{Warn, "listen.tls_cert", "expires", "renew"}},
		"one that has ended":    {tlsOf(late, lateKey), want{Fail, "listen.tls_cert", "expired on", "renew"}},
		"the fleet's key":       {[]string{"fleet.listen=127.0.0.1:0", "fleet.rpc_listen=127.0.0.1:0", "fleet.key_file=" + short}, want{Fail, "fleet", "at least", "openssl rand"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{replicas: 1, params: func(p *Params) { p.Source.Set, p.NoSend = tc.set, true }}
			expect(t, w.start(t), map[string]want{"settings": tc.want})
		})
	}
}

func TestTheRoutersAddresses(t *testing.T) {
	taken := httptest.NewServer(http.NotFoundHandler())
	defer taken.Close()
	at := taken.Listener.Addr().String()
	for _, setting := range []string{"listen.http", "listen.grpc", "listen.admin"} {
		w := &world{replicas: 1, params: func(p *Params) { p.Source.Set, p.NoSend = []string{setting + "=" + at}, true }}
		expect(t, w.start(t), map[string]want{"listen": {Fail, setting, "in use by another program", "another port"}})
	}
	w := &world{replicas: 1, params: func(p *Params) { p.Source.Set, p.NoSend = []string{"listen.http=192.0.2.1:8080"}, true }}
	expect(t, w.start(t), map[string]want{"listen": {Fail, "listen.http", "192.0.2.1", ":PORT for all"}})
}

func TestWhatIsAround(t *testing.T) {
	nobody := refusing(t)
	open := listener(t)
	defer open.Close()
	keys := func(text string, status int) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, text)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	fleet := []string{"fleet.listen=127.0.0.1:0", "fleet.rpc_listen=127.0.0.1:0", "fleet.key=0123456789abcdef0123"}
	issuer := func(url string) []string {
		return []string{"api.jwt.issuer=https://issuer.example", "api.jwt.audiences=kvpilot", "api.jwt.jwks_url=" + url}
	}
	const rsa = `{"keys":[{"kty":"EC","crv":"P-256","kid":"a","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}`
	for name, tc := range map[string]struct {
		set   []string
		wants map[string]want
	}{
		"a collector":                {[]string{"telemetry.traces.endpoint=" + open.Addr().String(), "telemetry.traces.insecure=true"}, nil},
		"no collector":               {[]string{"telemetry.traces.endpoint=" + nobody, "telemetry.traces.insecure=true"}, map[string]want{"traces": {Warn, "telemetry.traces.endpoint", "refused", "4317"}}},
		"a collector without TLS":    {[]string{"telemetry.traces.insecure=false", "telemetry.traces.endpoint=" + strings.TrimPrefix(keys("", 200), "http://")}, map[string]want{"traces": {Warn, "telemetry.traces.endpoint", "", "insecure: true"}}},
		"a router to join":           {append([]string{"fleet.join=" + open.Addr().String()}, fleet...), nil},
		"a router that is not there": {append([]string{"fleet.join=" + nobody}, fleet...), map[string]want{"peers": {Warn, "fleet.join", "refused", "fleet.rpc_listen"}}},
		"an issuer":                  {issuer(keys(rsa, 200)), nil},
		"an issuer without keys":     {issuer(keys(`{"keys":[]}`, 200)), map[string]want{"issuer": {Fail, "api.jwt", "it has no key", "jwks_url"}}},
		"an issuer that is away":     {issuer(keys("", 503)), map[string]want{"issuer": {Fail, "api.jwt", "503", "jwks_url"}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{replicas: 1, params: func(p *Params) { p.Source.Set, p.NoSend = tc.set, true }}
			expect(t, w.start(t), tc.wants)
		})
	}
}

// silentSources makes engines that do not report their addresses.
func silentSources(_ int, c *enginesim.Config) { c.Version = "0.31.0" }

// The second replica is set up with the replay socket of the first one.
func TestAReplaySocketOfTheOtherReplica(t *testing.T) {
	exchanged := func() func(int, running) string {
		var first running
		return func(i int, r running) string {
			if i == 0 {
				first = r
				return r.sockets()
			}
			return fmt.Sprintf("events: {endpoint: '%s', replay: '%s'}", r.events[0], first.replays[0])
		}
	}
	busy := func(first, second int) func([]running) {
		return func(list []running) { requests(t, list[0], first); requests(t, list[1], second) }
	}
	const belongs = "the replay socket belongs to another engine"
	for _, tc := range []struct {
		name  string
		world world
		check string
		want  want
	}{
		{"the engines report their sockets", world{}, "replay", want{Fail, "r1", "which r0 reports as its own", "set events.replay to tcp://127.0.0.1:"}},
		{"the engines do not report, and the other one is behind", world{engine: silentSources, past: busy(2, 5)}, "blocks", want{Fail, "r1", belongs, "set events.replay of this replica"}},
		{"the engines do not report, and the other one is ahead", world{engine: silentSources, past: busy(5, 2)}, "blocks", want{Fail, "r1", belongs, "set events.replay of this replica"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tc.world.replica = exchanged()
			expect(t, tc.world.start(t), map[string]want{tc.check: tc.want})
		})
	}
}

// An engine whose client left while it waited for a cache that was to be pushed keeps the blocks.
func TestStrandedBlocks(t *testing.T) {
	t.Parallel()
	post := func(ctx context.Context, url, id, body string) string {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(`{"model":"sim","max_tokens":1,"ignore_eos":true,"prompt":"`+strings.Repeat("a word ", 100)+`","kv_transfer_params":`+body+`}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Request-Id", id)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return ""
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		return string(rawjson.Member(text, "kv_transfer_params"))
	}
	w := &world{
		engine: func(_ int, c *enginesim.Config) {
			c.Transfer.Connector, c.Transfer.Lease = "nixl-push", time.Duration(c.Core.Timing.Speed*float64(time.Second))
		},
		replica: func(_ int, r running) string { return "labels: {kv_connector: nixl-push}\n" + r.sockets() },
		past: func(list []running) {
			params := post(t.Context(), list[0].url, "one", `{"do_remote_decode":true}`)
			ctx, leave := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer leave()
			if got := post(ctx, list[1].url, "another", params); got != "" {
				t.Errorf("answered: %s", got)
			}
			time.Sleep(1500 * time.Millisecond) // the other one's lease has ended
		},
	}
	expect(t, w.start(t), map[string]want{"transfer": {Warn, "r1", "is in use", "restarted"}})
}

// A port that is mapped between router and replica is no fault, and worth a warning.
func TestAMappedPort(t *testing.T) {
	w := &world{replica: settings(func(r running) string {
		return fmt.Sprintf("events: {endpoint: '%s', replay: '%s'}", r.events[0], mapped(t, r.replays[0]))
	})}
	expect(t, w.start(t), map[string]want{"replay": {Warn, "r1", "is set", "ports are mapped on the way"}})
}

// mapped returns an address behind which another one is, until the test ends.
func mapped(t *testing.T, to string) string {
	t.Helper()
	l := listener(t)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); l.Close(); running.Wait() })
	running.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { pass(ctx, from, strings.TrimPrefix(to, "tcp://")) })
		}
	})
	return "tcp://" + l.Addr().String()
}

// pass copies between a connection and an address until either side ends.
func pass(ctx context.Context, from net.Conn, address string) {
	defer from.Close()
	to, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	end := context.AfterFunc(ctx, func() { from.Close(); to.Close() })
	defer end()
	var back sync.WaitGroup
	back.Go(func() { _, _ = io.Copy(from, to); from.Close() })
	_, _ = io.Copy(to, from) // either side may end it
	to.Close()
	back.Wait()
}
