package callers

import "os"

// file notices when a file on disk becomes another one. It belongs to one goroutine at a time.
type file struct {
	path string
	was  os.FileInfo // as it was read; nil when stat failed
	seen os.FileInfo // as it was at the last look
}

// read notes that the file is about to be read.
func (f *file) read() { f.was = f.look() }

// changed reports whether the file differs from the file that was read, and has been so since the last look: one that
// is being written is skipped until it stops changing. A file that is gone does not count as another one.
func (f *file) changed() bool {
	now := f.look()
	settled := same(now, f.seen)
	f.seen = now
	return now != nil && settled && !same(now, f.was)
}

func (f *file) look() os.FileInfo {
	info, err := os.Stat(f.path)
	if err != nil {
		return nil
	}
	return info
}

func same(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}
