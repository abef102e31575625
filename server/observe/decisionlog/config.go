package decisionlog

import (
	"errors"

	"github.com/kvpilot/kvpilot/server/kit/check"
	"github.com/kvpilot/kvpilot/server/kit/quantity"
)

// Config has the settings of an operator. Defaults live in DefaultConfig alone.
type Config struct {
	// Size is the number of decisions remembered; each takes a kilobyte, and 30 to 150 bytes per rank, of at most about 64.
	Size int `yaml:"size"`
	// File receives one JSON line per ended decision; empty: none. It is reopened after it was moved away. The router does not start with
	// a path that cannot be opened; on a full disk up to one mebibyte is buffered, and lost lines are counted.
	File string `yaml:"file"`
	// FileMaxBytes limits the file: a larger one is renamed to FILE.1, which replaces the previous one. Zero: no
	// rotation.
	FileMaxBytes quantity.Bytes `yaml:"file_max_bytes"`
}

// DefaultConfig remembers 2,000 decisions and writes no file.
func DefaultConfig() Config { return Config{Size: 2000, FileMaxBytes: 256 << 20} }

// Validate reports every invalid field at once.
func (c Config) Validate() error {
	return errors.Join(
		check.Between("size", c.Size, 1, 1_000_000),
		check.AtLeast("file_max_bytes", c.FileMaxBytes, 0),
	)
}
