// Package reload changes the settings of a running process: all that were asked for, or none.
//
// A Manager reads the settings, has every section check its part, compares them with the current ones, and applies the changes that need
// no restart, section by section. When one fails, the applied ones go back. It remembers the versions that were in force, and can apply
// an earlier one. It knows nothing of the settings: the tree is a type parameter, and its use is in the sections.
package reload
