{{- /* The label app.kubernetes.io/name. */ -}}
{{- define "kvpilot.app" -}}
{{- .Values.nameOverride | default .Chart.Name -}}
{{- end -}}

{{- /* The name of the objects: fullnameOverride, or the release's with the chart's unless it has that already. */ -}}
{{- define "kvpilot.name" -}}
{{- $app := include "kvpilot.app" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $app .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $app | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* That name with a suffix: include "kvpilot.named" (list . "admin"). A Service's name has at most 63 characters, as a release's with ours can have. */ -}}
{{- define "kvpilot.named" -}}
{{- $suffix := index . 1 -}}
{{- printf "%s-%s" (include "kvpilot.name" (index . 0) | trunc (int (sub 62 (len $suffix))) | trimSuffix "-") $suffix -}}
{{- end -}}

{{- define "kvpilot.image" -}}
{{- $repository := required "image.repository: set it to the image that you built and pushed (deploy/kubernetes/README.md)" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{- $repository -}}{{- with .Values.image.tag }}:{{ . }}{{ end -}}@{{- .Values.image.digest -}}
{{- else -}}
{{- $repository -}}:{{- .Values.image.tag | default .Chart.AppVersion -}}
{{- end -}}
{{- end -}}

{{- define "kvpilot.account" -}}
{{- .Values.serviceAccount.name | default (include "kvpilot.name" .) -}}
{{- end -}}

{{- define "kvpilot.selector" -}}
app.kubernetes.io/name: {{ include "kvpilot.app" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* commonLabels, without those that the chart sets. */ -}}
{{- define "kvpilot.commonLabels" -}}
{{- range $name, $value := .Values.commonLabels }}
{{- if not (has $name (list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart")) }}
{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "kvpilot.labels" -}}
{{ include "kvpilot.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- include "kvpilot.commonLabels" . }}
{{- end -}}

{{- /* Whether clients send requests to the routers. */ -}}
{{- define "kvpilot.proxies" -}}
{{- if has .Values.mode (list "proxy" "both") -}}true{{- end -}}
{{- end -}}

{{- /* Whether the routers are the endpoint picker of a gateway. */ -}}
{{- define "kvpilot.picks" -}}
{{- if has .Values.mode (list "epp" "both") -}}true{{- end -}}
{{- end -}}

{{- define "kvpilot.peers" -}}
{{- include "kvpilot.named" (list . "peers") -}}
{{- end -}}

{{- /* The Secret with the fleet's key. */ -}}
{{- define "kvpilot.fleetSecret" -}}
{{- .Values.fleet.key.secret | default (include "kvpilot.named" (list . "fleet")) -}}
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
{{- $own := dict "http" (ternary ":8080" "" (has .Values.mode (list "proxy" "both"))) "grpc" ":9090" "admin" ":9091" "drain_delay" (printf "%ds" (int .Values.drain.delaySeconds)) "drain_timeout" (printf "%ds" (int .Values.drain.timeoutSeconds)) -}}
{{- $_ := set $config "listen" (merge $own $listen) -}}
{{- $epp := get $config "epp" | default dict -}}
{{- range $setting, $instead := dict "listen" "port 9002" "health" "port 9003" -}}
{{- if hasKey $epp $setting -}}
{{- fail (printf "config.epp.%s is set by the chart: remove it and use mode, which opens the %s" $setting $instead) -}}
{{- end -}}
{{- end -}}
{{- if include "kvpilot.picks" . -}}
{{- $own := dict "listen" ":9002" "health" ":9003" -}}
{{- $_ := set $config "epp" (merge $own $epp) -}}
{{- end -}}
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
{{- if or (gt (int .Values.replicas) 1) .Values.autoscaling.enabled .Values.keda.enabled -}}
{{- fail "persistence is for a single router (replicas: 1): the routers of a fleet get the index from each other" -}}
{{- end -}}
{{- $kvindex := get $config "kvindex" | default dict -}}
{{- if hasKey $kvindex "snapshot" -}}
{{- fail "config.kvindex.snapshot is set by the chart: remove it, or set persistence.enabled to false" -}}
{{- end -}}
{{- $_ := set $config "kvindex" (merge (dict "snapshot" "/var/lib/kvpilot/index.snapshot") $kvindex) -}}
{{- end -}}
{{- if .Values.inferencePool.create -}}
{{- $registry := get $config "registry" | default dict -}}
{{- $pools := get $registry "inference_pools" | default list -}}
{{- $name := include "kvpilot.pool" . -}}
{{- $named := false -}}
{{- range $pools -}}
{{- if and (eq .name $name) (has (get . "namespace" | default $.Release.Namespace) (list $.Release.Namespace)) -}}
{{- $named = true -}}
{{- end -}}
{{- end -}}
{{- if and .Values.inferencePool.replicas (not $named) -}}
{{- $_ := set $registry "inference_pools" (append $pools (dict "name" $name "template" .Values.inferencePool.template)) -}}
{{- /* The Service of the chart's own default would name the same pods. */ -}}
{{- $default := list (dict "service" "vllm" "port" "http" "template" (dict "events" (dict "endpoint" "tcp://{host}:5557" "replay" "tcp://{host}:5657"))) -}}
{{- if eq (toJson $default) (toJson (get $registry "kubernetes")) -}}
{{- $_ := set $registry "kubernetes" list -}}
{{- end -}}
{{- $_ := set $config "registry" $registry -}}
{{- end -}}
{{- end -}}
{{ toYaml $config }}
{{- end -}}

{{- /* The name of the InferencePool. */ -}}
{{- define "kvpilot.pool" -}}
{{- .Values.inferencePool.name | default (include "kvpilot.name" .) -}}
{{- end -}}

{{- /* The claim of the volume that keeps the index. */ -}}
{{- define "kvpilot.claim" -}}
{{- .Values.persistence.existingClaim | default (include "kvpilot.name" .) -}}
{{- end -}}

{{- /* Whether helm test can ask the router. */ -}}
{{- define "kvpilot.tested" -}}
{{- $listen := get .Values.config "listen" | default dict -}}
{{- if and .Values.test.enabled (or .Values.test.key.secret (not .Values.keys.secret)) (ne (get $listen "client_auth" | toString) "required") -}}true{{- end -}}
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
{{- if include "kvpilot.probedBy" . }}
{{- with .Values.probes.key.secret }}
probe-key: {{ . }}
{{- end }}
{{- with .Values.probes.certificate.secret }}
probe-certificate: {{ . }}
{{- end }}
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
app.kubernetes.io/name: {{ include "kvpilot.app" . }}-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* Who may run the pods. OpenShift gives each namespace a range of users and refuses pods that choose one outside of it: there the chart's own choice is left out. */ -}}
{{- define "kvpilot.podSecurityContext" -}}
{{- $context := deepCopy (.Values.podSecurityContext | default dict) -}}
{{- if .Capabilities.APIVersions.Has "security.openshift.io/v1" -}}
{{- range $id := list "runAsUser" "runAsGroup" "fsGroup" -}}
{{- if eq (int (get $context $id)) 65532 -}}
{{- $_ := unset $context $id -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}

{{- /* How many routers there are, in words. */ -}}
{{- define "kvpilot.routers" -}}
{{- if .Values.autoscaling.enabled -}}
{{ .Values.autoscaling.minReplicas }} to {{ .Values.autoscaling.maxReplicas }}
{{- else if .Values.keda.enabled -}}
{{ .Values.keda.minReplicas }} to {{ .Values.keda.maxReplicas }}
{{- else -}}
{{ .Values.replicas }}
{{- end -}}
{{- end -}}
