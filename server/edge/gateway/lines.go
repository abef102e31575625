package gateway

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

// maxWrongLine bounds the bytes read to find the end of a line that is no JSON.
const maxWrongLine = 1 << 20

// lineDecoder reads the messages of a live body. It returns an unreadable message empty and notes its
// mistake, so that the service answers it like any other; the next message is read from the
// next line.
type lineDecoder struct {
	body    *liveBody
	bounded *perMessage // the body
	values  *json.Decoder
	n       int
}

// Decode implements runtime.Decoder.
func (d *lineDecoder) Decode(v any) error {
	d.n++
	d.bounded.left = smallBody
	var line json.RawMessage
	err := d.values.Decode(&line)
	if large, ok := errors.AsType[*apierror.Error](err); ok {
		d.body.wrong.Store(large)
		return err
	}
	m, ok := v.(proto.Message)
	if err == nil && ok {
		if err = readMessage(line, m); err == nil {
			return nil
		}
	} else if _, syntax := errors.AsType[*json.SyntaxError](err); !syntax {
		return err // the body's end, or the client's
	} else if skipped := d.skip(); skipped != nil {
		d.body.wrong.Store(d.mistake(err))
		return skipped
	}
	if !ok {
		return err
	}
	d.body.mistakes.Note(d.n, d.mistake(err))
	numbered(line, m)
	return nil
}

func (d *lineDecoder) mistake(err error) *apierror.Error {
	wrong := unreadable(err.Error(), err)
	wrong.Message = "message " + itoa(int64(d.n)) + ": " + wrong.Message
	return wrong
}

// errEndlessLine ends a stream when its next message cannot be found.
var errEndlessLine = errors.New("a line that is not JSON does not end")

// skip goes to the line behind the invalid one.
func (d *lineDecoder) skip() error {
	rest := bufio.NewReader(io.MultiReader(d.values.Buffered(), d.bounded))
	begun := false
	for range maxWrongLine {
		c, err := rest.ReadByte()
		if isEnd(err) {
			break
		}
		if err != nil {
			return err
		}
		if c == '\n' && begun {
			d.values = json.NewDecoder(rest)
			return nil
		}
		begun = begun || !bytes.ContainsRune([]byte(" \t\r\n"), rune(c))
	}
	if _, err := rest.Peek(1); err == nil {
		return errEndlessLine
	}
	d.values = json.NewDecoder(rest)
	return nil
}

// numbered clears m except for the number by which its sender knows it, if that can be read.
func numbered(line []byte, m proto.Message) {
	proto.Reset(m)
	if n, ok := members(line)["sequence"]; ok {
		alone := append(append([]byte(`{"sequence":`), n...), '}')
		if (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(alone, m) != nil {
			proto.Reset(m)
		}
	}
}
