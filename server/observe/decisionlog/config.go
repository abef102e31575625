package decisionlog

import "errors"

// Config is what an operator may set. Defaults live in DefaultConfig alone.
type Config struct {
	// Size is how many decisions are remembered; each takes about 250 bytes per candidate.
	Size int `yaml:"size"`
	// File receives one JSON line per ended decision; empty writes none. It is opened for append
	// and reopened when it was moved away, so that logrotate needs no signal. A path that cannot be
	// opened refuses to start; a disk that fills up later is tried again every second, up to a
	// mebibyte is kept for it, and what is lost then is counted.
	File string `yaml:"file"`
	// FileMaxBytes bounds the file: when it is larger it becomes FILE.1, in place of the one before.
	// Zero leaves that to others.
	FileMaxBytes int64 `yaml:"file_max_bytes"`
}

// DefaultConfig remembers 2,000 decisions and writes no file.
func DefaultConfig() Config { return Config{Size: 2000, FileMaxBytes: 256 << 20} }

// Validate reports every bad field at once.
func (c Config) Validate() error {
	if c.Size < 1 || c.Size > 1_000_000 {
		return errors.New("size: must be from 1 to 1000000")
	}
	if c.FileMaxBytes < 0 {
		return errors.New("file_max_bytes: must not be negative")
	}
	return nil
}
