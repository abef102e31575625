package gateway

import (
	"bytes"
	"fmt"
	"io"

	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// smallBody bounds the messages of RPCs that carry no prompt.
	smallBody = 4 << 20
	// mostValues bounds the values of a message in JSON, which decoded take many times their bytes: as
	// many as a prompt may have token ids, and a few more.
	mostValues = 4<<20 + 64<<10
)

// small reports whether an RPC's message carries no prompt.
func small(m protoreflect.MessageDescriptor) bool {
	for _, name := range []protoreflect.Name{"data", "body", "text"} {
		if m.Fields().ByName(name) != nil {
			return false
		}
	}
	return true
}

// checkValues rejects JSON of so many values that the message would take far more memory than the text.
func checkValues(data []byte) error {
	if len(data) > mostValues && bytes.Count(data, []byte{','}) > mostValues {
		return fmt.Errorf("the request body has more than %d values", mostValues)
	}
	return nil
}

// perMessage bounds each message of a stream of them.
type perMessage struct {
	io.Reader
	left int
}

// Read implements io.Reader.
func (r *perMessage) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, tooLarge(smallBody)
	}
	n, err := r.Reader.Read(p[:min(len(p), r.left)])
	r.left -= n
	return n, err
}
