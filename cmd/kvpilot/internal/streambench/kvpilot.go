package streambench

import (
	"context"
	"errors"
)

func (b *bench) startKvpilot(ctx context.Context) (*process, error) {
	_ = ctx
	return nil, errors.New("not wired yet")
}
