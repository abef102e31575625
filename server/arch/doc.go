// Package arch holds no code: its tests are the rules of layout that no linter knows, checked
// on the sources themselves. A package without a row in the layer table fails.
package arch
