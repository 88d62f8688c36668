{{- define "steelyard.name" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The name of cluster-scoped objects. It depends on the component because a release of each may have the same name. */ -}}
{{- define "steelyard.clusterName" -}}
{{- include "steelyard.name" . -}}{{- if eq .Values.component "kernel-plane" -}}-kernel-plane{{- end -}}
{{- end -}}

{{- define "steelyard.account" -}}
{{- default (include "steelyard.name" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "steelyard.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: {{ .Values.component | quote }}
{{- end -}}

{{- define "steelyard.labels" -}}
{{ include "steelyard.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- define "steelyard.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{- end -}}
{{- end -}}
{{- end -}}
