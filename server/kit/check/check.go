// Package check words the errors of settings in one way: the setting, the rule, the value. Each function returns nil
// for a valid value, so that a Validate is one errors.Join of them.
package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
)

// That returns an error about the setting unless ok.
func That(ok bool, setting, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(setting+": "+format, args...)
}

// AtLeast returns an error when v is below least.
func AtLeast[T cmp.Ordered](setting string, v, least T) error {
	return That(v >= least, setting, "must be at least %v, not %v", least, v)
}

// Between returns an error when v is below least or above most.
func Between[T cmp.Ordered](setting string, v, least, most T) error {
	return That(v >= least && v <= most, setting, "must be from %v to %v, not %v", least, most, v)
}

// Positive returns an error when v is not above zero.
func Positive[T cmp.Ordered](setting string, v T) error {
	var zero T
	return That(v > zero, setting, "must be positive, not %v", v)
}

// NotEmpty returns an error when v is empty.
func NotEmpty[T ~string](setting string, v T) error {
	return That(v != "", setting, "must not be empty")
}

// OneOf returns an error when v is none of the allowed values.
func OneOf[T ~string](setting string, v T, allowed ...T) error {
	if slices.Contains(allowed, v) {
		return nil
	}
	var names []string
	for _, a := range allowed {
		names = append(names, cmp.Or(string(a), "nothing"))
	}
	return fmt.Errorf("%s: must be one of %s, not %q", setting, strings.Join(names, ", "), v)
}

// Within puts the section's name before each of the errors that err joins.
func Within(section string, err error) error {
	if err == nil {
		return nil
	}
	joined, many := err.(interface{ Unwrap() []error })
	if !many {
		return fmt.Errorf("%s.%w", section, err)
	}
	var errs []error
	for _, e := range joined.Unwrap() {
		errs = append(errs, Within(section, e))
	}
	return errors.Join(errs...)
}

// Address returns an error when v is no host:port on which a program can listen.
func Address(setting, v string) error {
	switch {
	case IsSocketPath(v):
		return That(false, setting, "must be host:port, not %q: Unix sockets are not supported", v)
	case strings.Contains(v, "://"):
		return That(false, setting, "must be host:port without a scheme, not %q", v)
	}
	_, port, err := net.SplitHostPort(v)
	if err != nil {
		return That(false, setting, "must be host:port, not %q", v)
	}
	if _, err := net.DefaultResolver.LookupPort(context.Background(), "tcp", port); err != nil {
		return That(false, setting, "must have a port from 0 to 65535, not %q", v)
	}
	return nil
}

// IsSocketPath reports whether an address names a Unix socket.
func IsSocketPath(v string) bool {
	return strings.HasPrefix(v, "unix:") || strings.HasPrefix(v, "unix-abstract:") || strings.HasPrefix(v, "/") || strings.HasPrefix(v, "./") || strings.HasPrefix(v, "@")
}
