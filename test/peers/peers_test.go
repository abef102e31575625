package peers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/kit/tlspeer"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/remote"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
	"github.com/kvpilot/kvpilot/test/pki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine answers what the four clients ask, and remembers what they showed.
type engine struct {
	*httptest.Server
	mu    sync.Mutex
	keys  map[string]string // by path
	certs map[string]string // by path: the serial number of the client's certificate
}

func serve(t *testing.T, c *tls.Config) *engine {
	t.Helper()
	e := &engine{keys: map[string]string{}, certs: map[string]string{}}
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		e.keys[r.URL.Path] = r.Header.Get("Authorization")
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
			e.certs[r.URL.Path] = r.TLS.PeerCertificates[0].SerialNumber.String()
		}
		e.mu.Unlock()
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"data":[{"id":"m","max_model_len":100}]}`)
		case "/tokenize":
			io.WriteString(w, `{"count":2,"max_model_len":100,"tokens":[1,2]}`)
		case "/metrics":
			io.WriteString(w, "vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_waiting{engine=\"0\"} 0\n")
		default:
			io.WriteString(w, `{}`)
		}
	}))
	e.Config.ErrorLog = log.New(io.Discard, "", 0)
	if c == nil {
		e.Start()
	} else {
		e.TLS = c
		e.StartTLS()
	}
	t.Cleanup(e.Close)
	return e
}

func (e *engine) saw(path string) (key, cert string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.keys[path], e.certs[path]
}

// https is the engine's base URL, also of one that speaks no TLS.
func (e *engine) https() string { return "https://" + e.Listener.Addr().String() }

// view is the router's view of the engine.
func (e *engine) view(t *testing.T, c tlspeer.Config, key string) *replica.Replica {
	t.Helper()
	peer, err := tlspeer.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return &replica.Replica{ID: "r", URL: e.https(), APIKey: secret.New(key), TLS: peer, State: replica.StateReady, Version: "0.17.0", Slots: []replica.Slot{0}}
}

// clients are the three clients: each asks once and says what became of it.
func clients() map[string]struct {
	path string
	ask  func(t *testing.T, r *replica.Replica) error
} {
	return map[string]struct {
		path string
		ask  func(t *testing.T, r *replica.Replica) error
	}{
		"proxy":      {"/v1/completions", proxy},
		"statistics": {"/metrics", statistics},
		"tokenizer":  {"/tokenize", tokenize},
	}
}

func proxy(t *testing.T, r *replica.Replica) error {
	client := upstream.New(upstream.DefaultConfig(), upstream.Params{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- client.Run(ctx) }()
	defer func() { cancel(); <-done }()
	resp, err := client.Do(t.Context(), upstream.Target{Replica: r}, &upstream.Request{Method: http.MethodPost, Path: "/v1/completions", Body: []byte("{}")})
	if err != nil {
		return err
	}
	_, err = resp.ReadAll(100)
	resp.Close()
	return err
}

// answers receives a signal for each report of an engine.
type answers chan struct{}

func (a answers) EngineAnswered(replica.ID)                   { a <- struct{}{} }
func (answers) EngineLearned(replica.ID, enginestats.Learned) {}
func (answers) EngineBegan(replica.ID, time.Time)             {}
func (answers) EngineRestarted(replica.ID, time.Time)         {}

func statistics(t *testing.T, r *replica.Replica) error {
	said := &lines{}
	c := enginestats.DefaultConfig()
	c.Interval = 10 * time.Millisecond
	answered := make(chan struct{}, 100)
	p := enginestats.New(c, enginestats.Params{Scope: scope.New(said.logger(), nil, nil), Observer: answers(answered)})
	p.Add(0, r, 0)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	defer func() { cancel(); <-done }()
	select {
	case <-answered:
		return nil
	case <-said.first():
		return errors.New(said.String())
	case <-time.After(10 * time.Second):
		return errors.New("nothing was heard of it")
	}
}

func tokenize(t *testing.T, r *replica.Replica) error {
	p := remote.New(remote.DefaultConfig(), remote.Params{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	defer func() { cancel(); <-done }()
	body := []byte(`{"model":"m","prompt":"hello"}`)
	_, err := p.Do(t.Context(), []*replica.Replica{r}, &remote.Job{Model: "m", Prompt: &prompt.Prompt{Model: "m", Body: body, Kind: prompt.KindText, API: prompt.APICompletions, Text: "hello"}})
	var fault *remote.Fault
	if errors.As(err, &fault) && fault.Cause != nil {
		return fault.Cause
	}
	return err
}

// probe runs a registry before the engine until it is ready, or says why it is not.
func probe(t *testing.T, c registry.Config, env registry.Environment) (*replica.Replica, string) {
	t.Helper()
	c.Probe.Interval, c.Probe.MaxInterval = 20*time.Millisecond, 20*time.Millisecond
	r := registry.New(c, registry.Params{Env: env})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for _, rep := range r.Snapshot().Replicas {
			if rep.State == replica.StateReady {
				return rep, ""
			}
			if why := r.Snapshot().Details(rep.ID).LastError; why != "" {
				return rep, why
			}
		}
	}
	t.Fatal("the replica is neither ready nor in trouble")
	return nil, ""
}

// The certificates, and what every client says when they do not fit.
func TestEveryClientSpeaksTLSAsConfigured(t *testing.T) {
	ours, theirs := pki.New(t, "ours"), pki.New(t, "theirs")
	here := pki.Cert{Names: []string{"127.0.0.1", "engine.internal"}}
	cert, key := ours.Issue(pki.Cert{})
	strangeCert, strangeKey := theirs.Issue(pki.Cert{})
	whole := tlspeer.Config{CAFile: ours.File, CertFile: cert, KeyFile: key, ServerName: "engine.internal", MinVersion: "1.3"}
	old := ours.Server(here)
	old.MaxVersion = tls.VersionTLS12
	for name, c := range map[string]struct {
		server *tls.Config
		config tlspeer.Config
		says   string // empty: it works
	}{
		"all as it should be":        {ours.Demanding(here, ours), whole, ""},
		"no client certificate":      {ours.Demanding(here, ours), tlspeer.Config{CAFile: ours.File}, "requires a client certificate"},
		"a stranger's certificate":   {ours.Demanding(here, ours), tlspeer.Config{CAFile: ours.File, CertFile: strangeCert, KeyFile: strangeKey}, "does not accept the router's client certificate"},
		"an unknown authority":       {ours.Server(here), tlspeer.Config{CAFile: theirs.File}, `signed by an authority that is not trusted (issuer "ours")`},
		"the system's authorities":   {ours.Server(here), tlspeer.Config{MinVersion: "1.2"}, "not trusted"},
		"expired":                    {ours.Server(pki.Cert{Names: here.Names, Expired: true}), whole, "expired on "},
		"another name":               {ours.Server(pki.Cert{Names: []string{"elsewhere.internal"}}), whole, "for elsewhere.internal, not for engine.internal"},
		"the URL's name is not in":   {ours.Server(pki.Cert{Names: []string{"engine.internal"}}), tlspeer.Config{CAFile: ours.File}, "not for 127.0.0.1"},
		"an older version of TLS":    {old, whole, "min_version"},
		"no TLS at all":              {nil, whole, "does not speak TLS"},
		"TLS 1.2 where that will do": {old, tlspeer.Config{CAFile: ours.File}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := serve(t, c.server)
			check := func(t *testing.T, path, said string) {
				t.Helper()
				switch gotKey, gotCert := e.saw(path); {
				case c.says != "" && !strings.Contains(said, c.says):
					t.Errorf("it says %q, want %q", said, c.says)
				case c.says == "" && said != "":
					t.Errorf("it fails: %s", said)
				case c.says == "" && gotKey != "Bearer sesame":
					t.Errorf("the key was %q", gotKey)
				case c.says == "" && c.server.ClientAuth != tls.NoClientCert && gotCert == "":
					t.Error("no certificate was shown")
				}
			}
			for client, one := range clients() {
				t.Run(client, func(t *testing.T) {
					err := one.ask(t, e.view(t, c.config, "sesame"))
					said := ""
					if err != nil {
						said = err.Error()
					}
					check(t, one.path, said)
				})
			}
			t.Run("probes", func(t *testing.T) {
				conf := registry.DefaultConfig()
				conf.Replicas = []registry.Spec{{ID: "r", URL: e.https(), APIKey: secret.New("sesame"), TLS: c.config}}
				_, why := probe(t, conf, nil)
				check(t, "/v1/models", why)
			})
		})
	}
}

func TestKeysAndCertificatesComeFromReplicaPoolOrAll(t *testing.T) {
	ours, theirs := pki.New(t, "ours"), pki.New(t, "theirs")
	a, b := serve(t, ours.Server(pki.Cert{Names: []string{"127.0.0.1"}})), serve(t, theirs.Server(pki.Cert{Names: []string{"127.0.0.1"}}))
	file := t.TempDir() + "/key"
	if err := writeFile(file, " from-file\n"); err != nil {
		t.Fatal(err)
	}
	env := config.Source{Env: []string{"POOL_KEY=from-env"}}
	base := registry.DefaultConfig()
	base.Access = registry.Access{APIKeyFile: file, TLS: tlspeer.Config{CAFile: ours.File}}
	base.Pools = map[string]registry.Access{
		"other": {APIKeyEnv: "POOL_KEY", TLS: tlspeer.Config{CAFile: theirs.File}},
		"m":     {APIKey: secret.New("of-the-model")},
	}
	for name, c := range map[string]struct {
		spec registry.Spec
		key  string
	}{
		"of all":                 {registry.Spec{ID: "r", URL: a.https()}, "from-file"},
		"of the pool that it is": {registry.Spec{ID: "r", URL: b.https(), Pool: "other"}, "from-env"},
		"of its model":           {registry.Spec{ID: "r", URL: a.https(), Models: []string{"m"}}, "of-the-model"},
		"its own":                {registry.Spec{ID: "r", URL: b.https(), APIKey: secret.New("own-key"), TLS: tlspeer.Config{CAFile: theirs.File}, Pool: "m"}, "own-key"},
	} {
		t.Run(name, func(t *testing.T) {
			conf := base
			conf.Replicas = []registry.Spec{c.spec}
			rep, why := probe(t, conf, env)
			if why != "" || rep.APIKey.Reveal() != c.key {
				t.Errorf("key %q, want %q; trouble: %s", rep.APIKey.Reveal(), c.key, why)
			}
			if shown := fmt.Sprintf("%v %+v %#v", rep.APIKey, conf, rep); strings.Contains(shown, c.key) && c.key != "of-the-model" {
				t.Errorf("the key shows")
			}
		})
	}
	for name, c := range map[string]registry.Config{
		"a missing file":         {Access: registry.Access{APIKeyFile: file + "-missing"}},
		"a variable not set":     {Access: registry.Access{APIKeyEnv: "NOT_SET"}},
		"a CA that is none":      {Access: registry.Access{TLS: tlspeer.Config{CAFile: file}}},
		"a pool that is not":     {Replicas: []registry.Spec{{URL: "http://h:1", Pool: "nope"}}},
		"two keys":               {Access: registry.Access{APIKeyEnv: "POOL_KEY", APIKeyFile: file}},
		"a certificate, no key":  {Access: registry.Access{TLS: tlspeer.Config{CertFile: file}}},
		"an unknown TLS version": {Access: registry.Access{TLS: tlspeer.Config{MinVersion: "1.1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			conf := registry.DefaultConfig()
			conf.Access, conf.Replicas = c.Access, c.Replicas
			err := conf.Validate()
			if err == nil {
				r := registry.New(conf, registry.Params{Env: env})
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				err = r.Run(ctx)
			}
			if err == nil {
				t.Error("it was taken")
			}
		})
	}
}

// A certificate that was renewed on disk is shown by the next connection.
func TestARenewedCertificateIsShown(t *testing.T) {
	ours := pki.New(t, "ours")
	e := serve(t, ours.Demanding(pki.Cert{Names: []string{"127.0.0.1"}}, ours))
	cert, key := ours.Issue(pki.Cert{})
	for name, one := range clients() {
		if name == "statistics" || name == "tokenizer" { // they take their identity as the proxy does
			continue
		}
		t.Run(name, func(t *testing.T) {
			r := e.view(t, tlspeer.Config{CAFile: ours.File, CertFile: cert, KeyFile: key}, "")
			if err := one.ask(t, r); err != nil {
				t.Fatal(err)
			}
			_, first := e.saw(one.path)
			ours.Renew(pki.Cert{}, cert, key)
			r.TLS.Recheck()
			if err := one.ask(t, r); err != nil {
				t.Fatal(err)
			}
			if _, second := e.saw(one.path); second == first || second == "" {
				t.Errorf("the certificate was %s, and is %s after the renewal", first, second)
			}
		})
	}
}

// A replica whose trust changed gets new connections, though those that are kept still work.
func TestConnectionsOfOneIdentityAreNotAnothers(t *testing.T) {
	ours, theirs := pki.New(t, "ours"), pki.New(t, "theirs")
	e := serve(t, ours.Server(pki.Cert{Names: []string{"127.0.0.1"}}))
	client := upstream.New(upstream.DefaultConfig(), upstream.Params{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- client.Run(ctx) }()
	defer func() { cancel(); <-done }()
	ask := func(trust *pki.Authority) error {
		resp, err := client.Do(t.Context(), upstream.Target{Replica: e.view(t, tlspeer.Config{CAFile: trust.File}, "")}, &upstream.Request{Method: http.MethodGet, Path: "/health"})
		if err != nil {
			return err
		}
		_, err = resp.ReadAll(100)
		resp.Close()
		return err
	}
	if err := ask(ours); err != nil {
		t.Fatal(err)
	}
	if err := ask(theirs); err == nil || !strings.Contains(err.Error(), "not trusted") {
		t.Errorf("error %v, want a refusal: the kept connection was another identity's", err)
	}
}

// A replica that takes connections and says nothing does not hold a handshake for long.
func TestAHandshakeEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := &replica.Replica{ID: "r", URL: "https://" + l.Addr().String()}
	for name, one := range clients() {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			if err := one.ask(t, r); err == nil || time.Since(began) > 9*time.Second {
				t.Errorf("error %v after %s", err, time.Since(began))
			}
		})
	}
}
