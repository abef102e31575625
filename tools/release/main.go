package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var p params
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&p.version, "version", "", "version of the release: vMAJOR.MINOR.PATCH, with or without -PRERELEASE")
	flags.StringVar(&p.repository, "repo", ".", "folder in the repository")
	flags.StringVar(&p.revision, "commit", "HEAD", "commit to build")
	flags.StringVar(&p.out, "out", "dist", "folder to write; it must be empty or missing, or hold an earlier release")
	flags.StringVar(&p.builder, "builder", localBuilder, "URI of the builder, for the provenance")
	platforms := flags.String("platforms", strings.Join(allPlatforms, ","), "platforms, separated by commas")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	var err error
	if p.out, err = filepath.Abs(p.out); err != nil {
		return err
	}
	p.platforms = strings.Split(*platforms, ",")
	commit, files, err := release(ctx, p)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s of commit %s is in %s:\n", p.version, commit, p.out)
	for _, f := range files {
		fmt.Fprintf(out, "%s  %s\n", f.sha256, f.name)
	}
	return nil
}
