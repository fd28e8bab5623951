{{- define "runlane.labels" -}}
app.kubernetes.io/name: runlane
app.kubernetes.io/instance: {{ $.Release.Name }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
{{- end -}}

{{- define "runlane.selector" -}}
app.kubernetes.io/name: runlane
app.kubernetes.io/instance: {{ $.Release.Name }}
{{- end -}}

{{- define "runlane.image" -}}
{{ $.Values.image.repository }}{{ if $.Values.image.digest }}@{{ $.Values.image.digest }}{{ else }}:{{ $.Values.image.tag }}{{ end }}
{{- end -}}
