{{- /*
The settings on which the probes depend, as the router will have them: from config, and from env, which counts more. Include it as JSON:
tls (the admin address uses TLS), credentials (callers need some), keyed (so does health), certificate (each client needs one).
*/ -}}
{{- define "kvpilot.health" -}}
{{- $listen := get .Values.config "listen" | default dict -}}
{{- $api := get .Values.config "api" | default dict -}}
{{- $admin := get .Values.config "admin" | default dict -}}
{{- $jwt := get $api "jwt" | default dict -}}
{{- $tls := get $listen "admin_tls" | toString -}}
{{- $auth := get $listen "admin_client_auth" | toString -}}
{{- $keyed := get $admin "keyed_health" | toString -}}
{{- $keysFile := or .Values.keys.secret (get $api "keys_file") -}}
{{- $issuer := get $jwt "issuer" -}}
{{- range $variable := .Values.env -}}
{{- $name := get $variable "name" -}}
{{- $value := get $variable "value" | toString -}}
{{- if has $name (list "KVPILOT_LISTEN_HTTP" "KVPILOT_LISTEN_GRPC" "KVPILOT_LISTEN_ADMIN" "KVPILOT_LISTEN_DRAIN_DELAY" "KVPILOT_LISTEN_DRAIN_TIMEOUT" "KVPILOT_EPP_LISTEN" "KVPILOT_EPP_HEALTH") -}}
{{- fail (printf "env: %s is set by the chart: remove it" $name) -}}
{{- end -}}
{{- if and (hasKey $variable "valueFrom") (has $name (list "KVPILOT_LISTEN_ADMIN_TLS" "KVPILOT_LISTEN_ADMIN_CLIENT_AUTH" "KVPILOT_ADMIN_KEYED_HEALTH")) -}}
{{- fail (printf "env: %s must have a value, not valueFrom: the pods' probes depend on it" $name) -}}
{{- end -}}
{{- if eq $name "KVPILOT_LISTEN_ADMIN_TLS" -}}{{- $tls = $value -}}{{- end -}}
{{- if eq $name "KVPILOT_LISTEN_ADMIN_CLIENT_AUTH" -}}{{- $auth = $value -}}{{- end -}}
{{- if eq $name "KVPILOT_ADMIN_KEYED_HEALTH" -}}{{- $keyed = $value -}}{{- end -}}
{{- if eq $name "KVPILOT_API_KEYS_FILE" -}}{{- $keysFile = or $value (hasKey $variable "valueFrom") -}}{{- end -}}
{{- if eq $name "KVPILOT_API_JWT_ISSUER" -}}{{- $issuer = or $value (hasKey $variable "valueFrom") -}}{{- end -}}
{{- end -}}
{{- range $argument := .Values.extraArgs -}}
{{- if regexMatch "^--(config|http|grpc|admin)(=|$)|(^|=)(listen\\.(http|grpc|admin|drain)|admin\\.keyed_health|api\\.|epp\\.(listen|health))" $argument -}}
{{- fail (printf "extraArgs: %s: the chart depends on it, use config" $argument) -}}
{{- end -}}
{{- end -}}
{{- $yes := list "true" "True" "TRUE" "t" "T" "1" -}}
{{- $credentials := or (get $api "keys") $keysFile $issuer (get $api "certificates") -}}
{{- $uses := has $tls $yes -}}
{{- dict "tls" $uses "credentials" (not (not $credentials)) "keyed" (and (has $keyed $yes) (not (not $credentials))) "certificate" (and $uses (eq $auth "required")) | toJson -}}
{{- end -}}

{{- /* Whether the admin address uses TLS. */ -}}
{{- define "kvpilot.adminTLS" -}}
{{- if get (include "kvpilot.health" . | fromJson) "tls" -}}true{{- end -}}
{{- end -}}

{{- /*
Who asks for the router's health: nothing for the kubelet, which has neither a key nor a certificate, or "command" for kvpilot health in the
container, which has both. The health port of the endpoint picker needs neither.
*/ -}}
{{- define "kvpilot.probedBy" -}}
{{- $health := include "kvpilot.health" . | fromJson -}}
{{- $probes := .Values.probes -}}
{{- if not (include "kvpilot.picks" .) -}}
{{- if and (get $health "certificate") (not $probes.certificate.secret) -}}
{{- fail "config.listen.admin_client_auth is required, and probes have no certificate: set probes.certificate.secret to a Secret of the type kubernetes.io/tls with one that config.listen.client_ca accepts" -}}
{{- end -}}
{{- if and (get $health "keyed") (not $probes.key.secret) (not (and (get $health "tls") $probes.certificate.secret)) -}}
{{- fail "config.admin.keyed_health is true, and probes have no key: set probes.key.secret to a Secret with a key of the role observe" -}}
{{- end -}}
{{- if or (get $health "keyed") (get $health "certificate") -}}command{{- end -}}
{{- end -}}
{{- end -}}

{{- /* One probe: include "kvpilot.probe" (list . "readiness"). The values are its times. */ -}}
{{- define "kvpilot.probe" -}}
{{- $root := index . 0 -}}
{{- $kind := index . 1 -}}
{{- $tls := include "kvpilot.adminTLS" $root -}}
{{- if include "kvpilot.picks" $root -}}
grpc:
  port: 9003
  service: {{ if eq $kind "readiness" }}readiness{{ else }}liveness{{ end }}
{{- else if include "kvpilot.probedBy" $root -}}
exec:
  command:
    - /kvpilot
    - health
    - --address=127.0.0.1:9091
    {{- if ne $kind "readiness" }}
    - --live
    {{- end }}
    {{- if $tls }}
    - --tls
    {{- end }}
    {{- if $root.Values.probes.key.secret }}
    - --key-file=/etc/kvpilot-probe-key/{{ $root.Values.probes.key.key }}
    {{- end }}
    {{- if and $tls $root.Values.probes.certificate.secret }}
    - --cert=/etc/kvpilot-probe-certificate/tls.crt
    - --cert-key=/etc/kvpilot-probe-certificate/tls.key
    {{- end }}
{{- else -}}
httpGet:
  path: {{ if eq $kind "readiness" }}/readyz{{ else }}/livez{{ end }}
  port: admin
  {{- if $tls }}
  scheme: HTTPS
  {{- end }}
{{- end }}
{{ toYaml (get $root.Values.probes $kind) }}
{{- end -}}
