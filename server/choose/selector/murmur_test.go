package selector

import "testing"

// The values are those of the reference implementation's 128-bit form for 64-bit machines.
func TestMurmurKnownValues(t *testing.T) {
	for key, want := range map[string]uint64{
		"":      0,
		"hello": 0xcbd8a7b341bd9b02,
		"The quick brown fox jumps over the lazy dog": 0xe34bbc7bbc071b6c,
	} {
		if got := murmur3(key, 0); got != want {
			t.Errorf("murmur3(%q) = %#x, want %#x", key, got, want)
		}
	}
}
