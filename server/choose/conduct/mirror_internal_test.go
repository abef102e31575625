package conduct

import (
	"sync/atomic"
	"testing"
)

func TestTheMirrorShowsWhatIsAvoided(t *testing.T) {
	r := new(Fleet).Add("kind", "wider")
	var mirror atomic.Pointer[Record]
	publish := func(s Suspicion) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.suspicions = s
		r.publish(false, 1)
	}
	publish(Empty)
	r.Mirror(&mirror)
	if about := mirror.Load(); about == nil || about != r.published.avoided.Load() || about.Suspicions != Empty {
		t.Errorf("the mirror shows %v of a rank that is avoided", about)
	}
	publish(0)
	if about := mirror.Load(); about != nil || r.published.avoided.Load() != nil {
		t.Errorf("the mirror shows %v of a rank that is cleared", about)
	}
	publish(Unproven)
	if about := mirror.Load(); about == nil || about != r.published.avoided.Load() {
		t.Errorf("the mirror shows %v of a rank that is avoided again", about)
	}
}
