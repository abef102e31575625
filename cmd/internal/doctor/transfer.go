package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// checkTransfer has each replica with a KV connector compute a prompt, and another one of its group answer from the cache.
func checkTransfer(ctx context.Context, in scope) (list []Finding) {
	groups := map[string][]*replica.Replica{}
	for _, r := range in.left() {
		now := in.now(r)
		if e, err := in.measured(ctx, r); now.BlockSize == 0 && err == nil { // the registry learns it a little later
			known := *now
			known.BlockSize = e.BlockSize
			now = &known
		}
		if c := now.Connector(); c.Transport != replica.NoTransport {
			groups[c.Group] = append(groups[c.Group], now)
		}
	}
	if len(groups) == 0 {
		return []Finding{skip("", "no replica has the label %s: each request is served by one replica", replica.LabelConnector)}
	}
	names := make([]string, 0, len(groups))
	for name := range groups {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for _, r := range groups[name] {
			list = append(list, passing{in}.transferOf(ctx, r, groups[name])...)
		}
	}
	return list
}

// passing is the scope of checkTransfer.
type passing struct{ scope }

// transferOf looks at one replica of a group.
func (in passing) transferOf(ctx context.Context, r *replica.Replica, group []*replica.Replica) []Finding {
	subject, c := string(r.ID), r.Connector()
	if e, err := in.measured(ctx, r); err == nil && e.Stranded > 0 && c.Transport == replica.NIXLPush {
		return fault(Warn, subject, "an empty KV cache where no request runs", fmt.Sprintf("%.1f %% of it is in use", 100*e.Stranded),
			"run doctor again in a minute: prompts that no replica has read go by then. If it is still in use, clients have left while vLLM waited for a cache, and those blocks come back only when the engine is restarted")
	}
	if role := r.Labels[replica.LabelRole]; role != "" {
		if _, known := replica.ReadRole(role); !known {
			return fault(Warn, subject, "role prefill, decode or both", fmt.Sprintf("the label role is %q and counts as both", role), "correct the label, or remove it")
		}
	}
	partner := (*replica.Replica)(nil)
	for _, other := range group {
		if d := other.Connector(); other.ID != r.ID && c.Prefills() && d.Decodes() {
			partner = cmp.Or(partner, other)
		}
	}
	if c.Role == replica.DecodeOnly {
		if !slices.ContainsFunc(group, func(o *replica.Replica) bool { d := o.Connector(); return o.ID != r.ID && d.Prefills() }) {
			return in.unpaired(subject, &c)
		}
		return []Finding{ok(subject, "decodes in the group %s", c.Group)}
	}
	if partner == nil {
		return in.unpaired(subject, &c)
	}
	if in.params.NoSend {
		return []Finding{ok(subject, "pairs with %s in the group %s; --no-send: not tried", partner.ID, c.Group)}
	}
	return in.pass(ctx, r, partner)
}

// unpaired is a replica without another one in its group.
func (in passing) unpaired(subject string, c *replica.Connector) []Finding {
	return fault(Warn, subject, "another replica of the group, with the other role", "it is alone in the group "+c.Group+" (connector/version/block size/kv_group)",
		"run the same vLLM version and block size on all replicas that pass caches on, with one kv_group, and give one of them the other role; alone it serves requests whole")
}

