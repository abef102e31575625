package guard

import (
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/ledger"
)

// Loopback reports whether an address can be reached from this machine only.
func Loopback(a net.Addr) bool {
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.Network() == "unix"
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// localHost reports whether a request's Host names this machine, or one of the names. A page with
// a name that resolves to the loopback (DNS rebinding) sends its own name.
func localHost(host string, names []string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.Trim(host, "[]"), ".")
	if host == "" || strings.EqualFold(host, "localhost") || strings.HasSuffix(strings.ToLower(host), ".localhost") {
		return true
	}
	if ip := net.ParseIP(host); ip != nil {
		return ip.IsLoopback()
	}
	return slices.ContainsFunc(names, func(name string) bool { return name == "*" || strings.EqualFold(name, host) })
}

// CheckHost refuses requests that are not for this machine or one of the names.
func CheckHost(names []string, reject, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !localHost(r.Host, names) {
			reject.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// FromBrowser reports whether a page sent a request, rather than a program.
func FromBrowser(h http.Header) bool { return len(h["Origin"]) > 0 || len(h["Sec-Fetch-Site"]) > 0 }

// Counted notes the requests of a connection that is counted: one with requests under way is not closed for others.
func Counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn := ledger.ConnFrom(r.Context())
		conn.Begin()
		defer conn.End()
		next.ServeHTTP(w, r)
	})
}

// Charged charges each request of a handler that needs no credentials with the memory of its answer, while it is made and read.
func Charged(to *ledger.Ledger, bytes int64, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var account ledger.Account
		host, _, _ := net.SplitHostPort(r.RemoteAddr) // empty for a socket without ports
		to.Open(&account, ledger.Sender{Open: true, Conn: ledger.ConnFrom(r.Context()), Address: host})
		defer account.Close()
		if err := account.TakeSoon(r.Context(), ledger.Answer, bytes); err != nil {
			w.Header().Set("Retry-After", "1")
			http.Error(w, Refused(err).Error(), http.StatusTooManyRequests)
			return
		}
		var hold ledger.Hold
		control := http.NewResponseController(w)
		account.WatchOn(ledger.ConnFrom(r.Context()), &hold, ledger.Answer, func() { _ = control.SetWriteDeadline(time.Now()) })
		defer hold.Done()
		next.ServeHTTP(w, r)
	})
}
