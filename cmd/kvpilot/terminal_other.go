//go:build !unix

package main

import "io"

// terminal does not know the size of terminals here.
func terminal(io.Writer) (width, height int) { return 0, 0 }
