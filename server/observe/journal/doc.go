// Package journal appends JSON lines to a file that may grow, be moved away or fill its disk, without making anyone wait.
package journal
