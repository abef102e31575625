// Package reload changes the settings of a running process: all that were asked for, or none.
//
// A Manager reads the settings, has every section check its part, compares them with those in force, and applies what
// needs no restart, section by section. When one fails, those that were applied go back. It remembers the versions that
// were in force, and can apply an earlier one. It knows nothing of what is set: the tree is a type parameter, and what its
// parts do with it is in the sections.
package reload
