//go:build !unix

package upstream

// read reads once into the empty buffer.
func (a *responseBody) read() (int, error) { return a.conn.stream.Read(a.room()) }
