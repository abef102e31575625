package streambench

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// costTable writes the results for people: one row per case, CPU / added p50.
func costTable(out io.Writer, results []CostResult) error {
	var subjects []string
	cells := map[string]map[string]string{}
	var cases []string
	for _, r := range results {
		if !slices.Contains(subjects, r.Subject) {
			subjects = append(subjects, r.Subject)
		}
		if cells[r.Case] == nil {
			cases, cells[r.Case] = append(cases, r.Case), map[string]string{}
		}
		cell := fmt.Sprintf("%.4g", r.CPU)
		if r.Peak > 0 {
			cell = fmt.Sprintf("%d, at most %d MiB after %d", r.Resident>>20, r.Peak>>20, r.Requests)
		}
		if r.P50Added != 0 {
			cell += fmt.Sprintf(" / +%.4g / %d MiB", r.P50Added, r.Resident>>20)
		}
		if r.Void > 0 {
			cell += fmt.Sprintf(" (%d of %d void)", r.Void, r.Samples)
		}
		cells[r.Case][r.Subject] = cell
	}
	var text strings.Builder
	fmt.Fprintf(&text, "CPU µs per request or chunk / added p50 µs / resident memory; of memory: resident, the most so far, and after how many requests\n\n| case | %s |\n|---|%s\n", strings.Join(subjects, " | "), strings.Repeat("---|", len(subjects)))
	for _, name := range cases {
		fmt.Fprintf(&text, "| %s |", name)
		for _, s := range subjects {
			fmt.Fprintf(&text, " %s |", cells[name][s])
		}
		text.WriteByte('\n')
	}
	_, err := io.WriteString(out, text.String())
	return err
}
