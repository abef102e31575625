package poison

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/wire/retry"
)

func TestOriginsDiffer(t *testing.T) {
	m := New()
	one := m.Origin("a", []byte("body"), "/v1/chat/completions")
	if one != m.Origin("a", []byte("body"), "/v1/chat/completions") {
		t.Error("the same request has two origins")
	}
	for name, other := range map[string]retry.Origin{
		"body": m.Origin("a", []byte("bodY"), "/v1/chat/completions"), "path": m.Origin("a", []byte("body"), "/v1/completions"),
		"cut": m.Origin("a", []byte("ody"), "/v1/chat/completionsb"), "tenant": m.Origin("b", []byte("body"), "/v1/chat/completions"),
	} {
		if other.Request == one.Request || (other.Tenant == one.Tenant) != (name != "tenant") {
			t.Errorf("another %s: %v and %v", name, one, other)
		}
	}
	if other := New(); other.Origin("a", []byte("body"), "/v1/chat/completions") == one {
		t.Error("the hash has no key")
	}
}

func TestARequestIsRememberedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New()
		o := m.Origin("a", []byte("x"))
		m.Failed(o)
		m.Failed(o)
		time.Sleep(life)
		if n := m.Times(o); n != 2 || m.Size() != 1 {
			t.Errorf("remembered %d times, %d requests", n, m.Size())
		}
		time.Sleep(life)
		if n := m.Times(o); n != 0 || m.Size() != 0 {
			t.Errorf("remembered %d times after its life, %d requests", n, m.Size())
		}
		m.Failed(o)
		m.served(o)
		if n := m.Times(o); n != 0 {
			t.Errorf("a request that was served is remembered %d times", n)
		}
	})
}

func TestATenantsComparisonsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New()
		compared := 0
		for i := range 1000 { // a minute of varied requests
			o := m.Origin("a", strconv.AppendInt(nil, int64(i), 10))
			if !m.Suspect(o) {
				compared++
				m.Failed(o)
			}
			time.Sleep(60 * time.Millisecond)
		}
		if compared < 10 || compared > 10+60*refill {
			t.Errorf("%d comparisons in a minute", compared)
		}
		for range 100 {
			m.Failed(m.Origin("a", nil))
		}
		if a, b := m.Origin("a", nil), m.Origin("b", nil); !m.Suspect(a) || m.Suspect(b) {
			t.Error("the tenant is not suspected, or another one is")
		}
		time.Sleep(2 * credit / refill * time.Second)
		if m.Suspect(m.Origin("a", nil)) {
			t.Error("the tenant is suspected for ever")
		}
	})
}

func TestComparisonsThatFindAReplicasFaultCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New()
		for i := range 100 {
			o := m.Origin("a", strconv.AppendInt(nil, int64(i), 10))
			m.Failed(o)
			m.served(o)
			if m.Suspect(o) {
				t.Fatalf("suspected after %d comparisons", i)
			}
		}
	})
}

func TestTheMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New()
		for i := range 10 * maxRequests {
			m.Failed(m.Origin(strconv.Itoa(i), nil))
		}
		if n := m.Size(); n > 2*maxRequests || n < maxRequests {
			t.Errorf("%d requests are kept", n)
		}
		if n := m.tenants.size(time.Now()); n > 2*maxTenants {
			t.Errorf("%d tenants are kept", n)
		}
	})
}
