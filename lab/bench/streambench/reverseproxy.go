package streambench

import (
	"context"
	"io"
	"net/http"
	"net/http/httputil"
	"net/http/pprof"
	"net/url"
)

// ServeReverseProxy is the main function of the yardstick's process: httputil.ReverseProxy
// as one would set it up for streams.
func ServeReverseProxy(ctx context.Context, upstream string, out io.Writer) error {
	target, err := url.Parse("http://" + upstream)
	if err != nil {
		return err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 1024
	transport.MaxIdleConns = 0
	transport.DisableCompression = true
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1,
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		// Without it the server closes the request's body at the first write of the answer, and the
		// transport, which may not have seen that body's end, now and then drops its connection.
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		proxy.ServeHTTP(w, r)
	})
	return serveLoopback(ctx, mux, out)
}
