//go:build !unix

package upstream

// read reads once into the empty buffer.
func (a *leanBody) read() (int, error) { return a.conn.stream.Read(a.room()) }
