package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// source is a commit in a folder of its own: uncommitted files have no part in a release.
type source struct {
	folder, commit string
	date           time.Time // of the commit
}

// checkout writes the files of the commit into folder. A tag with the release's name must be at that commit.
func checkout(ctx context.Context, p params, folder string) (source, error) {
	commit, err := git(ctx, p.repository, "rev-parse", "--verify", p.revision+"^{commit}")
	if err != nil {
		return source{}, err
	}
	if tagged, err := git(ctx, p.repository, "rev-parse", "--verify", "--quiet", "refs/tags/"+p.version+"^{commit}"); err == nil && tagged != commit {
		return source{}, fmt.Errorf("the tag %s is at commit %s, not at %s: name another version or -commit %s", p.version, tagged, commit, p.version)
	}
	seconds, err := git(ctx, p.repository, "show", "--no-patch", "--format=%cI", commit)
	if err != nil {
		return source{}, err
	}
	date, err := time.Parse(time.RFC3339, seconds)
	if err != nil {
		return source{}, err
	}
	root, err := git(ctx, p.repository, "rev-parse", "--show-toplevel")
	if err != nil {
		return source{}, err
	}
	archive, err := output(exec.CommandContext(ctx, "git", "-C", root, "-c", "core.autocrlf=false", "archive", "--format=tar", commit))
	if err != nil {
		return source{}, err
	}
	return source{folder, commit, date.UTC()}, unpack(tar.NewReader(bytes.NewReader(archive)), folder)
}

func git(ctx context.Context, folder string, args ...string) (string, error) {
	said, err := output(exec.CommandContext(ctx, "git", append([]string{"-C", folder}, args...)...))
	return strings.TrimSpace(string(said)), err
}

// output runs a command; its error has the command's output.
func output(command *exec.Cmd) ([]byte, error) {
	said, err := command.Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(command.Args, " "), err, exit.Stderr)
	}
	return said, err
}

// unpack writes the entries of an archive below folder, which must not exist. Names that lead out of it are errors.
func unpack(archive *tar.Reader, folder string) error {
	if err := os.Mkdir(folder, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer root.Close()
	for {
		entry, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case entry.Typeflag == tar.TypeDir:
			err = root.MkdirAll(filepath.Clean(entry.Name), 0o755)
		case entry.Typeflag == tar.TypeSymlink:
			err = root.Symlink(entry.Linkname, filepath.Clean(entry.Name))
		case entry.Typeflag == tar.TypeReg:
			err = unpackFile(root, entry, archive)
		}
		if err != nil {
			return err
		}
	}
}

func unpackFile(root *os.Root, entry *tar.Header, from io.Reader) error {
	if err := root.MkdirAll(filepath.Dir(entry.Name), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(entry.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, entry.FileInfo().Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}
