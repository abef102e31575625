package gateway

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
)

func TestBodiesAreChargedAsTheyCome(t *testing.T) {
	const length = 1 << 20
	l := ledger.New(ledger.Config{Bytes: 16 << 20, Places: 1 << 20}, nil)
	h := new(holding)
	l.Open(&h.account, ledger.Sender{Tenant: "a"})
	most := int64(0)
	sent := &counting{Reader: strings.NewReader(strings.Repeat("x", length)), after: func(n int) {
		held := l.Held(ledger.Body)
		if most = max(most, held); held > int64(max(firstPiece, bodyGrowth*n)) {
			t.Errorf("%d bytes are charged after %d have come", held, n)
		}
	}}
	data, err := h.read(t.Context(), sent, length, func() {})
	if err != nil || len(data) != length || l.Held(ledger.Body) != length {
		t.Errorf("%v, %d bytes, %d charged", err, len(data), l.Held(ledger.Body))
	}
	h.close()
	if l.Held(ledger.Body) != 0 {
		t.Errorf("%d bytes are charged of a request that has ended", l.Held(ledger.Body))
	}
	h = new(holding)
	l.Open(&h.account, ledger.Sender{Tenant: "a"})
	if data, err := h.read(t.Context(), strings.NewReader(strings.Repeat("x", length)), -1, func() {}); err != nil || len(data) != length {
		t.Errorf("without a length: %v, %d bytes", err, len(data))
	}
	if _, err := h.read(t.Context(), strings.NewReader("short"), 10, func() {}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a body that ends early: %v", err)
	}
}

// counting reports how much has been read.
type counting struct {
	io.Reader
	n     int
	after func(n int)
}

func (c *counting) Read(p []byte) (int, error) {
	if c.n > 0 {
		c.after(c.n)
	}
	n, err := c.Reader.Read(p[:min(len(p), 1000)])
	c.n += n
	return n, err
}

func TestSlowBodiesEndWhenTheirRoomIsNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ledger.New(ledger.Config{Bytes: 100 << 10, Places: 1 << 20}, nil)
		slow := new(holding)
		l.Open(&slow.account, ledger.Sender{Tenant: "a"})
		from, to := io.Pipe()
		ended := make(chan error, 1)
		go func() {
			_, err := slow.read(t.Context(), from, 40<<10, func() { go from.CloseWithError(os.ErrDeadlineExceeded) })
			ended <- err // the request lasts
		}()
		if _, err := to.Write(make([]byte, 10<<10)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		next := new(holding)
		l.Open(&next.account, ledger.Sender{Tenant: "a"})
		if data, err := next.read(t.Context(), strings.NewReader(strings.Repeat("x", 30<<10)), 30<<10, func() {}); err != nil || len(data) != 30<<10 {
			t.Errorf("the next body: %v, %d bytes", err, len(data))
		}
		slow.close()
		if err := <-ended; apierror.From(err).Reason != apierror.BodyTimeout {
			t.Errorf("the slow body ended with %v, want %v", err, apierror.BodyTimeout)
		}
	})
}
