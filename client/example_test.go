package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"

	"github.com/kvpilot/kvpilot/client"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// An application outside an example calls client.Dial("localhost:9000").
func dialExample() (*client.Client, func()) {
	opts, stop := serve(&router{})
	c, err := client.Dial("passthrough:///router", opts...)
	if err != nil {
		log.Fatal(err)
	}
	return c, func() { c.Close(); stop() }
}

func ExampleClient_Tokenize() {
	c, done := dialExample()
	defer done()
	ids, err := c.Tokenize(context.Background(), "model", "Hi")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(ids)
	// Output: [72 105]
}

// A proxy asks where to send a request, sends it there itself, and reports how it fares.
func ExampleClient_ChooseForBody() {
	c, done := dialExample()
	defer done()
	ctx := context.Background()
	choice, err := c.ChooseForBody(ctx, []byte(`{"model":"model","messages":[{"role":"user","content":"Hi"}]}`))
	if err != nil {
		log.Fatal(err)
	}
	reason := kvpilotv1.ReleaseReason_RELEASE_REASON_FAILED // until the answer is whole
	defer func() { _ = choice.Release(ctx, reason, client.Result{}) }()
	fmt.Println("send it to", choice.GetUrl())
	if err := choice.PrefillDone(ctx); err != nil { // with the first byte
		log.Print(err)
	}
	if err := choice.Progress(ctx, 128); err != nil { // now and then
		log.Print(err)
	}
	reason = kvpilotv1.ReleaseReason_RELEASE_REASON_COMPLETED
	// Output: send it to http://r1:8000
}

// One stream carries the reports of many requests, and releases them all when this process dies.
func ExampleClient_Track() {
	c, done := dialExample()
	defer done()
	ctx := context.Background()
	tracker, err := c.Track(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer tracker.Close()
	choice, err := tracker.Choose(ctx, &kvpilotv1.ChooseReplicaRequest{Model: "model"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(choice.GetReplicaId())
	if err := choice.Release(ctx, kvpilotv1.ReleaseReason_RELEASE_REASON_COMPLETED, client.Result{OutputTokens: 128}); err != nil {
		log.Print(err)
	}
	// Output: r1
}

func ExampleClient_ChatStream() {
	c, done := dialExample()
	defer done()
	stream, err := c.ChatStream(context.Background(), []byte(`{"model":"model","stream":true,"messages":[{"role":"user","content":"Hi"}]}`))
	if err != nil {
		log.Fatal(err)
	}
	defer stream.Close()
	for {
		event, err := stream.Event()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s\n", event)
	}
	// Output:
	// {"a":1}
	// {"a":2}
}
