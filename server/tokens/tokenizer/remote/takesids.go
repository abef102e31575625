package remote

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// supportAsking marks a probe under way.
const supportAsking support = 3

// probeIDs is how many ids the probe sends: more than any template makes of its one letter
// would be a coincidence, so the count shows which prompt was used.
const probeIDs = 3

// TakesIDs reports whether the replica's chat route takes ids through kv_transfer_params. The
// first question starts a probe of one generated token and is answered no, as is every
// question until the probe has shown it.
func (p *Pool) TakesIDs(ctx context.Context, r *replica.Replica, model string, ids []uint32) bool {
	e := p.table.get(r, time.Now())
	if e == nil {
		return false
	}
	switch support(e.handoff.Load()) {
	case supportYes:
		return true
	case supportUnknown:
		if len(ids) >= probeIDs && e.handoff.CompareAndSwap(int32(supportUnknown), int32(supportAsking)) {
			some := append([]uint32(nil), ids[:probeIDs]...)
			ctx := context.WithoutCancel(ctx)
			p.wg.Go(func() { p.probeIDs(ctx, e, model, some) })
		}
	case supportNo, supportAsking:
	}
	return false
}

func (p *Pool) probeIDs(ctx context.Context, e *endpoint, model string, ids []uint32) {
	ctx, cancel := context.WithTimeout(ctx, p.cap())
	defer cancel()
	body := append([]byte(`{"messages":[{"role":"user","content":"a longer text than three tokens, so that the two cannot be confused"}],"max_tokens":1,"model":`),
		rawjson.AppendString(nil, model)...)
	body = append(body, `,"kv_transfer_params":{"prompt_token_ids":`...)
	body = append(rawjson.AppendUint32s(body, ids), "}}"...)
	status, _, buf, err := p.client.post(ctx, e, "/v1/chat/completions", body)
	if err != nil || status >= http.StatusInternalServerError {
		e.handoff.Store(int32(supportUnknown)) // says nothing; ask again later
		if err == nil {
			p.client.release(buf)
		}
		return
	}
	defer p.client.release(buf)
	counted := rawjson.Member(rawjson.Member(buf.Bytes(), "usage"), "prompt_tokens")
	found := supportNo
	if status == http.StatusOK && bytes.Equal(counted, strconv.AppendInt(nil, probeIDs, 10)) {
		found = supportYes
	}
	e.handoff.Store(int32(found))
	p.log.Info("probed whether the replica takes ids on chat", "replica", string(e.id), "takes", found == supportYes)
}
