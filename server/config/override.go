package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/quantity"
)

const envPrefix = "KVPILOT_"

// serviceLink matches the variables that Kubernetes injects for Services called kvpilot or kvpilot-SOMETHING:
// KVPILOT_SERVICE_HOST, KVPILOT_ADMIN_SERVICE_PORT_HTTP, KVPILOT_PORT=tcp://…, KVPILOT_ADMIN_PORT_9091_TCP_ADDR.
var serviceLink = regexp.MustCompile(`^KVPILOT_([A-Z0-9_]+_)?(SERVICE_HOST=|SERVICE_PORT(_[A-Z0-9_]+)?=|PORT=(tcp|udp|sctp)://|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=)`)

// noSetting reports variables that the commands read: KVPILOT_CONFIG names the settings file, the others are for clients.
func noSetting(name string) bool {
	return name == "KVPILOT_CONFIG" || name == "KVPILOT_ADDRESS" || name == "KVPILOT_KEY"
}

// applyEnv overrides c from the environment. Variables with our prefix that name no setting are
// errors, except the variables that Kubernetes makes for a Service of our name.
func applyEnv(c *Config, env []string) error {
	byName := map[string]field{}
	for _, f := range fields(reflect.ValueOf(c).Elem(), nil) {
		byName[f.env()] = f
	}
	var errs []error
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, envPrefix) {
			continue
		}
		f, known := byName[name]
		switch {
		case known:
			if err := f.set(value); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		case serviceLink.MatchString(entry), noSetting(name):
		default:
			errs = append(errs, variables().unknown(name))
		}
	}
	return errors.Join(errs...)
}

// applySet overrides c from "path.to.key=value" flags.
func applySet(c *Config, flags []string) error {
	byPath := map[string]field{}
	for _, f := range fields(reflect.ValueOf(c).Elem(), nil) {
		byPath[f.path()] = f
	}
	var errs []error
	for _, flag := range flags {
		path, value, found := strings.Cut(flag, "=")
		f, known := byPath[path]
		switch {
		case !found:
			errs = append(errs, fmt.Errorf("--set %s: must have the form key=value", flag))
		case !known:
			errs = append(errs, fmt.Errorf("--set %w", paths().unknown(path)))
		default:
			if err := f.set(value); err != nil {
				errs = append(errs, fmt.Errorf("--set %s: %w", path, err))
			}
		}
	}
	return errors.Join(errs...)
}

// field is one setting that holds a single value or a list of strings.
type field struct {
	names []string
	value reflect.Value
}

func (f field) path() string { return strings.Join(f.names, ".") }

func (f field) env() string { return envPrefix + strings.ToUpper(strings.Join(f.names, "_")) }

// fields lists the settings below v: structs are walked, maps and lists of structs are left to the file.
func fields(v reflect.Value, names []string) []field {
	var list []field
	for _, setting := range settingsOf(v.Type()) {
		at := append(slices.Clone(names), tagOf(setting))
		f := v.FieldByIndex(setting.Index)
		switch {
		case scalar(f):
			list = append(list, field{names: at, value: f})
		case f.Kind() == reflect.Struct:
			list = append(list, fields(f, at)...)
		}
	}
	return list
}

// Paths lists every setting that a variable or flag can override, in order.
func Paths() []string {
	var list []string
	eachPath(reflect.TypeFor[Config](), "", func(path, kind string) {
		if kind == "" {
			list = append(list, path)
		}
	})
	slices.Sort(list)
	return list
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	bytesType    = reflect.TypeFor[quantity.Bytes]()
)

func scalar(v reflect.Value) bool {
	if v.CanAddr() {
		if _, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
			return true
		}
	}
	switch v.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int64, reflect.Uint64, reflect.Uint32, reflect.Int32, reflect.Float64, reflect.String:
		return true
	case reflect.Slice:
		return v.Type().Elem().Kind() == reflect.String
	}
	return false
}

func (f field) set(text string) error {
	v := f.value
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	if v.Type() == durationType {
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("must be a duration such as 500ms, 30s or 5m, not %q", text)
		}
		v.SetInt(int64(d))
		return nil
	}
	switch v.Kind() {
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("must be true or false, not %q", text)
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int64, reflect.Int32:
		n, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil {
			bits := v.Type().Bits()
			return fmt.Errorf("must be an integer from %d to %d, not %q", int64(-1)<<(bits-1), int64(1)<<(bits-1)-1, text)
		}
		v.SetInt(n)
	case reflect.Uint64, reflect.Uint32:
		n, err := strconv.ParseUint(text, 10, v.Type().Bits())
		if err != nil {
			return fmt.Errorf("must be an integer from 0 to %d, not %q", uint64(1)<<v.Type().Bits()-1, text)
		}
		v.SetUint(n)
	case reflect.Float64:
		x, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("must be a number, not %q", text)
		}
		v.SetFloat(x)
	case reflect.String:
		v.SetString(text)
	case reflect.Slice:
		setStrings(v, text)
	}
	return nil
}

// setStrings splits text at commas; an empty text is the empty list.
func setStrings(v reflect.Value, text string) {
	list := reflect.MakeSlice(v.Type(), 0, 4)
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			list = reflect.Append(list, reflect.ValueOf(part).Convert(v.Type().Elem()))
		}
	}
	v.Set(list)
}