// pass has r compute a prompt and d answer from its cache.
func (in passing) pass(ctx context.Context, r, d *replica.Replica) []Finding {
	subject := string(r.ID)
	text, err := json.Marshal("A prompt of a few words that kvpilot doctor has one replica compute and another one answer: " + strings.Repeat("a word, ", 60))
	if err != nil {
		return fault(Fail, subject, "a request", err.Error(), "report this")
	}
	body := append(append([]byte(`{"model":`), rawjson.AppendString(nil, model(r))...), `,"temperature":0,"max_tokens":2,"prompt":`...)
	body = append(append(body, text...), '}')
	req, err := openai.Read(openai.Params{Route: openai.RouteCompletions, Body: body})
	if err != nil {
		return fault(Fail, subject, "a request", err.Error(), "report this")
	}
	legs := openai.Legs{Request: req, Model: model(r)}
	ids := func(leg string) string { return "kvpilot-doctor-" + rand.Text() + leg }
	if r.Transport() == replica.NIXLPush { // they find each other by it
		one := ids("")
		ids = func(string) string { return one }
	}
	if r.Transport() == replica.Mooncake {
		legs.Transfer = "xfer-" + ids("")
	}
	status, answer, err := in.completion(ctx, r, legs.Prefill(), ids("-p"))
	if err != nil || status != http.StatusOK {
		return fault(Fail, subject, "an answer of one token with kv_transfer_params", said(status, answer, err), "look at the replica's log")
	}
	got := openai.ReadPrefilled(answer)
	if legs.Transfer != "" {
		if got.Params, err = in.bootstrap(ctx, r, legs.Transfer); err != nil {
			return fault(Fail, subject, "the bootstrap server of its Mooncake connector at "+r.Bootstrap(), oneLine(err),
				`start vLLM with --kv-transfer-config '{"kv_connector":"MooncakeConnector","kv_role":"kv_both"}' and VLLM_MOONCAKE_BOOTSTRAP_PORT, and set the label kv_bootstrap to that port or address`)
		}
	}
	if got.Params == nil {
		return fault(Fail, subject, "kv_transfer_params in the answer", "there are none: the engine has no NIXL connector, or another one",
			fmt.Sprintf(`start vLLM with --kv-transfer-config '{"kv_connector":%q,"kv_role":"kv_both"}', or remove the label kv_connector`, connectorOf(r.Transport() == replica.NIXLPush)))
	}
	if pushes := got.Mode == "push"; got.Mode != "" && pushes != (r.Transport() == replica.NIXLPush) {
		return fault(Fail, subject, "the connector of its label, "+r.Transport().String(), "the engine has "+connectorOf(pushes)+": requests are served whole",
			"set the label kv_connector to "+labelOf(pushes)+", or start vLLM with "+connectorOf(!pushes))
	}
	if found := sideChannel(subject, r, got.Params); legs.Transfer == "" && found != nil {
		return found
	}
	status, answer, err = in.completion(ctx, d, legs.Decode(got.Params), ids("-d"))
	if err != nil || status != http.StatusOK {
		return fault(Fail, subject, fmt.Sprintf("an answer of %s from its cache", d.ID), said(status, answer, err),
			"look at both engines' logs: vLLM compares version, tensor parallelism, block size and data type (kv_group separates those that differ), and reads from VLLM_NIXL_SIDE_CHANNEL_HOST and VLLM_NIXL_SIDE_CHANNEL_PORT")
	}
	return []Finding{ok(subject, "%s answers from its cache", d.ID)}
}

// errNoEngine is why a bootstrap server's answer is of no use.
var errNoEngine = errors.New("its answer to /query has no engine_id of rank 0")

// bootstrap asks a replica's bootstrap server for the parameters with which others read its transfer.
func (in passing) bootstrap(ctx context.Context, r *replica.Replica, transfer string) ([]byte, error) {
	at := *r
	at.APIKey = secret.String{}
	resp, err := in.send(ctx, &at, http.MethodGet, r.Bootstrap()+"/query", nil, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	if err != nil {
		return nil, err
	}
	engine := openai.MooncakeEngine(answer, 0)
	if resp.StatusCode != http.StatusOK || engine == "" {
		return nil, fmt.Errorf("status %d: %w", resp.StatusCode, errNoEngine)
	}
	return openai.MooncakeParams(transfer, r.Bootstrap(), engine), nil
}

// connectorOf is vLLM's name of the connector that pushes caches, or of the one that reads them.
func connectorOf(pushes bool) string {
	if pushes {
		return "NixlPushConnector"
	}
	return "NixlConnector"
}

// labelOf is the label of the same.
func labelOf(pushes bool) string {
	if pushes {
		return replica.NIXLPush.String()
	}
	return replica.NIXL.String()
}

// sideChannel reports a side channel at the loopback of a replica that is not on this machine.
func sideChannel(subject string, r *replica.Replica, params []byte) []Finding {
	host, err := rawjson.Unquote(rawjson.Member(params, "remote_host"))
	if err != nil {
		return nil
	}
	base, err := url.Parse(r.URL)
	if err != nil || loopback(base.Hostname()) || !loopback(host) {
		return nil
	}
	return fault(Fail, subject, "the address of the replica in kv_transfer_params", "remote_host is "+host+": other replicas read from themselves",
		"start the engine with VLLM_NIXL_SIDE_CHANNEL_HOST set to its own address")
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// said describes the failure of a request.
func said(status int, answer []byte, err error) string {
	if err != nil {
		return oneLine(err)
	}
	return fmt.Sprintf("status %d: %.150q", status, answer)
}

// completion sends a completion.
func (in passing) completion(ctx context.Context, r *replica.Replica, body []byte, id string) (int, []byte, error) {
	resp, err := in.send(ctx, r, http.MethodPost, r.URL+"/v1/completions", http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {id}}, body)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	return resp.StatusCode, text, err
}
