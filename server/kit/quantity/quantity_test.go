package quantity_test

import (
	"math"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/kit/quantity"
)

func TestBytesAreReadWithAndWithoutUnits(t *testing.T) {
	for text, want := range map[string]quantity.Bytes{
		"0": 0, "65536": 65536, "-1": -1, "1_000": 1000, "0x10": 16, " 12 ": 12, "9007199254740993": 9007199254740993,
		"4Gi": 4 << 30, "4GiB": 4 << 30, "512MiB": 512 << 20, "512 MiB": 512 << 20, "64Ki": 64 << 10, "1.5GiB": 3 << 29, "1GB": 1e9, "1G": 1e9, "250kB": 250_000, "7B": 7, "2tib": 2 << 40,
		"9223372036854775807": math.MaxInt64,
	} {
		var got quantity.Bytes
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q = %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestOtherTextIsNoNumberOfBytes(t *testing.T) {
	for _, text := range []string{"", "GiB", "4 Gibi", "much", "-1GiB", "1e9", "1.5", "1,5GB", "4Gi 2Mi", "inf", "NaN", "١GiB", "9GiBs", "16EiB", "9223372036854775808", "0.1.2MB"} {
		got := quantity.Bytes(7)
		err := got.UnmarshalText([]byte(text))
		if err == nil || got != 7 || !strings.Contains(err.Error(), "bytes") {
			t.Errorf("%q = %d, %v", text, got, err)
		}
	}
}

func TestBytesAreShownWithTheUnitThatFits(t *testing.T) {
	for n, want := range map[quantity.Bytes]string{0: "0", 1: "1", 1000: "1000", 1024: "1KiB", 1536: "1536", 64 << 20: "64MiB", 3 << 29: "1536MiB", -2048: "-2KiB", math.MinInt64: "-8EiB", math.MaxInt64: "9223372036854775807"} {
		if got := n.String(); got != want {
			t.Errorf("%d is shown as %q, want %q", int64(n), got, want)
		}
	}
}

func FuzzBytes(f *testing.F) {
	for _, seed := range []string{"4Gi", "1.5GB", "-3", "1e9", "9E"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var read, again quantity.Bytes
		if read.UnmarshalText([]byte(text)) != nil {
			return
		}
		if err := again.UnmarshalText([]byte(read.String())); err != nil && read >= 0 || err == nil && again != read {
			t.Errorf("%q = %d, shown as %q, read as %d: %v", text, int64(read), read, int64(again), err)
		}
	})
}
