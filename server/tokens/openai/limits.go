package openai

import (
	"fmt"
	"net/http"
)

// Limits bound the memory of a body besides its bytes. Zero is no bound.
type Limits struct {
	// Members bounds the members of the body itself.
	Members int
	// Items bounds the messages of a chat, and the prompts of a batch.
	Items int
}

// tooMany refuses a body that has more of something than may be remembered.
func (r *reader) tooMany(field, what string, limit int) bool {
	r.refusal = &BadRequest{
		Message: fmt.Sprintf("The request has more than %d %s.", limit, what),
		Param:   field, Code: CodeInvalidValue, Status: http.StatusBadRequest, Offset: r.s.Pos,
	}
	return false
}

// moreItems reports whether one more item than n may be remembered; if not, the body is refused.
func (r *reader) moreItems(n int, what string) bool {
	limit := r.limits.Items
	return limit <= 0 || n < limit || r.tooMany(r.field, what, limit)
}
