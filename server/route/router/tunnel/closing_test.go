package tunnel

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// frames are a message of n bytes in a frame as either side sends it.
func frames(first byte, n int, masked bool) []byte {
	b := []byte{first}
	mask := byte(0)
	if masked {
		mask = 0x80
	}
	switch {
	case n < 126:
		b = append(b, mask|byte(n))
	case n <= 0xffff:
		b = binary.BigEndian.AppendUint16(append(b, mask|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, mask|127), uint64(n))
	}
	if masked {
		b = append(b, 1, 2, 3, 4)
	}
	return append(b, bytes.Repeat([]byte{0x88}, n)...) // what it carries must not be taken for a frame
}

func TestTheClosingMessageIsSeenWhereverThePiecesAreCut(t *testing.T) {
	for _, masked := range []bool{false, true} {
		var talk []byte
		for _, n := range []int{0, 1, 125, 126, 70_000, 2} {
			talk = append(talk, frames(0x81, n, masked)...)
		}
		whole := append(bytes.Clone(talk), frames(0x88, 2, masked)...)
		for _, piece := range []int{1, 2, 3, 7, 1000, len(whole)} {
			var c closing
			for at := 0; at < len(whole); at += piece {
				if at+piece <= len(talk) && c.seen {
					t.Fatalf("pieces of %d: seen at byte %d of %d, too early", piece, at, len(talk))
				}
				c.feed(whole[at:min(at+piece, len(whole))])
			}
			if !c.seen {
				t.Errorf("pieces of %d, masked %v: not seen", piece, masked)
			}
		}
	}
}

func FuzzClosing(f *testing.F) {
	f.Add(frames(0x88, 0, true), 1)
	f.Add([]byte{0x81, 127, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3}, 2)
	f.Fuzz(func(t *testing.T, b []byte, piece int) {
		var whole, cut closing
		whole.feed(b)
		piece = max(1, piece)
		for at := 0; at < len(b); at += min(piece, len(b)-at) {
			cut.feed(b[at : at+min(piece, len(b)-at)])
		}
		if whole.seen != cut.seen {
			t.Errorf("%x: seen %v whole, %v in pieces of %d", b, whole.seen, cut.seen, piece)
		}
	})
}
