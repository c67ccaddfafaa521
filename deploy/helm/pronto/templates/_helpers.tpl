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

{{- define "pronto.nats" -}}
valueFrom:
  secretKeyRef: {name: {{ .Values.nats.secret }}, key: address}
{{- end }}
