// Package serve is the command "kvpilot serve", for the binary kvpilot and for kvpilot-bench, which measures it.
package serve
