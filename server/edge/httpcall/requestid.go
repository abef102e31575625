package httpcall

import (
	"math/rand/v2"
	"net/http"
)

// HeaderRequestID carries a request's id, in both directions.
const HeaderRequestID = "X-Request-Id"

// RequestID takes the client's id when it is fit for logs and headers, else makes one.
func RequestID(h http.Header) string {
	if v := h[HeaderRequestID]; len(v) == 1 && fit(v[0]) {
		return v[0]
	}
	const digits = "0123456789abcdef"
	var id [32]byte
	for i := 0; i < len(id); i += 16 {
		for j, bits := 0, rand.Uint64(); j < 16; j, bits = j+1, bits>>4 {
			id[i+j] = digits[bits&15]
		}
	}
	return string(id[:])
}

func fit(id string) bool {
	if id == "" || len(id) > 256 {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}
