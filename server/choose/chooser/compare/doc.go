// Package compare compares the ranks' answers with the answers of their equals, and has those avoided that differ.
package compare
