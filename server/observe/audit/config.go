package audit

import (
	"github.com/kvpilot/kvpilot/server/kit/check"
	"github.com/kvpilot/kvpilot/server/kit/quantity"
)

// stderr as the file writes to the router's standard error.
const stderr = "stderr"

// Config has the settings of an operator. Defaults live in DefaultConfig alone.
type Config struct {
	// File receives one JSON line per event; "stderr" writes them there, empty: none. The router does not start with a path that cannot
	// be opened; events lost to a full disk are counted.
	File string `yaml:"file"`
	// FileMaxBytes limits the file: a larger one is renamed to FILE.1, which replaces the previous one. Zero: no
	// rotation.
	FileMaxBytes quantity.Bytes `yaml:"file_max_bytes"`
}

// DefaultConfig writes no file.
func DefaultConfig() Config { return Config{FileMaxBytes: 64 << 20} }

// Validate reports every invalid field at once.
func (c Config) Validate() error { return check.AtLeast("file_max_bytes", c.FileMaxBytes, 0) }
