{{/*
Prefix of the names of objects that nothing finds by name.
*/}}
{{- define "sluice.fullname" -}}
{{- .Values.fullnameOverride | default "sluice" }}
{{- end }}

{{/*
Labels of one component that never change: (dict "root" $ "component" "operator")
*/}}
{{- define "sluice.selectorLabels" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/*
All labels of one component's objects: the user's and ours.
*/}}
{{- define "sluice.labels" -}}
{{- $ours := include "sluice.selectorLabels" . | fromYaml }}
{{- $_ := set $ours "app.kubernetes.io/instance" .root.Release.Name }}
{{- $_ := set $ours "app.kubernetes.io/version" .root.Chart.AppVersion }}
{{- $_ := set $ours "app.kubernetes.io/managed-by" .root.Release.Service }}
{{- $_ := set $ours "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") }}
{{- mergeOverwrite (dict) (.root.Values.commonLabels | default dict) $ours | toYaml }}
{{- end }}

{{/*
Labels of a pod: the user's and ours. They leave out the chart's version, because an upgrade that changes nothing else
must not restart Redis and lose its counters. (dict "root" $ "component" "redis" "more" .podLabels)
*/}}
{{- define "sluice.podLabels" -}}
{{- $ours := include "sluice.selectorLabels" . | fromYaml }}
{{- $_ := set $ours "app.kubernetes.io/instance" .root.Release.Name }}
{{- mergeOverwrite (dict) (.root.Values.commonLabels | default dict) .more $ours | toYaml }}
{{- end }}

{{/*
An image's reference: (dict "root" $ "image" .Values.operator.image). As in any reference, the part before the first
slash is a registry if it contains a dot or a colon.
*/}}
{{- define "sluice.image" -}}
{{- $first := regexFind "^[^/]+/" .image.repository }}
{{- $named := or (contains "." $first) (contains ":" $first) (eq $first "localhost/") }}
{{- if and .image.registry (not $named) }}{{ trimSuffix "/" .image.registry }}/{{ end }}{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/*
The store's Secret in the release's namespace; empty if there is none. The operator creates the Secret of the embedded
Redis when it starts. Helm cannot do it, because its random values would change with every upgrade.
*/}}
{{- define "sluice.storeSecret" -}}
{{- if .Values.redis.embedded }}sluice-redis{{ else }}{{ .Values.redis.existingSecret }}{{ end }}
{{- end }}

{{- define "sluice.storeUrl" -}}
{{- if .Values.redis.embedded }}
  {{- if or .Values.redis.url .Values.redis.existingSecret }}
    {{- fail "redis.url and redis.existingSecret configure your own Redis: set redis.embedded=false too" }}
  {{- end }}
  {{- printf "rediss://sluice-redis.%s.svc:6379" .Release.Namespace }}
{{- else }}
  {{- required "redis.embedded=false needs redis.url: redis://HOST:PORT, redis+cluster://HOST:PORT,HOST:PORT or redis+sentinel://HOST:PORT,HOST:PORT/MASTER, or the same with rediss for TLS" .Values.redis.url }}
{{- end }}
{{- end }}

{{/*
redis.latencyBudget in milliseconds.
*/}}
{{- define "sluice.latencyBudgetMillis" -}}
{{- $text := toString .Values.redis.latencyBudget }}
{{- $millis := 0 }}
{{- if hasSuffix "ms" $text }}
  {{- $millis = trimSuffix "ms" $text | int }}
{{- else if hasSuffix "s" $text }}
  {{- $millis = mul 1000 (trimSuffix "s" $text | int) }}
{{- else }}
  {{- $millis = int $text }}
{{- end }}
{{- if or (lt (int $millis) 1) (gt (int $millis) 10000) }}
  {{- fail (printf "redis.latencyBudget is %s but must be between 1ms and 10s" $text) }}
{{- end }}
{{- $millis }}
{{- end }}

{{/*
The sidecar's resources in the JSON that the operator reads: all quantities are strings.
*/}}
{{- define "sluice.sidecarResources" -}}
{{- $all := dict }}
{{- range $kind := list "requests" "limits" }}
  {{- $some := dict }}
  {{- range $name, $quantity := get $.Values.sidecar.resources $kind }}
    {{- $_ := set $some $name ($quantity | toJson | trimAll "\"") }}
  {{- end }}
  {{- $_ := set $all $kind $some }}
{{- end }}
{{- toJson $all }}
{{- end }}

{{/*
The resources of the sidecars of Guaranteed pods as JSON, with all quantities as texts.
*/}}
{{- define "sluice.guaranteedResources" -}}
{{- $all := dict }}
{{- range $name, $quantity := .Values.sidecar.guaranteedResources }}
  {{- $_ := set $all $name ($quantity | toJson | trimAll "\"") }}
{{- end }}
{{- toJson $all }}
{{- end }}

{{/*
"true" if the platform assigns the users of pods.
*/}}
{{- define "sluice.openshift" -}}
{{- $set := (.Values.compatibility).openshift }}
{{- $value := ternary "auto" (toString $set) (kindIs "invalid" $set) }}
{{- if eq $value "auto" }}{{ .Capabilities.APIVersions.Has "security.openshift.io/v1" }}{{ else }}{{ $value }}{{ end }}
{{- end }}

{{/*
Security context of every container of the chart. It complies with the Pod Security Standard "restricted".
*/}}
{{- define "sluice.containerSecurityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
privileged: false
readOnlyRootFilesystem: true
{{- end }}

{{- define "sluice.podSecurityContext" -}}
runAsNonRoot: true
{{- if ne (include "sluice.openshift" .) "true" }}
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/*
Namespaces whose pods never get a sidecar. They always include the operator's own namespace and kube-system: with
failurePolicy Fail, a stopped operator could not start again otherwise.
*/}}
{{- define "sluice.notExcluded" -}}
key: kubernetes.io/metadata.name
operator: NotIn
values:
{{- range concat .Values.injection.excludedNamespaces (list .Release.Namespace "kube-system") | uniq | sortAlpha }}
- {{ . }}
{{- end }}
{{- end }}
