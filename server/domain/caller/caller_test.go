package caller_test

import (
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/caller"
)

func TestMay(t *testing.T) {
	for name, tc := range map[string]struct {
		has, asks caller.Roles
		want      bool
	}{
		"the role itself":                  {caller.Infer, caller.Infer, true},
		"one of two":                       {caller.Route, caller.Infer | caller.Route, true},
		"another role":                     {caller.Infer, caller.Route, false},
		"admin includes infer":             {caller.Admin, caller.Infer, true},
		"admin includes observe":           {caller.Admin, caller.Observe, true},
		"admin includes forward":           {caller.Admin, caller.Forward, true},
		"admin is no gateway":              {caller.Admin, caller.Gateway, false},
		"admin that is a gateway":          {caller.Admin | caller.Gateway, caller.Gateway, true},
		"observe is no admin":              {caller.Observe, caller.Admin, false},
		"a gateway alone may call nothing": {caller.Gateway, caller.Any, false},
		"no role":                          {0, caller.Any, false},
		"no role asked for":                {caller.Admin, 0, false},
	} {
		if got := (&caller.Caller{Roles: tc.has}).May(tc.asks); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if (*caller.Caller)(nil).May(caller.Any) || (*caller.Caller)(nil).Sees("") {
		t.Error("no caller may do something")
	}
}

func TestSees(t *testing.T) {
	own := &caller.Caller{Tenant: "a", Roles: caller.Default}
	if !own.Sees("a") || own.Sees("b") || own.Sees("") {
		t.Error("a caller sees its own tenant's and no other's")
	}
	if !(&caller.Caller{Tenant: "a", Roles: caller.Observe}).Sees("b") || !caller.Anonymous().Sees("b") {
		t.Error("an observer sees all")
	}
}

func TestAGatewayGivesNoMoreThanItsTenantsMay(t *testing.T) {
	g := &caller.Caller{Tenant: "edge", Name: "g", Roles: caller.Admin | caller.Gateway | caller.Infer}
	acting := g.For("team")
	if acting.Tenant != "team" || acting.Name != "g" || acting.Roles != caller.Infer {
		t.Errorf("%+v", acting)
	}
}

func TestRolesByName(t *testing.T) {
	set, err := caller.ParseRoles([]string{"infer", "observe"})
	if err != nil || set != caller.Infer|caller.Observe || set.String() != "infer,observe" {
		t.Errorf("%v, %v", set, err)
	}
	if _, err := caller.ParseRoles([]string{"root"}); err == nil {
		t.Error("root is a role")
	}
}

func TestCheckTenant(t *testing.T) {
	for _, good := range []string{"a", "team-1", "system:serviceaccount:ns:app", "Équipe 7"} {
		if err := caller.CheckTenant(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", " a", "a ", "a\nb", "a\x00", "\xff", strings.Repeat("x", 129)} {
		if caller.CheckTenant(bad) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestAGatewayLendsItsClientsTheRoleRoute(t *testing.T) {
	proxy := &caller.Caller{Tenant: "edge", Name: "proxy", Roles: caller.Gateway | caller.Route}
	all := &caller.Caller{Tenant: "edge", Roles: caller.Gateway | caller.Route | caller.Infer | caller.Admin}
	for name, tc := range map[string]struct {
		gateway      *caller.Caller
		client, want caller.Roles
	}{
		"infer, through a proxy that routes":  {proxy, caller.Infer, caller.Route},
		"infer, through one that may do more": {all, caller.Infer, caller.Infer | caller.Route},
		"an operator":                         {all, caller.Admin, caller.Infer | caller.Route},
		"a gateway without roles":             {&caller.Caller{Roles: caller.Gateway}, caller.Default, 0},
	} {
		got := tc.gateway.Lend(&caller.Caller{Tenant: "team", Name: "ci", Roles: tc.client, By: caller.ByToken})
		if got.Roles != tc.want || got.Tenant != "team" || got.Name != "ci" || got.By != caller.ByToken {
			t.Errorf("%s: %+v, want roles %v", name, got, tc.want)
		}
	}
}
