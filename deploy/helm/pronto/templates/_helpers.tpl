{{/* Name and labels of one part: include "pronto.labels" (list . "agent") */}}
{{- define "pronto.labels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: pronto-{{ index . 1 }}
app.kubernetes.io/part-of: pronto
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
{{- end }}

{{- define "pronto.image" -}}
{{ required "image.repository must name the image that you built from deploy/Containerfile and pushed; give --set image.repository=NAME" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "pronto.pod" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* A user without rights, no capability, and nothing to write to but what is mounted. */}}
{{- define "pronto.unprivileged" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Not empty where agents listen beyond their node. */}}
{{- define "pronto.listens" -}}
{{- if or .Values.monitor.enabled (and (eq .Values.gate "extender") (not .Values.nats.secret)) }}yes{{ end }}
{{- end }}

{{/* Variables with the address of the bus: include "pronto.nats" (list . "PRONTO_AGENT_NATS" "FILE"), where FILE is
     the private key that a signed bus is met with; empty for the one in the state folder. */}}
{{- define "pronto.nats" -}}
{{- $root := index . 0 -}}
{{- $signs := and $root.Values.nats.keys (index . 2) -}}
- name: {{ ternary "BUS_ADDRESS" (index . 1) (not (empty $signs)) }}
  valueFrom:
    secretKeyRef: {name: {{ $root.Values.nats.secret }}, key: address}
{{- if $signs }}
{{- if contains "$(POD_NAME)" $signs }}
- name: POD_NAME
  valueFrom:
    fieldRef: {fieldPath: metadata.name}
{{- end }}
- name: {{ index . 1 }}
  value: $(BUS_ADDRESS)&sign=/etc/pronto/bus/{{ index . 2 }}
{{- end }}
{{- end }}

{{- define "pronto.bus-mount" -}}
{{- if .Values.nats.keys }}
- {name: bus, mountPath: /etc/pronto/bus, readOnly: true}
{{- end }}
{{- end }}

{{/* The keys of a signed bus; agents get only what is registered, since their private keys lie on their nodes, and the
     extender its own besides. */}}
{{- define "pronto.bus-volume" -}}
{{- $root := index . 0 -}}
{{- if $root.Values.nats.keys }}
{{- if not $root.Values.nats.secret }}
{{- fail "nats.keys signs what is said on a bus, and nats.secret names none; give --set nats.secret=NAME" }}
{{- end }}
- name: bus
  secret:
    secretName: {{ $root.Values.nats.keys }}
    defaultMode: 288
    {{- if ne (index . 1) "aggregate" }}
    items:
      - {key: keys, path: keys}
      {{- if eq (index . 1) "extender" }}
      - {key: viewer.key, path: viewer.key}
      {{- end }}
    {{- end }}
{{- end }}
{{- end }}

{{/* Pods of one part are kept apart where that is possible. */}}
{{- define "pronto.apart" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 1
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {app.kubernetes.io/name: {{ . }}}
{{- end }}
