package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// ErrTrackerClosed is returned by reports on a Tracker whose stream has ended.
var ErrTrackerClosed = errors.New("the tracker's stream has ended")

// Tracker carries the reports of many choices over one stream. Its choices live as long as the
// stream: when this process dies, the router releases them at once instead of waiting for
// leases. It is safe for concurrent use.
type Tracker struct {
	client *Client
	cancel context.CancelFunc
	done   chan struct{}

	sendMu sync.Mutex // one Send at a time, in the order of the numbers
	stream kvpilotv1.RoutingService_TrackReservationClient

	mu      sync.Mutex
	next    uint64                                              // guarded by mu
	waiting map[uint64]chan *kvpilotv1.TrackReservationResponse // guarded by mu
	err     error                                               // guarded by mu; why the stream ended
}

// Track opens the stream. It ends with ctx, with Close, or with the connection; a new one must be
// opened then, and the choices of the old one are released.
func (c *Client) Track(ctx context.Context) (*Tracker, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := c.routing.TrackReservation(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	t := &Tracker{
		client: c, cancel: cancel, done: make(chan struct{}), stream: stream,
		waiting: map[uint64]chan *kvpilotv1.TrackReservationResponse{},
	}
	go t.receive()
	return t, nil
}

// closeWait is how long Close waits for the router to end the stream too.
const closeWait = 2 * time.Second

// Close ends the stream; the router releases choices made over it and not yet released.
func (t *Tracker) Close() error {
	t.sendMu.Lock()
	err := t.stream.CloseSend()
	t.sendMu.Unlock()
	select {
	case <-t.done:
	case <-time.After(closeWait):
	}
	t.cancel()
	<-t.done
	return err
}

// Choose chooses as Client.Choose does and ties the reservation to this stream.
func (t *Tracker) Choose(ctx context.Context, req *kvpilotv1.ChooseReplicaRequest) (*Choice, error) {
	ch, err := t.client.Choose(ctx, req)
	if err != nil || !ch.Booked() {
		return ch, err
	}
	err = t.report(ctx, &kvpilotv1.ReservationReport{
		ReservationId: ch.GetReservationId(), Attempt: proto.Uint32(ch.GetAttempt()),
		Event: &kvpilotv1.ReservationReport_Bind{Bind: &kvpilotv1.BindReport{}},
	})
	if err != nil {
		return ch, fmt.Errorf("bind the reservation to the stream: %w", err)
	}
	return &Choice{ChooseReplicaResponse: ch.ChooseReplicaResponse, send: t}, nil
}

// receive hands answers to their waiting callers.
func (t *Tracker) receive() {
	defer close(t.done)
	for {
		resp, err := t.stream.Recv()
		t.mu.Lock()
		if err != nil {
			t.err = err
			for _, w := range t.waiting {
				close(w)
			}
			t.waiting = nil
			t.mu.Unlock()
			return
		}
		w := t.waiting[resp.GetSequence()]
		delete(t.waiting, resp.GetSequence())
		t.mu.Unlock()
		if w != nil {
			w <- resp
		}
	}
}

// report sends one report and waits for its answer.
func (t *Tracker) report(ctx context.Context, req *kvpilotv1.ReservationReport) error {
	answer := make(chan *kvpilotv1.TrackReservationResponse, 1)
	t.sendMu.Lock()
	t.mu.Lock()
	if t.waiting == nil {
		err := t.err
		t.mu.Unlock()
		t.sendMu.Unlock()
		return fmt.Errorf("%w: %w", ErrTrackerClosed, err)
	}
	t.next++
	req.Sequence = t.next
	t.waiting[req.Sequence] = answer
	t.mu.Unlock()
	err := t.stream.Send(req)
	t.sendMu.Unlock()
	if err != nil {
		<-t.done // Recv has the reason
		return t.ended()
	}
	select {
	case resp, ok := <-answer:
		if !ok {
			return t.ended()
		}
		if r := resp.GetReason(); r != kvpilotv1.ErrorReason_ERROR_REASON_UNSPECIFIED {
			return &ReportError{Reason: r, Message: resp.GetMessage()}
		}
		return nil
	case <-ctx.Done():
		t.mu.Lock()
		delete(t.waiting, req.Sequence)
		t.mu.Unlock()
		return ctx.Err()
	}
}

func (t *Tracker) ended() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return fmt.Errorf("%w: %w", ErrTrackerClosed, t.err)
}

// ReportError is a report that the router could not use; the stream continues.
type ReportError struct {
	Reason  kvpilotv1.ErrorReason
	Message string
}

// Error implements error.
func (e *ReportError) Error() string { return e.Message }
