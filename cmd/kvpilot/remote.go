package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kvpilot/kvpilot/client"
	"github.com/kvpilot/kvpilot/server/kit/jsonform"
)

// defaultRemote is where a router serves gRPC by default.
const defaultRemote = "127.0.0.1:9090"

// remote is the common part of the commands that ask a running router.
type remote struct {
	address string
	key     string
	tls     bool
	ca      string
	cert    string
	certKey string
	output  string
	timeout time.Duration
	env     []string
	out     io.Writer
}

func (r *remote) flags(cmd *cobra.Command, env []string) {
	r.env = env
	f := cmd.Flags()
	f.StringVar(&r.address, "address", lookup(env, "KVPILOT_ADDRESS", defaultRemote), "the router's gRPC address (KVPILOT_ADDRESS)")
	f.StringVar(&r.key, "key", "", "API key; the variable KVPILOT_KEY keeps it out of the process list")
	f.BoolVar(&r.tls, "tls", false, "use TLS")
	f.StringVar(&r.ca, "ca", "", "use TLS and trust the certificates in this file (PEM)")
	f.StringVar(&r.cert, "cert", "", "use TLS and send the client certificate in this file (PEM)")
	f.StringVar(&r.certKey, "cert-key", "", "the private key of --cert (PEM)")
	f.DurationVar(&r.timeout, "timeout", 10*time.Second, "time limit of a call")
	outputFlag(cmd, &r.output)
}

// outputFlag adds --output.
func outputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "table", "output format: table or json")
	if err := cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag is declared above
	}
}

func knownOutput(output string) error {
	if output != "table" && output != "json" {
		return fmt.Errorf("--output must be table or json, not %q", output)
	}
	return nil
}

// lookup finds a variable in an environment of os.Environ's form.
func lookup(env []string, name, otherwise string) string {
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return otherwise
}

// ask connects and calls do; gRPC's errors come out as people read them.
func (r *remote) ask(ctx context.Context, do func(context.Context, *client.Client) error) error {
	if err := knownOutput(r.output); err != nil {
		return err
	}
	var options []client.Option
	if key := cmp.Or(r.key, lookup(r.env, "KVPILOT_KEY", "")); key != "" {
		options = append(options, client.WithAPIKey(key))
	}
	if r.tls || r.ca != "" || r.cert != "" || r.certKey != "" {
		secure, err := r.secure()
		if err != nil {
			return err
		}
		options = append(options, client.WithTLS(secure))
	}
	c, err := client.Dial(r.target(), options...)
	if err != nil {
		return err
	}
	return errors.Join(r.readable(do(ctx, c)), c.Close())
}

// secure is how TLS is spoken; nil takes the system's certificates.
func (r *remote) secure() (*tls.Config, error) {
	if r.ca == "" && r.cert == "" && r.certKey == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if r.ca != "" {
		if c.RootCAs, err = trusted(r.ca); err != nil {
			return nil, err
		}
	}
	if (r.cert == "") != (r.certKey == "") {
		return nil, errors.New("--cert and --cert-key must be set together")
	}
	if r.cert != "" {
		pair, err := tls.LoadX509KeyPair(r.cert, r.certKey)
		if err != nil {
			return nil, fmt.Errorf("--cert: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// trusted reads certificates.
func trusted(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--ca: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--ca: %s holds no certificate in PEM", file)
	}
	return roots, nil
}

// target is the address without the scheme that people put before it.
func (r *remote) target() string {
	for _, scheme := range []string{"http://", "https://", "grpc://"} {
		if rest, ok := strings.CutPrefix(r.address, scheme); ok {
			return strings.TrimSuffix(rest, "/")
		}
	}
	return r.address
}

// readable explains an RPC's error to the user of a terminal.
func (r *remote) readable(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	text := s.Message()
	switch {
	case s.Code() == codes.Unimplemented && strings.Contains(text, "(listen.grpc"):
		return fmt.Errorf("%s: %s: set --address or KVPILOT_ADDRESS", r.address, text)
	case strings.Contains(text, "looked like an HTTP/1.1 header"):
		return fmt.Errorf("%s does not serve gRPC without TLS: set --tls or --ca if it is the router's gRPC address (listen.grpc)", r.address)
	case strings.Contains(text, "unexpected HTTP status code"), strings.Contains(text, "unexpected content-type"), strings.Contains(text, "error reading server preface"):
		return fmt.Errorf("%s does not serve gRPC; it may be the REST or the admin address. Use the router's listen.grpc (--address, KVPILOT_ADDRESS)", r.address)
	case s.Code() == codes.Unavailable && (strings.Contains(text, "dial") || strings.Contains(text, "resolver") || strings.Contains(text, "invalid target")):
		why := text[strings.LastIndex(text, ": ")+1:]
		return fmt.Errorf("no router answers at %s (%s); set --address or KVPILOT_ADDRESS to its gRPC address", r.address, strings.Trim(why, ` "`))
	case strings.Contains(text, "first record does not look like a TLS handshake"):
		return fmt.Errorf("%s does not use TLS; omit --tls and --ca", r.address)
	case strings.Contains(text, "failed to verify certificate"):
		return fmt.Errorf("%s: its certificate is not trusted (%s); set --ca to a file with its authority", r.address, text[strings.LastIndex(text, "x509: ")+len("x509: "):])
	case s.Code() == codes.DeadlineExceeded:
		return fmt.Errorf("%s did not answer within %s (--timeout)", r.address, r.timeout)
	case s.Code() == codes.Unauthenticated:
		return fmt.Errorf("%s: %s (--key or KVPILOT_KEY)", r.address, text)
	}
	return fmt.Errorf("%s: %s", r.address, text)
}

// exactly asks for one argument, and says which when it is missing.
func exactly(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("%s takes one argument: %s", cmd.CommandPath(), what)
		}
		return nil
	}
}

// once is ask with the time limit.
func (r *remote) once(ctx context.Context, do func(context.Context, *client.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	return r.ask(ctx, do)
}

// query has cmd ask a running router once and print the answer: as JSON, or with show.
func query[A proto.Message](cmd *cobra.Command, env []string, out io.Writer, ask func(context.Context, *remote, *client.Client, []string) (A, error), show func(A) error) *remote {
	r := &remote{out: out}
	r.flags(cmd, env)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return r.once(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			answer, err := ask(ctx, r, c, args)
			switch {
			case err != nil:
				return err
			case r.output == "json":
				return r.json(answer)
			}
			return show(answer)
		})
	}
	return r
}

// json prints a message on lines of its own.
func (r *remote) json(m proto.Message) error {
	text, err := jsonform.Marshal(m)
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	var even bytes.Buffer
	if err := json.Indent(&even, text, "", "  "); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	_, err = fmt.Fprintf(r.out, "%s\n", even.Bytes())
	return err
}

// word takes an enum's name apart: REPLICA_STATE_READY is "ready" under REPLICA_STATE_.
func word(enum fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(enum.String(), prefix))
}
