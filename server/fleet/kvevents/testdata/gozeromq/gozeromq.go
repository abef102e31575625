// Command peer is a publisher of KV events over go-zeromq, which speaks ZMTP 3.0. It dials or binds
// the address that it is given ("dial tcp://host:port", "bind tcp://host:port"), prints "ready", and
// publishes each line of its input, hexadecimal frames separated by spaces.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/go-zeromq/zmq4"
)

func main() {
	pub := zmq4.NewPub(context.Background(), zmq4.WithAutomaticReconnect(true))
	open := pub.Listen
	if os.Args[1] == "dial" {
		open = pub.Dial
	}
	if err := open(os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ready", pub.Addr())
	time.AfterFunc(2*time.Minute, func() { os.Exit(1) }) // whatever the test does, this ends
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var frames [][]byte
		for _, word := range strings.Fields(in.Text()) {
			frame, err := hex.DecodeString(strings.TrimPrefix(word, "x"))
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			frames = append(frames, frame)
		}
		if err := pub.SendMulti(zmq4.NewMsgFrom(frames...)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
