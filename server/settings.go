package server

import (
	"context"
	"crypto/sha256"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/reload"
	"github.com/kvpilot/kvpilot/server/observe/audit"
)

// lookEvery is the time between looks at the settings file and the files that it names: a change is applied when two consecutive looks
// see the same, so after two to four seconds.
const lookEvery = 2 * time.Second

// environment has the variables that settings name; nil without a source of settings.
func (p Params) environment() registry.Environment {
	if p.Source == nil {
		return nil
	}
	return p.Source
}

// newSettings makes the keeper of the settings.
func (s *Server) newSettings(c config.Config) *reload.Manager[config.Config] {
	return reload.New(reload.Loaded[config.Config]{Config: c, Text: s.params.Text}, reload.Params[config.Config]{
		Source: source{s.params.Source}, Sections: s.sections(), Keep: c.Reload.Versions, Scope: s.parts.part("settings"),
	})
}

// source reads and compares settings.
type source struct{ *config.Source }

func (s source) Load() (reload.Loaded[config.Config], error) { return config.Read(*s.Source) }
func (source) Files(c config.Config) map[string]string       { return config.NamedFiles(c) }
func (source) Diff(now, next config.Config) []reload.Change  { return config.Diff(now, next) }
func (source) Merge(now, next config.Config) config.Config   { return config.Merge(now, next) }
func (source) Hash(c config.Config) string                   { return config.Hash(c) }

// changeable has the settings that the admin RPCs change; nil where there is nothing to read again.
func (s *Server) changeable() grpcapi.Settings {
	if s.params.Source == nil || s.settings == nil {
		return nil
	}
	return s.settings
}

// followSettings reloads when the process is asked to by a signal, and when files change, until ctx ends.
func (s *Server) followSettings(ctx context.Context) error {
	reloadFor := func(origin reload.Origin) error {
		_, err := s.settings.Reload(ctx, reload.Request{Origin: origin}) // the manager logs and counts the result
		e := audit.Event{Kind: audit.Settings, Outcome: audit.OK, Method: string(origin)}
		if err != nil {
			e.Outcome, e.Detail = "refused", err.Error()
		}
		s.surfaces.audit.Write(e)
		return err
	}
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		if s.settings.Config().Reload.Watch {
			reload.Watch(ctx, lookEvery, seen(s.params.Text, config.NamedFiles(s.config)), s.lookAtFiles, func() {
				_ = reloadFor(reload.OriginFile) // a changed file is read without a question: the log has the answer
			})
		}
	}()
	for {
		select {
		case <-ctx.Done():
			<-watching
			return nil
		case <-s.params.Hangup:
			if s.params.Manager == nil {
				_ = reloadFor(reload.OriginSignal)
				continue
			}
			s.params.Manager.Reloading()
			s.params.Manager.Reloaded(reloadFor(reload.OriginSignal))
		}
	}
}

// lookAtFiles digests the settings file and the files that the current settings name.
func (s *Server) lookAtFiles() string {
	var text []byte
	if file := s.params.Source.File; file != "" {
		var err error
		if text, err = os.ReadFile(file); err != nil {
			text = []byte("unreadable: " + err.Error()) // a reload then says so, once
		}
	}
	return seen(text, config.NamedFiles(s.settings.Config()))
}

// seen digests the text of the settings file and the digests of others.
func seen(text []byte, files map[string]string) string {
	sum := sha256.New()
	sum.Write(text)
	for _, path := range slices.Sorted(maps.Keys(files)) {
		sum.Write([]byte("\x00" + path + "\x00" + files[path]))
	}
	return string(sum.Sum(nil))
}
