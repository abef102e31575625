package guard

import (
	"bytes"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

// A codec's error always reaches the caller as an internal one. So a message that must not
// be decoded is left empty, with a note in its unknown fields of why; the handler's wrapper reads
// it. A caller that sends a note rejects only its own call.
const (
	noteField      = protowire.Number(1<<29 - 1)
	noteTooLarge   = "kvpilot: too large"
	noteNoRoom     = "kvpilot: no room"
	noteCompressed = "kvpilot: compressed"
)

func note(why string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, noteField, protowire.BytesType), why)
}

// reject leaves a note in a message instead of decoding it.
func reject(m proto.Message, why string) error {
	proto.Reset(m)
	m.ProtoReflect().SetUnknown(note(why))
	return nil
}

// noted is the error that a message's note stands for; nil without one.
func noted(v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return nil
	}
	unknown := m.ProtoReflect().GetUnknown()
	if len(unknown) == 0 {
		return nil
	}
	switch {
	case bytes.Equal(unknown, note(noteTooLarge)):
		return apierror.New(apierror.BodyTooLarge, fmt.Sprintf("a message may have at most %d bytes besides its prompt", maxRest), nil)
	case bytes.Equal(unknown, note(noteNoRoom)):
		return errFull()
	case bytes.Equal(unknown, note(noteCompressed)):
		return apierror.New(apierror.NotSupported, "compressed messages are not accepted: send them without grpc-encoding", nil)
	}
	return nil
}
