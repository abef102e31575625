package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/kvpilot/kvpilot/cmd/internal/build"
)

// newVersionCommand prints the build of the program.
func newVersionCommand(out io.Writer) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version, the commit and the platform of this program",
		Example: "  kvpilot version\n  kvpilot version -o json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := knownOutput(output); err != nil {
				return err
			}
			info := build.Read()
			if output == "json" {
				encoder := json.NewEncoder(out)
				encoder.SetIndent("", "  ")
				return encoder.Encode(info)
			}
			return printVersion(out, info)
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

func printVersion(out io.Writer, info build.Info) error {
	modified := "no"
	switch {
	case info.Modified:
		modified = "yes: the sources had changes that are not in the commit"
	case info.Commit == "":
		modified = "unknown"
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	for _, row := range [][2]string{
		{"version", info.Version}, {"commit", cmp.Or(info.Commit, "unknown")}, {"date", cmp.Or(info.Date, "unknown")},
		{"modified", modified}, {"go", info.Go}, {"platform", info.Platform},
	} {
		fmt.Fprintf(table, "%s\t%s\n", row[0], row[1])
	}
	return table.Flush()
}
