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
		Short: "Print a new API key, and the line that lets it in",
		Long: "Print a new API key, and the line for the router's keys file (api.keys_file) that lets it in.\n\n" +
			"The line holds the key's SHA-256, so that the file opens nothing. The key itself is kept nowhere: give it to the caller.",
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
	flags.StringVar(&tenant, "tenant", "", "the tenant that requests with the key count for")
	flags.StringVar(&roles, "roles", "", "infer, route, observe, admin, forward, gateway, separated by commas (default infer,route)")
	flags.StringVar(&name, "name", "", "the key's holder within the tenant, for the audit log")
	flags.StringVar(&expires, "expires", "", "the day (2027-01-31, UTC) or the moment from which the key is refused (default never)")
	if err := fresh.MarkFlagRequired("tenant"); err != nil {
		panic(err) // the flag is declared above
	}
	cmd.AddCommand(fresh)
	return cmd
}
