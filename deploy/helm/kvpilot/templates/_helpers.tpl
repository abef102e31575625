{{- define "kvpilot.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kvpilot.image" -}}
{{- required "image.repository: set it to the image that you built and pushed (deploy/kubernetes/README.md)" .Values.image.repository -}}
:{{- .Values.image.tag | default .Chart.AppVersion -}}
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

{{- define "kvpilot.peers" -}}
{{- printf "%s-peers" (include "kvpilot.name" . | trunc 57 | trimSuffix "-") -}}
{{- end -}}

{{- /* The Secret with the fleet's key. */ -}}
{{- define "kvpilot.fleetSecret" -}}
{{- .Values.fleet.key.secret | default (printf "%s-fleet" (include "kvpilot.name" . | trunc 57 | trimSuffix "-")) -}}
{{- end -}}

{{- /* The settings: the operator's, with those that belong to the chart's ports, probes and Services. */ -}}
{{- define "kvpilot.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $listen := get $config "listen" | default dict -}}
{{- range $setting, $instead := dict "http" "the chart's port 8080" "grpc" "the chart's port 9090" "admin" "the chart's port 9091" "drain_delay" "drain.delaySeconds" "drain_timeout" "drain.timeoutSeconds" -}}
{{- if hasKey $listen $setting -}}
{{- fail (printf "config.listen.%s is set by the chart: remove it and use %s" $setting $instead) -}}
{{- end -}}
{{- end -}}
{{- $own := dict "http" ":8080" "grpc" ":9090" "admin" ":9091" "drain_delay" (printf "%ds" (int .Values.drain.delaySeconds)) "drain_timeout" (printf "%ds" (int .Values.drain.timeoutSeconds)) -}}
{{- $_ := set $config "listen" (merge $own $listen) -}}
{{- $fleet := get $config "fleet" | default dict -}}
{{- range $setting, $instead := dict "name" "the pod's name" "listen" "the chart's port 7946" "rpc_listen" "the chart's port 7947" "join" "the chart's headless Service" "advertise" "the pod's address" "key" "fleet.key.secret" "key_file" "fleet.key.secret" -}}
{{- if hasKey $fleet $setting -}}
{{- fail (printf "config.fleet.%s is set by the chart: remove it and use %s" $setting $instead) -}}
{{- end -}}
{{- end -}}
{{- if .Values.fleet.enabled -}}
{{- $own := dict "listen" ":7946" "rpc_listen" ":7947" "key_file" (printf "/etc/kvpilot-fleet/%s" .Values.fleet.key.key) "join" (list (printf "%s.%s.svc:7946" (include "kvpilot.peers" .) .Release.Namespace)) -}}
{{- $_ := set $config "fleet" (merge $own $fleet) -}}
{{- end -}}
{{- if .Values.persistence.enabled -}}
{{- if gt (int .Values.replicas) 1 -}}
{{- fail "persistence is for a single router (replicas: 1): the routers of a fleet get the index from each other" -}}
{{- end -}}
{{- $kvindex := get $config "kvindex" | default dict -}}
{{- if hasKey $kvindex "snapshot" -}}
{{- fail "config.kvindex.snapshot is set by the chart: remove it, or set persistence.enabled to false" -}}
{{- end -}}
{{- $_ := set $config "kvindex" (merge (dict "snapshot" "/var/lib/kvpilot/index.snapshot") $kvindex) -}}
{{- end -}}
{{ toYaml $config }}
{{- end -}}

{{- /* The claim of the volume that keeps the index. */ -}}
{{- define "kvpilot.claim" -}}
{{- .Values.persistence.existingClaim | default (include "kvpilot.name" .) -}}
{{- end -}}

{{- /* Whether helm test can ask the router. */ -}}
{{- define "kvpilot.tested" -}}
{{- if and .Values.test.enabled (or .Values.test.key.secret (not .Values.keys.secret)) -}}true{{- end -}}
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
{{- if .Values.fleet.enabled }}
fleet: {{ include "kvpilot.fleetSecret" . }}
{{- end }}
{{- end -}}

{{- /* The settings that name files of the Secrets, and those that each pod has for itself. */ -}}
{{- define "kvpilot.env" -}}
{{- if .Values.fleet.enabled }}
- name: KVPILOT_FLEET_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: KVPILOT_FLEET_ADVERTISE
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- end }}
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

{{- /* The labels of the pod of helm test; the Services do not select it. */ -}}
{{- define "kvpilot.testLabels" -}}
app.kubernetes.io/name: kvpilot-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
