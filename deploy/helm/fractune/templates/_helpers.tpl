{{- define "fractune.labels" -}}
app.kubernetes.io/name: fractune
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* of one part: (dict "root" $ "part" "server") */ -}}
{{- define "fractune.selector" -}}
app.kubernetes.io/name: fractune
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "fractune.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "fractune.redis" -}}
{{- if .Values.valkey.enabled -}}
{{ .Release.Name }}-valkey:6379
{{- else -}}
{{ required "valkey.address: with valkey.enabled: false, name Redis as HOST:PORT" .Values.valkey.address }}
{{- end }}
{{- end }}

{{- define "fractune.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .user | default 10001 }}
  runAsGroup: {{ .user | default 10001 }}
  fsGroup: {{ .user | default 10001 }}
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "fractune.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- /* the files of a role: (dict "root" $ "role" "measure") */ -}}
{{- define "fractune.secretVolume" -}}
name: secrets
secret:
  secretName: {{ .root.Values.secret }}
  defaultMode: 0440
  items:
    - {key: fleet.secret, path: fleet.secret}
    - {key: {{ .role }}.password, path: {{ .role }}.password}
{{- end }}

{{- define "fractune.redisArgs" -}}
- --secret-file
- /run/secrets/fractune/fleet.secret
- --redis
- redis://{{ .role }}@{{ include "fractune.redis" .root }}/0
- --redis-password-file
- /run/secrets/fractune/{{ .role }}.password
{{- end }}
