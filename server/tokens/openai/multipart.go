package openai

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"

	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// maxFormValue bounds a form value that routing reads.
const maxFormValue = 4 << 10

// Form is the part read of a multipart form (audio routes) up to its model.
type Form struct {
	*Request
	// Head is the part that was read, byte for byte; the rest of the body follows it.
	Head []byte
	// Whole says that there is no rest.
	Whole bool

	boundary string
}

// ReadForm reads a multipart form up to its model, without the parts after it. head bounds the
// bytes that are held: a form with its model after a longer file is rejected with 413. An error
// of body itself is returned as it is; every other one is a *BadRequest.
func ReadForm(p Params, contentType string, body io.Reader, head int) (*Form, error) {
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return nil, &BadRequest{Message: "This route takes multipart/form-data with a boundary.", Code: CodeMediaType,
			Status: http.StatusUnsupportedMediaType, Offset: -1}
	}
	held := &holder{from: body, left: head}
	f := &Form{Request: &Request{Route: p.Route, Wanted: Wanted{N: 1}}, boundary: params["boundary"]}
	err = f.read(multipart.NewReader(held, f.boundary))
	f.Head, f.Whole = held.bytes.Bytes(), held.err == io.EOF
	switch {
	case err == nil:
		f.applyHeaders(p)
		return f, nil
	case held.left == 0:
		return nil, &BadRequest{Message: fmt.Sprintf("The form's model does not come within its first %d bytes: send it before the file.", head),
			Param: "model", Code: CodeTooLarge, Status: http.StatusRequestEntityTooLarge, Offset: head}
	case held.err != nil && held.err != io.EOF:
		return nil, held.err
	}
	return nil, &BadRequest{Message: "The form cannot be read: " + err.Error() + ".", Code: CodeInvalidValue,
		Status: http.StatusBadRequest, Offset: held.bytes.Len()}
}

// holder keeps the bytes read through it.
type holder struct {
	from  io.Reader
	left  int
	bytes bytes.Buffer
	err   error
}

func (h *holder) Read(p []byte) (int, error) {
	if h.left == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := h.from.Read(p[:min(len(p), h.left)])
	h.bytes.Write(p[:n])
	h.left -= n
	if err != nil {
		h.err = err
	}
	return n, err
}

// read reads parts until the model was found, or the form ends.
func (f *Form) read(form *multipart.Reader) error {
	for f.Model == "" {
		part, err := form.NextRawPart()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		name := part.FormName()
		if part.FileName() != "" || name != "model" && name != "stream" {
			continue
		}
		value, err := io.ReadAll(io.LimitReader(part, maxFormValue+1))
		if err != nil {
			return err
		}
		if len(value) > maxFormValue {
			return errors.New("a value is too long")
		}
		if name == "model" {
			f.Model = string(value)
			continue
		}
		s := reader{s: rawjson.Scanner{Data: append(append([]byte{'"'}, value...), '"')}, req: f.Request}
		s.boolean(&f.Stream)
	}
	return nil
}

// HeadFor returns Head with the model's name replaced.
func (f *Form) HeadFor(model string) []byte {
	if model == f.Model || f.Model == "" {
		return f.Head
	}
	// The model is the last part that was read: bytes behind it in Head were only buffered, and may
	// hold its name again.
	delimiter := []byte("--" + f.boundary)
	for at := 0; ; {
		start := bytes.Index(f.Head[at:], delimiter)
		if start < 0 {
			return f.Head
		}
		at += start + len(delimiter)
		header, value, found := bytes.Cut(f.Head[at:], []byte("\r\n\r\n"))
		if !found {
			return f.Head
		}
		rest, ok := bytes.CutPrefix(value, []byte(f.Model+"\r\n"))
		if !ok || !bytes.HasPrefix(rest, delimiter) || !bytes.Contains(header, []byte("model")) || bytes.Contains(header, []byte("filename")) {
			continue
		}
		from := len(f.Head) - len(value)
		return append(append(append(make([]byte, 0, len(f.Head)+len(model)), f.Head[:from]...), model...), f.Head[from+len(f.Model):]...)
	}
}
