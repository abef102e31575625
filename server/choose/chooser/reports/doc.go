// Package reports has the report of an engine about one of its ranks, as far as choices read it.
package reports
