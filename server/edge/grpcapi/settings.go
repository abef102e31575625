package grpcapi

import (
	"context"
	"errors"

	"google.golang.org/protobuf/types/known/timestamppb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/kit/reload"
	"github.com/kvpilot/kvpilot/server/observe/audit"
)

// Settings changes the settings of the running router; *reload.Manager does.
type Settings interface {
	Reload(ctx context.Context, ask reload.Request) (reload.Result, error)
	Rollback(ctx context.Context, version uint64, ask reload.Request) (reload.Result, error)
	Versions() []reload.Version
}

// SettingsOwner has the router's settings once it runs.
type SettingsOwner interface {
	// Settings returns nil where the settings cannot be changed.
	Settings() Settings
}

// settings is ConfigService: it applies changed settings.
type settings struct {
	kvpilotv1.UnimplementedConfigServiceServer
	owner   SettingsOwner
	senders *senders
	trail   trail
}

// manager returns the router's settings, or an error where they cannot be changed.
func (s *settings) manager() (Settings, error) {
	if changeable := s.owner.Settings(); changeable != nil {
		return changeable, nil
	}
	return nil, apierror.New(apierror.NotSupported, "the settings of this router cannot be changed while it runs", nil)
}

func (s *settings) ReloadConfig(ctx context.Context, in *kvpilotv1.ReloadConfigRequest) (*kvpilotv1.ReloadConfigResponse, error) {
	manager, err := s.manager()
	if err != nil {
		return nil, err
	}
	result, err := manager.Reload(ctx, reload.Request{Origin: reload.OriginCall, Who: s.senders.name(ctx), DryRun: in.GetDryRun()})
	if !in.GetDryRun() {
		s.trail.record(ctx, audit.Settings, kvpilotv1.ConfigService_ReloadConfig_FullMethodName, "", err)
	}
	if err != nil {
		return nil, reloadError(err)
	}
	return &kvpilotv1.ReloadConfigResponse{Version: versionProto(result.Version, true), Changes: changesProto(result.Changes), Unchanged: result.Unchanged}, nil
}

func (s *settings) RollbackConfig(ctx context.Context, in *kvpilotv1.RollbackConfigRequest) (*kvpilotv1.RollbackConfigResponse, error) {
	manager, err := s.manager()
	if err != nil {
		return nil, err
	}
	result, err := manager.Rollback(ctx, in.GetVersion(), reload.Request{Who: s.senders.name(ctx), DryRun: in.GetDryRun()})
	if !in.GetDryRun() {
		s.trail.record(ctx, audit.Settings, kvpilotv1.ConfigService_RollbackConfig_FullMethodName, "", err)
	}
	if err != nil {
		return nil, reloadError(err)
	}
	return &kvpilotv1.RollbackConfigResponse{Version: versionProto(result.Version, true), Changes: changesProto(result.Changes), Unchanged: result.Unchanged}, nil
}

func (s *settings) ListConfigVersions(context.Context, *kvpilotv1.ListConfigVersionsRequest) (*kvpilotv1.ListConfigVersionsResponse, error) {
	manager, err := s.manager()
	if err != nil {
		return nil, err
	}
	out := &kvpilotv1.ListConfigVersionsResponse{}
	for i, v := range manager.Versions() {
		out.Versions = append(out.Versions, versionProto(v, i == 0))
	}
	return out, nil
}

// reloadError is the public form. Settings are named in it, and values as the operator wrote them, but no secrets.
func reloadError(err error) error {
	var refused *reload.Refused
	switch {
	case errors.As(err, &refused):
		return apierror.New(apierror.InvalidBody, err.Error(), err)
	case errors.Is(err, reload.ErrNoVersion):
		return apierror.New(apierror.VersionNotFound, err.Error(), err, apierror.WithParam("version"))
	case errors.Is(err, reload.ErrClosed):
		return apierror.New(apierror.ShuttingDown, "the router is stopping", err)
	}
	return apierror.New(apierror.Internal, err.Error(), err)
}

func versionProto(v reload.Version, current bool) *kvpilotv1.ConfigVersion {
	return &kvpilotv1.ConfigVersion{
		Version: v.Number, Time: timestamppb.New(v.Time), Origin: originProto(v.Origin), Who: v.Who, Hash: v.Hash,
		Changes: changesProto(v.Changes), Current: current, RollbackOf: v.RollbackOf,
	}
}

func changesProto(list []reload.Change) []*kvpilotv1.ConfigChange {
	var out []*kvpilotv1.ConfigChange
	for _, c := range list {
		out = append(out, &kvpilotv1.ConfigChange{Path: c.Path, Old: c.Old, New: c.New, NeedsRestart: c.Restart})
	}
	return out
}

func originProto(o reload.Origin) kvpilotv1.ConfigOrigin {
	switch o {
	case reload.OriginStart:
		return kvpilotv1.ConfigOrigin_CONFIG_ORIGIN_START
	case reload.OriginFile:
		return kvpilotv1.ConfigOrigin_CONFIG_ORIGIN_FILE
	case reload.OriginSignal:
		return kvpilotv1.ConfigOrigin_CONFIG_ORIGIN_SIGNAL
	case reload.OriginCall:
		return kvpilotv1.ConfigOrigin_CONFIG_ORIGIN_CALL
	case reload.OriginRollback:
		return kvpilotv1.ConfigOrigin_CONFIG_ORIGIN_ROLLBACK
	}
	return kvpilotv1.ConfigOrigin_CONFIG_ORIGIN_UNSPECIFIED
}
