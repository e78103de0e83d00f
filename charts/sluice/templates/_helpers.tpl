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

{{/*
Secret with the certificate of the service.
*/}}
{{- define "sluice.serviceSecret" -}}
{{- $tls := .Values.service.tls }}
{{- if eq $tls.issuer "Operator" }}sluice-service-tls
{{- else if eq $tls.issuer "CertManager" }}{{ include "sluice.fullname" . }}-service-serving
{{- else }}{{ $tls.existingSecret }}
{{- end }}
{{- end }}

{{/*
"true" if the service is installed with a certificate of this issuer: (dict "root" $ "issuer" "Operator")
*/}}
{{- define "sluice.serviceHasIssuer" -}}
{{- with .root.Values.service }}
  {{- if and .enabled (not .insecure) (eq .tls.issuer $.issuer) }}true{{ end }}
{{- end }}
{{- end }}

{{/*
The file that says who may ask the service, and what they may name.
*/}}
{{- define "sluice.callers" -}}
{{- $callers := list }}
{{- range .Values.service.callers }}
  {{- $callers = append $callers (dict "subject" .subject "namespaces" (.namespaces | default list) "domains" (.domains | default list)) }}
{{- end }}
{{- dict "callers" $callers | toYaml }}
{{- end }}

{{/*
The domains that policies may name, as the operator reads them: DOMAIN=NAMESPACE,DOMAIN=NAMESPACE
*/}}
{{- define "sluice.domains" -}}
{{- $pairs := list }}
{{- range $domain, $namespaces := .Values.service.domains }}
  {{- range $namespaces }}
    {{- $pairs = append $pairs (printf "%s=%s" $domain .) }}
  {{- end }}
{{- end }}
{{- join "," $pairs }}
{{- end }}

{{/*
Refuses values of the service that contradict each other.
*/}}
{{- define "sluice.checkService" -}}
{{- $service := .Values.service }}
{{- $tls := $service.tls }}
{{- $clientCA := $tls.clientCA.existingSecret }}
{{- if $service.insecure }}
  {{- if not $service.networkPolicy.from }}
    {{- fail "service.insecure=true lets everybody ask who reaches the port. List the gateways in service.networkPolicy.from, such as [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: envoy-gateway-system}}}]" }}
  {{- end }}
  {{- if or $service.callers $clientCA }}
    {{- fail "service.insecure=true checks no callers: leave service.callers and service.tls.clientCA.existingSecret empty, or set service.insecure=false" }}
  {{- end }}
{{- else }}
  {{- if and (eq $tls.issuer "Secret") (not $tls.existingSecret) }}
    {{- fail "service.tls.issuer=Secret needs service.tls.existingSecret: the name of a Secret with tls.crt and tls.key" }}
  {{- end }}
  {{- if and (ne $tls.issuer "Secret") $tls.existingSecret }}
    {{- fail (printf "service.tls.existingSecret is your own certificate, but service.tls.issuer is %s: set service.tls.issuer=Secret too" $tls.issuer) }}
  {{- end }}
  {{- range $service.callers }}
    {{- if and (or (contains "://" .subject) (hasPrefix "dns:" .subject)) (not $clientCA) }}
      {{- fail (printf "service.callers names %s, whom only a client certificate can prove: set service.tls.clientCA.existingSecret to a Secret with ca.crt" .subject) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- if $service.autoscaling.enabled }}
  {{- if gt (int $service.autoscaling.minReplicas) (int $service.autoscaling.maxReplicas) }}
    {{- fail "service.autoscaling.minReplicas is larger than maxReplicas" }}
  {{- end }}
  {{- if not (($service.resources).requests).cpu }}
    {{- fail "service.autoscaling.enabled=true needs service.resources.requests.cpu, of which it takes a percentage" }}
  {{- end }}
{{- end }}
{{- end }}
