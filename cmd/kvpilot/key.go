package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/kvpilot/kvpilot/server/edge/callers"
)

// newKeyCommand makes API keys.
func newKeyCommand(out io.Writer) *cobra.Command {
	cmd := &cobra.Command{Use: "key", Short: "Make API keys"}
	var tenant, roles, name, expires string
	fresh := &cobra.Command{
		Use:   "new",
		Short: "Print a new API key and its line for the keys file",
		Long: "Print a new API key, and the line that admits it in the router's keys file (api.keys_file).\n\n" +
			"The line has the SHA-256 of the key, which cannot be used as a key. The key itself is not stored: give it to the caller.",
		Example: "  kvpilot key new --tenant team-a\n  kvpilot key new --tenant ops --roles admin --name ci --expires 2027-01-31",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			key, hashed := callers.NewKey()
			line, err := callers.FormatLine(tenant, hashed, roles, name, expires)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(out, "key:  %s\nline: %s\n", key, line)
			return err
		},
	}
	flags := fresh.Flags()
	flags.StringVar(&tenant, "tenant", "", "tenant of the requests with this key")
	flags.StringVar(&roles, "roles", "", "roles, separated by commas: infer, route, observe, admin, forward, gateway, steer (default infer,route)")
	flags.StringVar(&name, "name", "", "holder of the key within the tenant, for the audit log")
	flags.StringVar(&expires, "expires", "", "date (2027-01-31, UTC) or time (2027-01-31T12:00:00Z) from which the key is rejected (default never)")
	if err := fresh.MarkFlagRequired("tenant"); err != nil {
		panic(err) // the flag is declared above
	}
	cmd.AddCommand(fresh)
	return cmd
}
