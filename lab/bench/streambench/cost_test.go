package streambench

import (
	"bytes"
	"testing"
)

func TestBodiesShareTheirBeginningOnly(t *testing.T) {
	for _, c := range costCases {
		if c.streams > 0 {
			continue
		}
		of := newBodies("127.0.0.1:1", c, 1<<16)
		a, b := of.request(nil, 1), of.request(nil, 2)
		_, body, _ := bytes.Cut(a, []byte("\r\n\r\n"))
		if len(a) != len(b) || len(body) < c.size {
			t.Errorf("%s: %d and %d bytes", c.name, len(a), len(b))
		}
		same := 0
		for same < len(a) && a[same] == b[same] {
			same++
		}
		common := same - len(of.head)
		if want := int(float64(c.size) * c.shared); common < want || common > want+16 {
			t.Errorf("%s: %d bytes of the prompt are shared, want %d", c.name, common, want)
		}
		one, two := ids(a), ids(b)
		if bytes.Equal(one, two) {
			t.Errorf("%s: different prompts have the same ids", c.name)
		}
	}
}

func TestVoidSamplesCountOnlyWhenAllAreVoid(t *testing.T) {
	r := summarizeCost([]costSample{{cpu: 1}, {cpu: 100, void: true}, {cpu: 3}, {cpu: 2}})
	if r.CPU != 2 || r.Samples != 4 || r.Void != 1 {
		t.Errorf("got %+v", r)
	}
	if r = summarizeCost([]costSample{{cpu: 5, void: true}}); r.CPU != 5 || r.Void != 1 {
		t.Errorf("all void: got %+v", r)
	}
}
