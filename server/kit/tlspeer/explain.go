package tlspeer

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// explained is a TLS failure in words for operators.
type explained struct {
	Reason string
	Err    error
}

// Error implements error.
func (e *explained) Error() string { return "TLS: " + e.Reason }

// Unwrap gives the cause.
func (e *explained) Unwrap() error { return e.Err }

// Explain says what is wrong between router and replica when err is a TLS failure, and where to change it; any other error is
// returned as it is.
func Explain(err error) error {
	var known *explained
	if err == nil || errors.As(err, &known) {
		return err
	}
	if reason := reasonOf(err); reason != "" {
		return &explained{reason, err}
	}
	return err
}

func reasonOf(err error) string {
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var name x509.HostnameError
	var plain tls.RecordHeaderError
	switch {
	case errors.As(err, &unknown):
		return "the replica's certificate is signed by an authority that is not trusted" + issuer(unknown.Cert) + "; add the authority to tls.ca_file"
	case errors.As(err, &invalid):
		return validity(invalid)
	case errors.As(err, &name):
		return fmt.Sprintf("the replica's certificate is for %s, not for %s; set tls.server_name to the expected name", names(name.Certificate), name.Host)
	case errors.As(err, &plain):
		return "the replica does not speak TLS; is its URL http://?"
	case strings.Contains(err.Error(), "tls: server selected unsupported protocol version"):
		return "the replica offers no version of TLS that is allowed (tls.min_version)"
	}
	return refusal(err.Error())
}

func issuer(c *x509.Certificate) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf(" (issuer %q)", c.Issuer.CommonName)
}

func validity(e x509.CertificateInvalidError) string {
	const day = "2006-01-02 15:04 MST"
	switch {
	case e.Reason == x509.Expired && e.Cert != nil && time.Now().Before(e.Cert.NotBefore):
		return "the replica's certificate is not valid before " + e.Cert.NotBefore.UTC().Format(day) + "; is a clock wrong?"
	case e.Reason == x509.Expired && e.Cert != nil:
		return "the replica's certificate expired on " + e.Cert.NotAfter.UTC().Format(day)
	}
	return "the replica's certificate is not valid: " + e.Error()
}

func names(c *x509.Certificate) string {
	var list []string
	if c != nil {
		list = append(list, c.DNSNames...)
		for _, ip := range c.IPAddresses {
			list = append(list, ip.String())
		}
	}
	switch {
	case len(list) == 0:
		return "no host"
	case len(list) > 5:
		list = append(list[:5], "...")
	}
	return strings.Join(list, ", ")
}

// refusal is the meaning of a replica's alert. Package tls gives it as text alone.
func refusal(text string) string {
	_, alert, ok := strings.Cut(text, "remote error: tls: ")
	if !ok {
		return ""
	}
	says := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(alert, part) })
	}
	switch {
	case says("certificate required"):
		return "the replica requires a client certificate; set tls.cert_file and tls.key_file"
	case says("expired certificate"):
		return "the replica reports that the router's client certificate has expired; renew the one in tls.cert_file"
	case says("certificate", "access denied"):
		return "the replica does not accept the router's client certificate (" + alert + "); check tls.cert_file"
	case says("protocol version"):
		return "the replica speaks no version of TLS that is allowed (tls.min_version)"
	case says("unrecognized name"):
		return "the replica does not know the requested server name; set tls.server_name"
	case says("handshake failure"):
		return "the replica ended the handshake; it may require a client certificate (tls.cert_file) or another version (tls.min_version)"
	}
	return "the replica ended the connection: " + alert
}
