package openai

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
)

// maxFormValue bounds a form value that routing reads.
const maxFormValue = 4 << 10

// ReadForm reads a multipart form (audio routes) up to its model, without holding the file
// that is in it. It returns the request and a reader of the whole body, byte for byte as the
// client sends it. head bounds the bytes held: a form whose model comes after a longer file
// is refused with 413. SDKs send the fields before the file, so that little is held.
func ReadForm(p Params, contentType string, body io.Reader, head int) (*Request, io.Reader, error) {
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return nil, nil, &BadRequest{Message: "This route takes multipart/form-data with a boundary.", Code: CodeMediaType,
			Status: http.StatusUnsupportedMediaType, Offset: -1}
	}
	held := &bytes.Buffer{}
	limited := &io.LimitedReader{R: body, N: int64(head)}
	form := multipart.NewReader(io.TeeReader(limited, held), params["boundary"])
	r := &Request{Route: p.Route, N: 1}
	if err := r.form(form); err != nil {
		if limited.N <= 0 {
			return nil, nil, &BadRequest{Message: fmt.Sprintf("The form's model does not come within its first %d bytes.", head),
				Param: "model", Code: CodeTooLarge, Status: http.StatusRequestEntityTooLarge, Offset: head}
		}
		return nil, nil, &BadRequest{Message: "The form cannot be read: " + err.Error() + ".", Code: CodeInvalidValue,
			Status: http.StatusBadRequest, Offset: held.Len()}
	}
	r.Session = SessionFrom(p.Header, p.SessionHeader)
	return r, io.MultiReader(held, body), nil
}

// form reads parts until the model was found, or the form ends.
func (r *Request) form(form *multipart.Reader) error {
	for r.Model == "" {
		part, err := form.NextRawPart()
		if err == io.EOF { //nolint:errorlint // the plain io.EOF is the end; a wrapped one is an answer that was cut off
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
			r.Model = string(value)
			continue
		}
		s := reader{s: scanner{data: append(append([]byte{'"'}, value...), '"')}, req: r}
		s.boolean(&r.Stream)
	}
	return nil
}
