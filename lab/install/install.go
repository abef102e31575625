// Package install gets the programs of others that measurements need: from PyPI into virtual environments, and from the
// distribution.
package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ErrAbsent marks a program that cannot be had here. The error that wraps it says why.
var ErrAbsent = errors.New("not available here")

// Venv is a virtual environment of Python; Log is the file that its installers write to.
type Venv struct{ Dir, Log string }

// Program is the path of a program of the environment.
func (v Venv) Program(name string) string { return filepath.Join(v.Dir, "bin", name) }

// Version is the version of an installed package, or "".
func (v Venv) Version(ctx context.Context, name string) string {
	out, err := exec.CommandContext(ctx, v.Program("python"), "-c", "import importlib.metadata as m; print(m.version('"+name+"'))").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// Make makes the environment with an interpreter, and installs packages.
func (v Venv) Make(ctx context.Context, interpreter string, packages ...string) error {
	for _, args := range [][]string{
		{interpreter, "-m", "venv", v.Dir},
		append([]string{v.Program("python"), "-m", "pip", "install", "--quiet"}, packages...),
	} {
		if err := Run(ctx, v.Log, args...); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrAbsent, strings.Join(packages, " "), err)
		}
	}
	return nil
}

// Python is an interpreter with venv of the first of these minor versions of Python 3 that is found.
func Python(ctx context.Context, minors ...int) (string, error) {
	for _, minor := range minors {
		names := []string{fmt.Sprintf("python3.%d", minor), "python3"}
		if found, err := filepath.Glob(filepath.Join(os.Getenv("HOME"), fmt.Sprintf(".pyenv/versions/3.%d.*/bin/python3", minor))); err == nil {
			names = append(names, found...)
		}
		for _, name := range names {
			path, err := exec.LookPath(name)
			if err != nil {
				continue
			}
			check := fmt.Sprintf("import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, %d))", minor)
			if exec.CommandContext(ctx, path, "-c", check).Run() == nil {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("%w: no Python 3 of the minor versions %v with venv was found", ErrAbsent, minors)
}

// Debian finds a program of the distribution, whose package has the same name, and installs it where that is possible.
func Debian(ctx context.Context, name string) (string, error) {
	if path, err := Find(name); err == nil {
		return path, nil
	}
	if os.Getuid() != 0 {
		return "", fmt.Errorf("%w: %s is not installed, and to install it takes root", ErrAbsent, name)
	}
	if out, err := exec.CommandContext(ctx, "apt-get", "install", "--yes", "--quiet", "--no-install-recommends", name).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: apt-get install %s: %w: %.200s", ErrAbsent, name, err, out)
	}
	return Find(name)
}

// Find finds a program on PATH or where the distribution has servers.
func Find(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin/", "/usr/local/sbin/"} {
		if _, err := os.Stat(dir + name); err == nil {
			return dir + name, nil
		}
	}
	return "", fmt.Errorf("%w: %s is not installed", ErrAbsent, name)
}

// Run runs a command and appends its output to the file log.
func Run(ctx context.Context, log string, args ...string) error {
	file, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w (see %s)", filepath.Base(args[0]), err, log)
	}
	return nil
}
