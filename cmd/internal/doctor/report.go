package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Report is all results, in the form of --output json.
type Report struct {
	OK      bool     `json:"ok"`
	Version string   `json:"version"`
	Checks  []Result `json:"checks"`
}

// WriteJSON writes the report as one JSON object.
func (r Report) WriteJSON(to io.Writer) error {
	encoder := json.NewEncoder(to)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(r)
}

// WriteTable writes a line for each check, and below them the failures and possible improvements.
func (r Report) WriteTable(to io.Writer) error {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "CHECK\tRESULT\tSEEN")
	count := map[Status]int{}
	for _, c := range r.Checks {
		count[c.Status]++
		fmt.Fprintf(table, "%s\t%s\t%s\n", c.Check, c.Status, clean(c.summary(), 110))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, level := range []Status{Fail, Warn} {
		for _, c := range r.Checks {
			for _, f := range together(c.Findings, level) {
				f.write(to, c.Check)
			}
		}
	}
	_, err := fmt.Fprintf(to, "\n%d checks: %d ok, %d failed, %d with warnings, %d not tested\n", len(r.Checks), count[OK], count[Fail], count[Warn], count[Skip])
	return err
}

// together are the findings of a status; findings that differ in their subject alone are one.
func together(list []Finding, level Status) (joined []Finding) {
	subjects := map[Finding][]string{}
	for _, f := range list {
		if f.Status != level {
			continue
		}
		key := f
		key.Subject = ""
		if subjects[key] == nil {
			joined = append(joined, key)
		}
		subjects[key] = append(subjects[key], f.Subject)
	}
	for i, f := range joined {
		joined[i].Subject = few(subjects[f])
	}
	return joined
}

func (f Finding) write(to io.Writer, check string) {
	fmt.Fprintf(to, "\n%s\n", strings.TrimRight(fmt.Sprintf("%s: %s %s", strings.ToUpper(string(f.Status)), check, clean(f.Subject, 200)), " "))
	for _, line := range [][2]string{{"expected", f.Expected}, {"seen", f.Seen}, {"change", f.Change}} {
		if line[1] != "" {
			fmt.Fprintf(to, "  %-9s %s\n", line[0], clean(line[1], 2000))
		}
	}
}

// summary is the common part of the worst findings, in one line.
func (r Result) summary() string {
	var worst []Finding
	for _, f := range r.Findings {
		if f.Status == r.Status {
			worst = append(worst, f)
		}
	}
	if len(worst) == 0 {
		return "nothing to test"
	}
	seen := worst[0].Seen
	same := true
	var subjects []string
	for _, f := range worst {
		same = same && f.Seen == seen
		subjects = append(subjects, f.Subject)
	}
	switch {
	case len(worst) == 1 && worst[0].Subject == "":
		return seen
	case len(worst) > 3:
		subjects = append(subjects[:2], fmt.Sprintf("%d more", len(worst)-2))
	}
	if same {
		return strings.Join(subjects, ", ") + ": " + seen
	}
	return fmt.Sprintf("%s: %s%s", cmp.Or(worst[0].Subject, "router"), seen, more(len(worst)-1))
}

func more(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (and %d more)", n)
}

// clean makes a text of one line that is safe for a terminal.
func clean(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}
