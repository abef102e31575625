{{- define "kvpilot.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kvpilot.account" -}}
{{- .Values.serviceAccount.name | default (include "kvpilot.name" .) -}}
{{- end -}}

{{- define "kvpilot.selector" -}}
app.kubernetes.io/name: kvpilot
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kvpilot.labels" -}}
{{ include "kvpilot.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "kvpilot.config" -}}
{{ toYaml .Values.config }}
listen:
  http: ":8080"
  grpc: ":9090"
  admin: ":9091"
  drain_delay: {{ printf "%ds" (int .Values.drain.delaySeconds) }}
  drain_timeout: {{ printf "%ds" (int .Values.drain.timeoutSeconds) }}
{{- end -}}

{{- /* The Secrets that are mounted, by the name of their volume. */ -}}
{{- define "kvpilot.mounts" -}}
{{- with .Values.keys.secret }}
keys: {{ . }}
{{- end }}
{{- with .Values.tls.secret }}
tls: {{ . }}
{{- end }}
{{- with .Values.engines.key.secret }}
engine-key: {{ . }}
{{- end }}
{{- with .Values.engines.tls.secret }}
engine-tls: {{ . }}
{{- end }}
{{- end -}}

{{- /* The settings that name files of the Secrets. */ -}}
{{- define "kvpilot.secrets" -}}
{{- if .Values.keys.secret }}
- name: KVPILOT_API_KEYS_FILE
  value: /etc/kvpilot-keys/{{ .Values.keys.key }}
{{- end }}
{{- if .Values.tls.secret }}
- name: KVPILOT_LISTEN_TLS_CERT
  value: /etc/kvpilot-tls/tls.crt
- name: KVPILOT_LISTEN_TLS_KEY
  value: /etc/kvpilot-tls/tls.key
{{- end }}
{{- if .Values.engines.key.secret }}
- name: KVPILOT_REGISTRY_ACCESS_API_KEY_FILE
  value: /etc/kvpilot-engine-key/{{ .Values.engines.key.key }}
{{- end }}
{{- if .Values.engines.tls.secret }}
- name: KVPILOT_REGISTRY_ACCESS_TLS_CA_FILE
  value: /etc/kvpilot-engine-tls/ca.crt
{{- if .Values.engines.tls.clientCertificate }}
- name: KVPILOT_REGISTRY_ACCESS_TLS_CERT_FILE
  value: /etc/kvpilot-engine-tls/tls.crt
- name: KVPILOT_REGISTRY_ACCESS_TLS_KEY_FILE
  value: /etc/kvpilot-engine-tls/tls.key
{{- end }}
{{- with .Values.engines.tls.serverName }}
- name: KVPILOT_REGISTRY_ACCESS_TLS_SERVER_NAME
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}
