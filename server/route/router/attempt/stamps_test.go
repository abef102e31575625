package attempt

import (
	"fmt"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

func TestAVersionsStampIsTheLastOne(t *testing.T) {
	var s stamps
	one, other := &replica.Replica{Version: "0.33.0"}, &replica.Replica{Version: "0.32.0"}
	if got := s.known(one, 7); got.Fingerprint != nil || got.Details {
		t.Errorf("before any stream: %+v", got)
	}
	s.learn(one, openai.Stamp{})
	s.learn(one, openai.Stamp{Fingerprint: []byte(`"a"`)})
	s.learn(one, openai.Stamp{Fingerprint: []byte(`"b"`), Details: true, Cached: 3})
	s.learn(one, openai.Stamp{Fingerprint: []byte(`"b"`)}) // of a stream without its usage
	if got := s.known(one, 7); string(got.Fingerprint) != `"b"` || !got.Details || got.Cached != 7 {
		t.Errorf("of the version: %+v", got)
	}
	if got := s.known(other, 0); got.Fingerprint != nil || got.Details {
		t.Errorf("of another version: %+v", got)
	}
	for i := range 3 * maxStamps {
		s.learn(&replica.Replica{Version: fmt.Sprint(i)}, openai.Stamp{Details: true})
	}
	if len(s.of) > maxStamps {
		t.Errorf("%d versions are kept", len(s.of))
	}
}
