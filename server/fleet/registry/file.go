package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/goccy/go-yaml"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/sleep"
	"github.com/kvpilot/kvpilot/server/kit/suggest"
)

const (
	maxFile     = 16 << 20
	fileSettle  = 50 * time.Millisecond // writers need several steps to replace a file
	fileRecheck = 15 * time.Second      // in case the file system gives no notice
)

// fileSource is a file with a list of replicas.
type fileSource struct {
	in   *intake
	name string
}

// watch keeps the replicas of a file up to date. It watches the folder, because editors and
// Kubernetes replace files and links rather than write to them. A file that is missing, empty or
// wrong leaves the replicas as they are; at start that is an error.
func (f *fileSource) watch(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", f.name, err)
	}
	defer func() { _ = watcher.Close() }()
	if err := watcher.Add(filepath.Dir(f.name)); err != nil {
		return fmt.Errorf("watch %s: %w", f.name, err)
	}
	last, err := f.load(ctx, nil)
	if err != nil {
		return err
	}
	recheck := time.NewTicker(fileRecheck)
	defer recheck.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-watcher.Events:
		case <-watcher.Errors:
		case <-recheck.C:
		}
		if !sleep.For(ctx, fileSettle) {
			return nil
		}
		drain(watcher.Events)
		text, err := f.load(ctx, last)
		if err != nil {
			f.in.metrics.sourceFailed(ctx, sourceFile)
			f.in.log.Error("replica file rejected, the old replicas are kept", "error", err)
		}
		last = text
	}
}

func drain(events <-chan fsnotify.Event) {
	for {
		select {
		case <-events:
		default:
			return
		}
	}
}

// load reads the file and offers its replicas unless the text is unchanged. It returns the
// text that it read.
func (f *fileSource) load(ctx context.Context, last []byte) ([]byte, error) {
	file, err := os.Open(f.name)
	if err != nil {
		return nil, fmt.Errorf("replica file: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("replica file %s: %w", f.name, err)
	}
	if last != nil && bytes.Equal(text, last) {
		return text, nil
	}
	specs, err := f.parse(text)
	if err != nil {
		return text, fmt.Errorf("replica file %s: %w", f.name, err)
	}
	f.in.offer(sourceFile, specs)
	f.in.log.InfoContext(ctx, "replica file applied", "file", f.name, "replicas", len(specs))
	return text, nil
}

// examine implements source.
func (f *fileSource) examine(_ context.Context, setting string) []SourceExamination {
	text, err := os.ReadFile(f.name)
	var specs []Spec
	if err == nil {
		specs, err = f.parse(text)
	}
	return []SourceExamination{{Setting: setting, What: f.name, Replicas: len(specs), Err: err}}
}

// errNoList is the error of a file that is being written.
var errNoList = errors.New(`the list "replicas" is missing; write "replicas: []" for a fleet without replicas`)

// fileError is the error of a text that is no list of replicas: line, column and the fault, without the text, which may hold keys.
func fileError(err error) error {
	text := yaml.FormatError(err, false, false)
	if unknown, ok := errors.AsType[*yaml.UnknownFieldError](err); ok {
		text += suggest.Question(suggest.Near(unknown.Token.Value, append(keysOf(reflect.TypeFor[Spec]()), "replicas")))
	}
	return errors.New(text)
}

// keysOf lists the keys that a struct and the structs in it have in a file.
func keysOf(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		f := t.Field(i)
		key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if key == "" {
			continue
		}
		if keys = append(keys, key); f.Type.Kind() == reflect.Struct {
			keys = append(keys, keysOf(f.Type)...)
		}
	}
	return keys
}

func (f *fileSource) parse(text []byte) ([]Spec, error) {
	if len(text) > maxFile {
		return nil, fmt.Errorf("above %d bytes", maxFile)
	}
	var listed struct {
		Replicas *[]Spec `yaml:"replicas"`
	}
	if err := yaml.UnmarshalWithOptions(text, &listed, yaml.Strict()); err != nil && !errors.Is(err, io.EOF) {
		return nil, fileError(err)
	}
	if listed.Replicas == nil {
		return nil, errNoList
	}
	var errs []error
	seen := map[replica.ID]bool{}
	specs := make([]Spec, 0, len(*listed.Replicas))
	for i, s := range *listed.Replicas {
		s, err := f.in.settings.complete(s)
		if err == nil && seen[s.ID] {
			err = fmt.Errorf("duplicate id %q", s.ID)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("replicas[%d]: %w", i, err))
			continue
		}
		seen[s.ID] = true
		specs = append(specs, s)
	}
	return specs, errors.Join(errs...)
}
