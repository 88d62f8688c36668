{{- /* Whether the addresses in statuses are those of the release's Service: it has no others, and its Service may be read. */ -}}
{{- define "steelyard.publishesService" -}}
{{- $others := or .Values.publishAddresses .Values.gatewayAddressPools -}}
{{- $isRead := or (not .Values.namespaces) (has .Release.Namespace .Values.namespaces) -}}
{{- if and (eq .Values.component "gateway") .Values.service.enabled $isRead (not $others) }}true{{ end -}}
{{- end -}}
{{- /* The pod of either component. */ -}}
{{- define "steelyard.pod" -}}
{{- $kernel := eq .Values.component "kernel-plane" -}}
{{- $grace := add .Values.drainDelaySeconds 25 -}}
{{- if and (not $kernel) (lt (int .Values.terminationGracePeriodSeconds) (int $grace)) -}}
{{- fail (printf "terminationGracePeriodSeconds is %v: it must be at least %v, which is drainDelaySeconds and 25 s for the drain" .Values.terminationGracePeriodSeconds $grace) -}}
{{- end -}}
{{- range .Values.service.ports -}}
{{- if or (eq .name "http-metrics") (eq (int (default .port .targetPort)) 9902) -}}
{{- fail (printf "service.ports has %s at port %v: the name http-metrics and the port 9902 are taken by the metrics" .name (default .port .targetPort)) -}}
{{- end -}}
{{- end -}}
metadata:
  labels:
    {{- include "steelyard.selector" . | nindent 4 }}
    {{- with .Values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- if or .Values.podAnnotations (and .Values.scrapeAnnotations (not $kernel)) }}
  annotations:
    {{- if and .Values.scrapeAnnotations (not $kernel) }}
    prometheus.io/scrape: 'true'
    prometheus.io/port: '9902'
    prometheus.io/path: /metrics
    {{- end }}
    {{- with .Values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- end }}
spec:
  serviceAccountName: {{ include "steelyard.account" . | quote }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if $kernel }}
  # The programs are attached to interfaces of the node. They stay when the pod is replaced, and go on forwarding.
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds | int64 }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  securityContext:
    {{- if .Values.podSecurityContext }}
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
    {{- else if $kernel }}
    # Pods get capabilities as root or not at all. Of root's, those below are left, and a file system to read.
    runAsUser: 0
    seccompProfile: {type: RuntimeDefault}
    {{- else }}
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    seccompProfile: {type: RuntimeDefault}
    sysctls:
      # Ports 80 and 443 without any capability. It holds for the pod's own network alone.
      - {name: net.ipv4.ip_unprivileged_port_start, value: '0'}
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .Values.topologySpreadConstraints }}
  topologySpreadConstraints: {{- toYaml .Values.topologySpreadConstraints | nindent 4 }}
  {{- else if not $kernel }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {{- include "steelyard.selector" . | nindent 10 }}
      # Counts the pods of one rollout only: those that it replaces would push both new ones onto one node.
      matchLabelKeys: [pod-template-hash]
  {{- end }}
  containers:
    - name: steelyard
      image: {{ include "steelyard.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - controller
        {{- if $kernel }}
        # No GatewayClass names this one, and no Ingress has this class: they are the gateway's business. Two controllers of one name would
        # each take back what the other writes.
        - --controller-name=steelyard.io/kernel-plane
        - --ingress-class=steelyard-kernel-plane
        {{- else }}
        - {{ printf "--controller-name=%s" .Values.gatewayClass.controllerName | quote }}
        - {{ printf "--gateway-class=%s" .Values.gatewayClass.name | quote }}
        - {{ printf "--ingress-class=%s" .Values.ingressClass.name | quote }}
        {{- end }}
        - {{ printf "--lease-name=%s" (include "steelyard.name" .) | quote }}
        {{- range .Values.publishAddresses }}
        - {{ printf "--publish-address=%s" . | quote }}
        {{- end }}
        {{- if include "steelyard.publishesService" . }}
        - {{ printf "--publish-service=%s/%s" .Release.Namespace (include "steelyard.name" .) | quote }}
        {{- end }}
        {{- range .Values.gatewayAddressPools }}
        - {{ printf "--gateway-address-pool=%s" . | quote }}
        {{- end }}
        {{- range .Values.addressPools }}
        - {{ printf "--address-pool=%s" . | quote }}
        {{- end }}
        {{- range .Values.vipInterfaces }}
        - {{ printf "--vip-interface=%s" . | quote }}
        {{- end }}
        {{- range .Values.namespaces }}
        - {{ printf "--namespace=%s" . | quote }}
        {{- end }}
        {{- range .Values.trustedProxies }}
        - {{ printf "--trusted-proxy=%s" . | quote }}
        {{- end }}
        {{- if $kernel }}
        # The port is the node's own.
        - --admin=127.0.0.1:9901
        {{- else }}
        # Probes and Prometheus come from outside of the pod. The control API stays on the pod's loopback address:
        # `kubectl exec POD -- steelyard status`
        - --metrics=:9902
        {{- with .Values.drainDelaySeconds }}
        # What sends packets learns that the pod ends a moment after the pod does.
        - --drain-delay={{ . | int64 }}s
        {{- end }}
        {{- end }}
        {{- with .Values.workers }}
        - --workers={{ . | int64 }}
        {{- end }}
        {{- with .Values.accessLog }}
        - {{ printf "--access-log=%s" . | quote }}
        {{- end }}
        {{- range .Values.extraArgs }}
        - {{ . | quote }}
        {{- end }}
      env:
        - name: POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        - name: POD_NAMESPACE
          valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
        - name: NODE_NAME
          valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
        - {name: STEELYARD_LOG, value: {{ .Values.log | quote }}}
        {{- with .Values.extraEnv }}{{ toYaml . | nindent 8 }}{{ end }}
      {{- if not $kernel }}
      ports:
        {{- range .Values.service.ports }}
        - {name: {{ .name | quote }}, containerPort: {{ default .port .targetPort | int64 }}, protocol: {{ default "TCP" .protocol }}}
        {{- end }}
        - {name: http-metrics, containerPort: 9902}
      {{- end }}
      # Ready when the cluster has been read and what it asks for is served; not while draining.
      readinessProbe:
        {{- if $kernel }}
        httpGet: {host: 127.0.0.1, path: /readyz, port: 9901}
        {{- else }}
        httpGet: {path: /readyz, port: 9902}
        {{- end }}
        {{- toYaml .Values.readinessProbe | nindent 8 }}
      # Alive also while the API server is away: a restart would lose what is known.
      livenessProbe:
        {{- if $kernel }}
        httpGet: {host: 127.0.0.1, path: /healthz, port: 9901}
        {{- else }}
        httpGet: {path: /healthz, port: 9902}
        {{- end }}
        {{- toYaml .Values.livenessProbe | nindent 8 }}
      resources: {{- toYaml .Values.resources | nindent 8 }}
      securityContext:
        {{- if .Values.securityContext }}
        {{- toYaml .Values.securityContext | nindent 8 }}
        {{- else }}
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
          {{- if $kernel }}
          # Programs, where they are attached, what they may see, and resets of connections to dead endpoints and of idle ones.
          add: [BPF, NET_ADMIN, PERFMON, NET_RAW]
          {{- end }}
        {{- end }}
      {{- if $kernel }}
      volumeMounts:
        # What is pinned outlives the pod.
        - {name: bpffs, mountPath: /sys/fs/bpf}
      {{- end }}
  {{- if $kernel }}
  volumes:
    - name: bpffs
      hostPath: {path: /sys/fs/bpf, type: Directory}
  {{- end }}
{{- end -}}
