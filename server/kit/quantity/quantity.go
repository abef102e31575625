// Package quantity has the types of settings that people write with a unit.
package quantity

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

// Bytes is a number of bytes. Its text may have a unit: binary (512MiB, 4Gi) or decimal (1GB).
type Bytes int64

// Form says how an operator writes Bytes.
const Form = "a number of bytes, as an integer or with a unit such as 512MiB, 4Gi or 1GB"

// UnmarshalText reads an integer, or a number with a unit.
func (b *Bytes) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(string(text))
	if n, err := strconv.ParseInt(s, 0, 64); err == nil {
		*b = Bytes(n)
		return nil
	}
	n, err := humanize.ParseBytes(s)
	switch {
	case err != nil, strings.ContainsRune(s, ','), !strings.ContainsAny(strings.ToLower(s), "bkmgtpe"): // 1,5GB would be 15 GB, 1.5 a byte
		return fmt.Errorf("must be %s, not %q", Form, text)
	case n > math.MaxInt64:
		return fmt.Errorf("%q is too large: at most %d bytes are possible", text, int64(math.MaxInt64))
	}
	*b = Bytes(n)
	return nil
}

// String returns the number with the largest binary unit of which it is a multiple.
func (b Bytes) String() string {
	n, unit := int64(b), 0
	units := [...]string{"", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	for n != 0 && n%1024 == 0 {
		n, unit = n/1024, unit+1
	}
	return strconv.FormatInt(n, 10) + units[unit]
}
