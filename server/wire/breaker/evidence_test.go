package breaker

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// finding is one request's, of a tenant.
func finding(v retry.Verdict, sure bool, tenant, request uint64) retry.Finding {
	f := retry.Find(v, retry.Origin{Tenant: tenant, Request: request})
	f.Sure = f.Sure || sure
	return f
}

func TestFailuresCountByTheirOrigins(t *testing.T) {
	const a, b = 1, 2 // tenants
	ok := func(tenant uint64) retry.Finding { return finding(retry.OK, true, tenant, 0) }
	repeat := func(n int, one func(i uint64) retry.Finding) (list []retry.Finding) {
		for i := range uint64(n) {
			list = append(list, one(i+1))
		}
		return list
	}
	same := func(sure bool) func(uint64) retry.Finding {
		return func(uint64) retry.Finding { return finding(retry.EngineError, sure, a, 1) }
	}
	varied := func(sure bool, tenants uint64) func(uint64) retry.Finding {
		return func(i uint64) retry.Finding { return finding(retry.EngineError, sure, 1+i%tenants, i) }
	}
	blamed := func(cause retry.Cause) func(uint64) retry.Finding {
		return func(i uint64) retry.Finding {
			f := finding(retry.EngineError, true, a, i)
			f.Cause = cause
			return f
		}
	}
	for name, c := range map[string]struct {
		findings []retry.Finding
		want     State
	}{
		"one request again and again":                       {repeat(100, same(true)), Closed},
		"one request, not compared":                         {repeat(100, same(false)), Closed},
		"requests of the only tenant":                       {repeat(5, varied(true, 1)), Open},
		"requests of the only tenant, not compared":         {repeat(5, varied(false, 1)), Open},
		"requests of two tenants":                           {repeat(5, varied(true, 2)), Open},
		"too few":                                           {repeat(4, varied(true, 2)), Closed},
		"of one tenant, while another one is served":        {append([]retry.Finding{ok(b)}, repeat(100, varied(true, 1))...), Closed},
		"of two tenants, while a third one was served":      {append([]retry.Finding{ok(3)}, repeat(5, varied(true, 2))...), Open},
		"not compared, while the same tenant is served":     {append([]retry.Finding{ok(a)}, repeat(100, varied(false, 1))...), Closed},
		"compared, after the same tenant was served":        {append([]retry.Finding{ok(a)}, repeat(5, varied(true, 1))...), Open},
		"not compared, after one that failed elsewhere too": {append([]retry.Finding{blamed(retry.CauseRequest)(1)}, repeat(100, varied(false, 3))...), Closed},
		"requests that fail elsewhere too":                  {repeat(100, blamed(retry.CauseRequest)), Closed},
		"requests of a tenant that fail elsewhere too":      {repeat(100, blamed(retry.CauseTenant)), Closed},
		"no connection, while another tenant was served":    {append([]retry.Finding{ok(b)}, repeat(5, func(uint64) retry.Finding { return finding(retry.Unreachable, false, a, 1) })...), Open},
		"this machine's shortage":                           {repeat(100, func(i uint64) retry.Finding { return finding(retry.OwnFault, false, i, i) }), Closed},
		"requests that cannot be written":                   {repeat(100, func(i uint64) retry.Finding { return finding(retry.Unsendable, false, i, i) }), Closed},
		"callers that leave or have no time":                {repeat(100, func(i uint64) retry.Finding { return finding(retry.Canceled, false, i, i) }), Closed},
		"requests that the engine refuses, and failed ones": {append(repeat(50, func(i uint64) retry.Finding { return finding(retry.ClientFault, false, b, i) }), repeat(5, varied(true, 1))...), Open},
		"silence, after a success":                          {append([]retry.Finding{ok(a)}, repeat(5, func(i uint64) retry.Finding { return finding(retry.Timeout, false, a, i) })...), Open},
		"stalls of one rank":                                {repeat(5, func(i uint64) retry.Finding { return finding(retry.Stalled, true, i%2, i) }), Open},
		"connections that end, of requests that vary":       {append([]retry.Finding{ok(b)}, repeat(100, func(i uint64) retry.Finding { return finding(retry.Reset, false, a, i) })...), Closed},
		"half of the requests, compared, of the only tenant": {repeat(40, func(i uint64) retry.Finding {
			return finding([]retry.Verdict{retry.OK, retry.EngineError}[i%2], true, a, i)
		}), Open},
		"half of the requests, not compared": {repeat(40, func(i uint64) retry.Finding {
			return finding([]retry.Verdict{retry.OK, retry.EngineError}[i%2], false, a, i)
		}), Closed},
		"most of one tenant's requests, and another's served": {repeat(90, func(i uint64) retry.Finding {
			return finding([]retry.Verdict{retry.OK, retry.EngineError, retry.EngineError}[i%3], true, []uint64{b, a, a}[i%3], i)
		}), Closed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				breaker := New(testConfig())
				for _, f := range c.findings {
					pass, _ := breaker.Allow("r")
					breaker.Report("r", pass, f)
					time.Sleep(10 * time.Millisecond)
				}
				if got := breaker.State("r"); got != c.want {
					t.Errorf("the circuit is %v, want %v", got, c.want)
				}
			})
		})
	}
}

