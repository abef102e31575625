package caller

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Roles is a set of roles.
type Roles uint16

// The roles. Admin includes all others but Gateway.
const (
	// Infer sends requests to engines through the OpenAI-style routes.
	Infer Roles = 1 << iota
	// Route asks for replicas and token ids, and reports on reservations.
	Route
	// Observe reads data of all tenants: decisions, loads, the console.
	Observe
	// Admin changes the fleet and the router.
	Admin
	// Forward sends requests to engine routes that the router does not know (router.unknown_routes).
	Forward
	// Gateway names the tenant of each request in a header.
	Gateway
	// Steer sends engines parameters that steer their KV connectors: kv_transfer_params and the like.
	Steer

	// Default is the roles of a caller without roles of its own.
	Default = Infer | Route
	// Any matches each caller that has a role with methods. Callers without credentials have these: Steer is not among them.
	Any = Infer | Route | Observe | Admin | Forward
	// onBehalf is the roles that a gateway may use for its tenants.
	onBehalf = Infer | Route | Forward | Steer
)

// named lists the roles with their names.
func named() []struct {
	role Roles
	name string
} {
	return []struct {
		role Roles
		name string
	}{{Infer, "infer"}, {Route, "route"}, {Observe, "observe"}, {Admin, "admin"}, {Forward, "forward"}, {Gateway, "gateway"}, {Steer, "steer"}}
}

// ParseRole returns the role of a name.
func ParseRole(name string) (Roles, bool) {
	for _, r := range named() {
		if r.name == name {
			return r.role, true
		}
	}
	return 0, false
}

// ParseRoles returns the set of the named roles.
func ParseRoles(names []string) (Roles, error) {
	var set Roles
	for _, name := range names {
		r, known := ParseRole(name)
		if !known {
			return 0, fmt.Errorf("%q is not a role: use infer, route, observe, admin, forward, gateway or steer", name)
		}
		set |= r
	}
	return set, nil
}

// String lists the names, separated by commas.
func (r Roles) String() string {
	var list []string
	for _, n := range named() {
		if r&n.role != 0 {
			list = append(list, n.name)
		}
	}
	return strings.Join(list, ",")
}

// Source is where an identity comes from.
type Source string

// The sources.
const (
	ByKey         Source = "key"
	ByToken       Source = "token"
	ByCertificate Source = "certificate"
	// Open is a router that asks for no credentials.
	Open Source = "open"
)

// Caller is the sender of a request. It is immutable. A nil Caller has no role and sees nothing.
type Caller struct {
	// Tenant owns the caller's decisions, reservations and stored responses; empty when the router asks for no credentials.
	Tenant string
	// Name is the caller's own name within the tenant, for logs.
	Name  string
	Roles Roles
	By    Source
}

// Anonymous is the caller of a router that requires no credentials.
func Anonymous() *Caller { return &Caller{Roles: Any, By: Open} }

// May reports whether the caller has one of the roles.
func (c *Caller) May(one Roles) bool {
	if c == nil {
		return false
	}
	has := c.Roles
	if has&Admin != 0 {
		has |= Any
	}
	if has&Admin != 0 && c.By != Open {
		has |= Steer
	}
	return has&one != 0
}

// Sees reports whether the caller may read a tenant's data.
func (c *Caller) Sees(tenant string) bool {
	return c != nil && (c.Tenant == tenant || c.May(Observe))
}

// For is the caller as a gateway that acts for a tenant. It may do no more than its tenants.
func (c *Caller) For(tenant string) *Caller {
	return &Caller{Tenant: tenant, Name: c.Name, Roles: c.Roles & onBehalf, By: c.By}
}

// Lend is the caller as a gateway that acts for a client whose credential it has shown. The client has the roles that both have, and may
// ask for replicas: for that, the gateway's role counts.
func (c *Caller) Lend(client *Caller) *Caller {
	has := client.Roles
	if has&Admin != 0 {
		has |= Any
	}
	return &Caller{Tenant: client.Tenant, Name: client.Name, Roles: c.Roles & onBehalf & (has | Route), By: client.By}
}

// maxTenant bounds the name of a tenant in bytes.
const maxTenant = 128

// CheckTenant returns an error when a tenant's name is not valid.
func CheckTenant(name string) error {
	switch {
	case name == "":
		return errors.New("the tenant must not be empty")
	case len(name) > maxTenant:
		return fmt.Errorf("the tenant has %d bytes, at most %d are allowed", len(name), maxTenant)
	case !utf8.ValidString(name) || strings.TrimSpace(name) != name || strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("the tenant %q must be printable text without leading or trailing spaces", name)
	}
	return nil
}
