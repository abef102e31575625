package resume

import "testing"

// What the client has last is compared with what the next engine's parser makes of the same tokens: tokens that show nothing, as those
// between a thought and an answer, leave it as it is.
func TestTokensThatShowNothingKeepWhatTheClientHasLast(t *testing.T) {
	r, answer := &replay{}, &tokens{ids: []uint32{7}}
	r.join(answer, 0, nil, []byte(`{"role":null,"reasoning":"before I answer"}`))
	for range 3 {
		first := len(answer.ids)
		answer.ids = append(answer.ids, 8)
		r.join(answer, first, nil, []byte(`{"role":null,"content":null}`))
	}
	if got := string(r.last); got != `{"reasoning":"before I answer"}` || r.from != 0 || r.to != 1 {
		t.Errorf("the client has last %s, of the tokens %d to %d", got, r.from, r.to)
	}
	answer.ids = append(answer.ids, 9)
	r.join(answer, 4, nil, []byte(`{"content":"Yes"}`))
	if got := string(r.last); got != `{"content":"Yes"}` || r.from != 4 || r.to != 5 {
		t.Errorf("the client has last %s, of the tokens %d to %d", got, r.from, r.to)
	}
}