func TestOldSuccessesDoNotProtect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(testConfig())
		pass, _ := b.Allow("r")
		b.Report("r", pass, finding(retry.OK, true, 2, 0))
		time.Sleep(testConfig().Window)
		for i := range uint64(5) {
			b.Report("r", pass, finding(retry.EngineError, false, 1, i+1))
		}
		if b.State("r") != Open {
			t.Error("a replica that has served nothing for a window and fails all requests stays in use")
		}
	})
}

func TestAPoisonedTrialIsNoFailedTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, f := range []retry.Finding{
			{Verdict: retry.EngineError, Cause: retry.CauseTenant}, finding(retry.ClientFault, false, 1, 1), {Verdict: retry.EngineError, Cause: retry.CauseRequest, Sure: true},
		} {
			b, _ := tripped()
			time.Sleep(testConfig().OpenFor)
			trial, _ := b.Allow("a")
			b.Report("a", trial, f)
			if got := b.State("a"); got != Trial {
				t.Errorf("after a trial with %v by the %v the circuit is %v, want another trial", f.Verdict, f.Cause, got)
			}
		}
	})
}

func TestEjectionIsBounded(t *testing.T) {
	names := []replica.ID{"a", "b", "c", "d", "e"}
	fails := func(b *Breaker, v retry.Verdict, ids ...replica.ID) {
		for _, id := range ids {
			for range 5 {
				attempt(b, id, v)
			}
		}
	}
	for name, c := range map[string]struct {
		usable                             []replica.ID
		failing, away, paused, avoid, want []replica.ID
		tried                              int
	}{
		"both that are left of three":           {usable: names[:3], failing: names[1:3], tried: 1, want: names[1:3]},
		"none":                                  {usable: names[:3]},
		"one of one":                            {usable: names[:1], failing: names[:1]},
		"one of two":                            {usable: names[:2], failing: names[1:2], want: names[1:2]},
		"both of two":                           {usable: names[:2], failing: names[:2], want: names[:1]},
		"two of three":                          {usable: names[:3], failing: names[1:3], want: names[1:2]},
		"two of four":                           {usable: names[:4], failing: names[2:4], want: names[2:4]},
		"all of five":                           {usable: names, failing: names, want: names[:2]},
		"two of three that cannot be reached":   {usable: names[:3], away: names[1:3], want: names[1:3]},
		"all of three that cannot be reached":   {usable: names[:3], away: names[:3]},
		"two of three that asked for a pause":   {usable: names[:3], paused: names[1:3], want: names[1:3]},
		"all of three asked for a pause":        {usable: names[:3], paused: names[:3]},
		"one that failed and one that is away":  {usable: names[:3], failing: names[:1], away: names[2:3], want: []replica.ID{"a", "c"}},
		"one that another router finds broken":  {usable: names[:3], avoid: names[2:3], want: names[2:3]},
		"all that another router finds broken":  {usable: names[:3], avoid: names[:3], want: names[:1]},
		"the only one that a request may go to": {usable: names[4:5], failing: names},
		"one that fails and may not serve":      {usable: names[:2], failing: names[3:4]},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := New(testConfig())
				fails(b, retry.EngineError, c.failing...)
				fails(b, retry.Unreachable, c.away...)
				for _, id := range c.paused {
					b.Pause(id, time.Second)
				}
				got := b.Bar([]replica.ID{"before"}, c.usable, c.avoid, c.tried)
				if !slices.Equal(got, append([]replica.ID{"before"}, c.want...)) {
					t.Errorf("barred %v, want %v", got[1:], c.want)
				}
			})
		})
	}
}

func TestASilentTrialMakesThePauseLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := tripped()
		time.Sleep(testConfig().OpenFor)
		trial, _ := b.Allow("a")
		b.Report("a", trial, finding(retry.Timeout, false, 1, 1))
		time.Sleep(testConfig().OpenFor)
		if allows(b, "a") {
			t.Error("a trial that hung must double the pause")
		}
	})
}

func TestATrialThatMayBePoisonedMakesNoPauseLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := tripped()
		for range 5 {
			time.Sleep(testConfig().OpenFor)
			trial, ok := b.Allow("a")
			if !ok {
				t.Fatal("no trial after the first pause's time")
			}
			b.Report("a", trial, finding(retry.EngineError, false, 1, 1))
			if b.State("a") != Open {
				t.Fatal("the circuit is not open after a trial that failed")
			}
		}
	})
}
