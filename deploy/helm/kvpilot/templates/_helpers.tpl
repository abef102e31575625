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
