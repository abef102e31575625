package callers_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/edge/callers"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

func config(keys ...callers.Key) callers.Config {
	return callers.Config{Keys: keys, JWT: callers.DefaultJWT(), TenantHeader: "X-Kvpilot-Tenant"}
}

func key(tenant, text string) callers.Key { return callers.Key{Name: tenant, Key: secret.New(text)} }

// clockFunc is a clock that a test moves.
type clockFunc func() time.Time

func (f clockFunc) Now() time.Time { return f() }

func mustNew(t testing.TB, c callers.Config, p callers.Params) *callers.Callers {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	cs, err := callers.New(c, p)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

func bearer(token string) callers.Credentials {
	return callers.Credentials{Authorization: "Bearer " + token}
}

// refused checks that an error tells the caller to show other credentials.
func refused(t *testing.T, who *caller.Caller, err error, words string) {
	t.Helper()
	if who != nil || apierror.From(err).Reason != apierror.Unauthenticated || !strings.Contains(err.Error(), words) {
		t.Errorf("%+v, %v; want a refusal with %q", who, err, words)
	}
}

func TestKeysOfAFile(t *testing.T) {
	fresh, hashed := callers.NewKey()
	file := filepath.Join(t.TempDir(), "keys")
	text := "# people\nteam:plain-key-1\nops:operator-key:admin\nteam:" + hashed + " roles=infer name=ci expires=2030-01-02\n" +
		"hashed:" + callers.Hash("another-key") + ":admin\nsk:sk-with:colons\nedge:gateway-key roles=infer,gateway\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := config()
	c.KeysFile = file
	now := time.Date(2030, 1, 1, 23, 59, 0, 0, time.UTC)
	cs := mustNew(t, c, callers.Params{Scope: scope.Scope{}.At(clockFunc(func() time.Time { return now }))})
	for _, tc := range []struct {
		name string
		by   callers.Credentials
		want caller.Caller
	}{
		{"plain", bearer("plain-key-1"), caller.Caller{Tenant: "team", Name: "team", Roles: caller.Default}},
		{"Anthropic's header", callers.Credentials{Key: "plain-key-1"}, caller.Caller{Tenant: "team", Name: "team", Roles: caller.Default}},
		{"Authorization counts first", callers.Credentials{Key: "nonsense", Authorization: "bearer plain-key-1"}, caller.Caller{Tenant: "team", Name: "team", Roles: caller.Default}},
		{"another scheme does not count", callers.Credentials{Key: "plain-key-1", Authorization: "Basic x"}, caller.Caller{Tenant: "team", Name: "team", Roles: caller.Default}},
		{"admin", bearer("operator-key"), caller.Caller{Tenant: "ops", Name: "ops", Roles: caller.Admin}},
		{"hashed with options", bearer(fresh), caller.Caller{Tenant: "team", Name: "ci", Roles: caller.Infer}},
		{"hashed admin", bearer("another-key"), caller.Caller{Tenant: "hashed", Name: "hashed", Roles: caller.Admin}},
		{"a key with colons", bearer("sk-with:colons"), caller.Caller{Tenant: "sk", Name: "sk", Roles: caller.Default}},
		{"a gateway for itself", bearer("gateway-key"), caller.Caller{Tenant: "edge", Name: "edge", Roles: caller.Infer | caller.Gateway}},
		{"a gateway for a tenant", callers.Credentials{Key: "gateway-key", Tenant: "customer"}, caller.Caller{Tenant: "customer", Name: "edge", Roles: caller.Infer}},
		{"no gateway names a tenant", callers.Credentials{Key: "plain-key-1", Tenant: "customer"}, caller.Caller{Tenant: "team", Name: "team", Roles: caller.Default}},
		{"a gateway for a client", callers.Credentials{Key: "gateway-key", Client: "Bearer " + fresh}, caller.Caller{Tenant: "team", Name: "ci", Roles: caller.Infer}},
		{"the client's credential counts before a tenant's name", callers.Credentials{Key: "gateway-key", Client: "bearer plain-key-1", Tenant: "customer"}, caller.Caller{Tenant: "team", Name: "team", Roles: caller.Infer}},
		{"only gateways show another credential", callers.Credentials{Key: "plain-key-1", Client: "Bearer operator-key"}, caller.Caller{Tenant: "team", Name: "team", Roles: caller.Default}},
		{"an admin is no gateway", callers.Credentials{Key: "operator-key", Tenant: "customer"}, caller.Caller{Tenant: "ops", Name: "ops", Roles: caller.Admin}},
	} {
		tc.want.By = caller.ByKey
		if got, err := cs.Identify(tc.by); err != nil || *got != tc.want {
			t.Errorf("%s: %+v, %v; want %+v", tc.name, got, err, tc.want)
		}
	}
	for words, by := range map[string]callers.Credentials{
		"is needed":    {},
		"is unknown":   bearer("plain-key-2"),
		"valid tenant": {Key: "gateway-key", Tenant: "a\nb"},
	} {
		who, err := cs.Identify(by)
		refused(t, who, err, words)
	}
	for client, words := range map[string]string{"Bearer": "is needed", "Bearer plain-key-2": "is unknown", "plain-key-1": "is needed", "Basic x": "is needed"} {
		who, err := cs.Identify(callers.Credentials{Key: "gateway-key", Client: client})
		refused(t, who, err, words)
	}
	who, err := cs.Identify(bearer(hashed)) // the file's text opens nothing
	refused(t, who, err, "is unknown")
	now = now.Add(time.Minute)
	who, err = cs.Identify(bearer(fresh))
	refused(t, who, err, "expired")
}

func TestKeysThatAreWrong(t *testing.T) {
	for name, c := range map[string]callers.Config{
		"short":            config(key("a", "short")),
		"no tenant":        config(key("", "long-enough")),
		"twice":            config(key("a", "long-enough"), key("b", "long-enough")),
		"half a hash":      config(key("a", "sha256:abcd")),
		"unknown role":     config(callers.Key{Name: "a", Key: secret.New("long-enough"), Roles: []string{"root"}}),
		"no day":           config(callers.Key{Name: "a", Key: secret.New("long-enough"), Expires: "tomorrow"}),
		"no header's name": {JWT: callers.DefaultJWT(), TenantHeader: "a b"},
	} {
		if err := c.Validate(); err == nil {
			t.Errorf("%s: taken", name)
		} else if strings.Contains(err.Error(), "long-enough") {
			t.Errorf("%s: the error shows the key: %v", name, err)
		}
	}
	for name, text := range map[string]string{
		"empty": "", "no key": "team", "unknown option": "team:long-enough-key admin", "empty roles": "team:long-enough-key roles=",
		"the same key for two": "a:long-enough-key\nb:long-enough-key", "too long": "a:" + strings.Repeat("x", 5000),
	} {
		file := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := config()
		c.KeysFile = file
		if _, err := callers.New(c, callers.Params{}); err == nil || strings.Contains(err.Error(), "long-enough-key") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWithoutKeysAllMayCall(t *testing.T) {
	cs := mustNew(t, config(), callers.Params{})
	who, err := cs.Identify(callers.Credentials{Key: "whatever"})
	if err != nil || !cs.Open() || !who.May(caller.Admin) || who.Tenant != "" {
		t.Errorf("%+v, %v", who, err)
	}
}

// A file of keys is read again when it has changed; one that is broken leaves the keys before.
func TestAKeysFileIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write("team:first-key-1\n")
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var list []error // guarded by mu
		read := func() []error {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(list)
		}
		c := config(key("fixed", "settings-key"))
		c.KeysFile = file
		cs := mustNew(t, c, callers.Params{Reads: reads(func(_ callers.Source, err error) {
			mu.Lock()
			defer mu.Unlock()
			list = append(list, err)
		})})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- cs.Run(ctx) }()
		known := func(text string) bool {
			_, err := cs.Identify(bearer(text))
			return err == nil
		}
		time.Sleep(5 * time.Second)
		if len(read()) != 0 || !known("first-key-1") {
			t.Errorf("an unchanged file was read %d times", len(read()))
		}
		write("team:second-key\n")
		time.Sleep(3 * time.Second)
		if len(read()) != 1 || read()[0] != nil || known("first-key-1") || !known("second-key") || !known("settings-key") {
			t.Errorf("after a change: %v", read())
		}
		write("team:x\n")
		time.Sleep(3 * time.Second)
		if len(read()) != 2 || read()[1] == nil || !known("second-key") {
			t.Errorf("after a broken file: %v", read())
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		if len(read()) != 2 || !known("second-key") {
			t.Errorf("after the file was removed: %v", read())
		}
		write("team:third-key-1\n")
		time.Sleep(3 * time.Second)
		if len(read()) != 3 || !known("third-key-1") || known("second-key") {
			t.Errorf("after it came back: %v", read())
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestUpdateIsAllOrNothing(t *testing.T) {
	cs := mustNew(t, config(key("a", "first-key-1")), callers.Params{})
	bad := config(key("b", "second-key"))
	bad.KeysFile = filepath.Join(t.TempDir(), "missing")
	if cs.Update(bad) == nil {
		t.Error("a missing file is taken")
	}
	if _, err := cs.Identify(bearer("first-key-1")); err != nil {
		t.Error(err)
	}
	if _, err := cs.Identify(bearer("second-key")); err == nil {
		t.Error("half of the settings are in force")
	}
	if err := cs.Update(config(key("b", "second-key"))); err != nil {
		t.Fatal(err)
	}
	if _, err := cs.Identify(bearer("first-key-1")); err == nil {
		t.Error("the old key is known")
	}
	if who, err := cs.Identify(bearer("second-key")); err != nil || who.Tenant != "b" {
		t.Errorf("%+v, %v", who, err)
	}
}

func TestALineForTheFile(t *testing.T) {
	_, hashed := callers.NewKey()
	line, err := callers.FormatLine("team", hashed, "infer,route", "ci", "2030-01-01")
	if err != nil || line != "team:"+hashed+" roles=infer,route name=ci expires=2030-01-01" {
		t.Errorf("%q, %v", line, err)
	}
	for _, bad := range [][4]string{{"a b", "", "", ""}, {"a:b", "", "", ""}, {"a", "root", "", ""}, {"a", "", "x y", ""}, {"a", "", "", "soon"}, {"a\nb", "", "", ""}, {"#a", "", "", ""}, {"", "", "", ""}} {
		if line, err := callers.FormatLine(bad[0], hashed, bad[1], bad[2], bad[3]); err == nil {
			t.Errorf("%q becomes %q", bad, line)
		}
	}
}

func FuzzKeysFile(f *testing.F) {
	f.Add("team:plain-key-1 roles=infer\nops:operator-key:admin")
	f.Add("a:sha256:" + strings.Repeat("ab", 32) + " expires=2030-01-01 name=x")
	f.Add(":::\n#\n a:b c=d")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		file := filepath.Join(dir, "keys")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := config()
		c.KeysFile = file
		cs, err := callers.New(c, callers.Params{})
		if err != nil {
			return
		}
		for _, by := range []callers.Credentials{{}, bearer("never-a-key"), {Key: "never-a-key", Tenant: "x"}} {
			if strings.Contains(text, "never-a-key") || cs.Open() {
				return
			}
			if who, err := cs.Identify(by); err == nil {
				t.Errorf("%q lets %+v in as %+v", text, by, who)
			}
		}
	})
}

func BenchmarkIdentifyPlainKey(b *testing.B) {
	cs := mustNew(b, config(key("team", "sk-0123456789abcdef0123456789abcdef")), callers.Params{})
	benchIdentify(b, cs, bearer("sk-0123456789abcdef0123456789abcdef"))
}

func BenchmarkIdentifyHashedKey(b *testing.B) {
	text, hashed := callers.NewKey()
	benchIdentify(b, mustNew(b, config(key("team", hashed)), callers.Params{}), bearer(text))
}

func benchIdentify(b *testing.B, cs *callers.Callers, by callers.Credentials) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := cs.Identify(by); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzCredentials(f *testing.F) {
	cs := mustNew(f, config(key("team", "plain-key-1"), callers.Key{Name: "edge", Key: secret.New("gateway-key-1"), Roles: []string{"gateway", "infer"}}), callers.Params{})
	f.Add("plain-key-1", "Bearer gateway-key-1", "customer")
	f.Add("", "bearer\tgateway-key-1", " x")
	f.Add("gateway-key-1", "Basic eDp5", "a\x00b")
	f.Fuzz(func(t *testing.T, header, authorization, tenant string) {
		who, err := cs.Identify(callers.Credentials{Key: header, Authorization: authorization, Tenant: tenant})
		if err != nil {
			return
		}
		switch {
		case !strings.Contains(header+" "+authorization, "plain-key-1") && !strings.Contains(header+" "+authorization, "gateway-key-1"):
			t.Errorf("%q, %q is %+v", header, authorization, who)
		case who.Name == "team" && who.Tenant != "team", caller.CheckTenant(who.Tenant) != nil, who.May(caller.Admin | caller.Observe):
			t.Errorf("%q, %q, %q is %+v", header, authorization, tenant, who)
		}
	})
}

type reads func(callers.Source, error)

func (f reads) Read(source callers.Source, err error) { f(source, err) }
