package direct

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/test/programs"
)

// nginx starts nginx with what is shipped in deploy/nginx.
type nginx struct{}

// njsModules are the places where packages put njs.
func njsModules() []string {
	return []string{"/usr/lib/nginx/modules/ngx_http_js_module.so", "/usr/lib64/nginx/modules/ngx_http_js_module.so", "/etc/nginx/modules/ngx_http_js_module.so"}
}

func (nginx) program(t *testing.T) (name, module string) {
	t.Helper()
	name = find(t, "nginx", "apt install nginx libnginx-mod-http-js")
	for _, module := range njsModules() {
		if _, err := os.Stat(module); err == nil {
			return name, module
		}
	}
	lacking(t, "nginx has no njs (Debian: apt install libnginx-mod-http-js)")
	return "", ""
}

func (p nginx) start(t *testing.T, o proxyOptions, routers ...string) string {
	t.Helper()
	name, module := p.program(t)
	address, dir := programs.FreeAddress(t), t.TempDir()
	text, err := os.ReadFile(filepath.Join(deployed(t, "nginx"), "kvpilot.conf"))
	if err != nil {
		t.Fatal(err)
	}
	// What an installation changes: where things are, the certificate, the key.
	var servers strings.Builder
	for _, router := range routers {
		fmt.Fprintf(&servers, "server %s max_fails=0;\n", router)
	}
	listen := "listen " + address + ";"
	if o.cert != "" {
		listen = fmt.Sprintf("listen %s ssl http2; ssl_certificate %s; ssl_certificate_key %s;", address, o.cert, o.certKey)
	}
	conf := replaced(t, string(text), "server 127.0.0.1:8080 max_fails=0;", servers.String())
	conf = replaced(t, conf, "listen 8000;", listen)
	conf = replaced(t, conf, "/etc/nginx/conf.d/kvpilot.js", filepath.Join(deployed(t, "nginx"), "kvpilot.js"))
	if o.through {
		conf = replaced(t, conf, "|completions|", "|")
	}
	if o.key != "" {
		conf = replaced(t, conf, `default "";`, fmt.Sprintf(`default "Bearer %s";`, o.key))
	}
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		conf += fmt.Sprintf("%s_temp_path %s;\n", kind, filepath.Join(dir, kind))
	}
	main := filepath.Join(dir, "nginx.conf")
	text = fmt.Appendf(nil, "load_module %s;\ndaemon off;\nmaster_process off;\npid %s/pid;\nerror_log stderr warn;\nevents {}\nhttp {\naccess_log off;\n%s}\n", module, dir, conf)
	if err := os.WriteFile(main, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return launch(t, exec.CommandContext(t.Context(), name, "-p", dir, "-e", "stderr", "-c", main), address)
}

func TestNginx(t *testing.T) {
	nginx{}.program(t)
	testProxy(t, nginx{})
}
