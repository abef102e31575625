package grpcapi

import (
	"net/http"
	"sync/atomic"

	"google.golang.org/genproto/googleapis/api/httpbody"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/edge/callers"
	"github.com/kvpilot/kvpilot/server/observe/audit"
)

// adapters loads and unloads LoRA adapters on every replica of a pool.
type adapters struct {
	router  answering
	calls   calls
	callers *callers.Callers
	trail   trail
	conf    *atomic.Pointer[Config]
}

func (s *adapters) LoadAdapter(in *httpbody.HttpBody, out bodies) error {
	err := s.adapter(in, out, "/v1/load_lora_adapter")
	s.trail.record(out.Context(), audit.LoadAdapter, kvpilotv1.InferenceService_LoadAdapter_FullMethodName, "", err)
	return err
}

func (s *adapters) UnloadAdapter(in *httpbody.HttpBody, out bodies) error {
	err := s.adapter(in, out, "/v1/unload_lora_adapter")
	s.trail.record(out.Context(), audit.UnloadAdapter, kvpilotv1.InferenceService_UnloadAdapter_FullMethodName, "", err)
	return err
}

// adapter answers a call that goes to every replica of a pool.
func (s *adapters) adapter(in *httpbody.HttpBody, out bodies, path string) error {
	if err := s.mayLoadAdapters(); err != nil {
		return err
	}
	call, err := s.calls.raw(out.Context(), http.MethodPost, path)
	if err != nil {
		return err
	}
	call.Body, call.ContentType = in.GetData(), in.GetContentType()
	to := sinkFor(out)
	return finish(to, s.router.Adapter(out.Context(), call, to))
}

// mayLoadAdapters rejects changes of all engines without credentials unless the operator allows them.
func (s *adapters) mayLoadAdapters() error {
	if !s.callers.Open() || s.conf.Load().OpenAdapters {
		return nil
	}
	return apierror.New(apierror.PermissionDenied, "adapters are loaded and unloaded by callers with the role admin, and this router has no credentials: set api.keys, or api.open_adapters", nil)
}
