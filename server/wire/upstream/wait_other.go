//go:build !unix

package upstream

// read reads once into the empty buffer.
func (a *leanAnswer) read() (int, error) { return a.conn.stream.Read(a.room()) }
