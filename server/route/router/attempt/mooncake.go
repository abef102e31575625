package attempt

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// bootstraps finds engines with Mooncake. An engine's answer does not say where its cache is, so each transfer asks its bootstrap server: a
// process that has restarted has another id, and an engine that asks for the former one waits for minutes.
type bootstraps struct{ upstream *upstream.Client }

// maxBootstrap bounds the answer of a bootstrap server: an entry for each rank of a replica.
const maxBootstrap = 1 << 20

// transferName is the name of a leg's transfer, which no other one has.
func transferName(leg string) string { return "xfer-" + leg }

// errNoEngine is why a cache that an engine keeps cannot be read.
var errNoEngine = errors.New("the bootstrap server knows no engine of this rank")

// params are the parameters with which another engine reads the cache that the rank at from keeps under a name.
func (b bootstraps) params(ctx context.Context, from *chooser.Choice, transfer string) ([]byte, error) {
	return b.paramsAt(ctx, from.Replica, from.Rank, transfer)
}

func (b bootstraps) paramsAt(ctx context.Context, from *replica.Replica, rank int, transfer string) ([]byte, error) {
	at := *from
	at.URL, at.APIKey, at.Slots = from.Bootstrap(), secret.String{}, nil
	resp, err := b.upstream.Do(ctx, upstream.Target{Replica: &at}, &upstream.Request{Method: http.MethodGet, Path: "/query", Header: http.Header{}})
	if err != nil {
		return nil, fmt.Errorf("the bootstrap server at %s: %w", at.URL, err)
	}
	defer resp.Close()
	if upstream.Classify(resp, nil) != retry.OK {
		return nil, fmt.Errorf("the bootstrap server at %s does not answer /query: %w", at.URL, errNoEngine)
	}
	answer, err := resp.ReadAll(maxBootstrap)
	if err != nil {
		return nil, fmt.Errorf("the bootstrap server at %s: %w", at.URL, err)
	}
	engine := openai.MooncakeEngine(answer, rank)
	if engine == "" {
		return nil, fmt.Errorf("%s, rank %d: %w", at.URL, rank, errNoEngine)
	}
	return openai.MooncakeParams(transfer, at.URL, engine), nil
}
