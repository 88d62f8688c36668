{{- /* Whether statuses contain the addresses of the release's Service: no other addresses are set, and the account may read the Service. */ -}}
{{- define "steelyard.publishesService" -}}
{{- $others := or .Values.publishAddresses .Values.gatewayAddressPools -}}
{{- $isRead := or (not .Values.namespaces) (has .Release.Namespace .Values.namespaces) -}}
{{- if and (eq .Values.component "gateway") .Values.service.enabled $isRead (not $others) }}true{{ end -}}
{{- end -}}
{{- /* The pod template of both components. */ -}}
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
{{- if and .Values.telemetry .Values.accessLog -}}
{{- fail "accessLog and telemetry exclude each other: write access_log in telemetry" -}}
{{- end -}}
metadata:
  labels:
    {{- include "steelyard.selector" . | nindent 4 }}
    {{- with .Values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- $telemetry := and (not $kernel) .Values.telemetry -}}
  {{- if or .Values.podAnnotations $telemetry (and .Values.scrapeAnnotations (not $kernel)) }}
  annotations:
    {{- if $telemetry }}
    # The file is read once, so its change replaces the pods.
    steelyard.io/telemetry: {{ toYaml .Values.telemetry | sha256sum | quote }}
    {{- end }}
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
  # The programs are attached to interfaces of the node. They stay there and keep forwarding while the pod is replaced.
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
    # Kubernetes gives added capabilities to root only. This root has just the capabilities below and a read-only file system.
    runAsUser: 0
    seccompProfile: {type: RuntimeDefault}
    {{- else }}
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    seccompProfile: {type: RuntimeDefault}
    sysctls:
      # Allows the process to bind ports 80 and 443 without any capability. It affects only the network namespace of the pod.
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
      # Count only the pods of one rollout: the old pods could otherwise push both new ones onto the same node.
      matchLabelKeys: [pod-template-hash]
  {{- end }}
  containers:
    - name: steelyard
      image: {{ include "steelyard.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - controller
        {{- if $kernel }}
        # No GatewayClass has this controller name, and no Ingress has this class, because the gateway serves them. Two controllers of the
        # same name would keep overwriting each other's statuses.
        - --controller-name=steelyard.io/kernel-plane
        - --ingress-class=steelyard-kernel-plane
        {{- else }}
        - {{ printf "--controller-name=%s" .Values.gatewayClass.controllerName | quote }}
        - {{ printf "--gateway-class=%s" .Values.gatewayClass.name | quote }}
        - {{ printf "--ingress-class=%s" .Values.ingressClass.name | quote }}
        {{- end }}
        - {{ printf "--lease-name=%s" (include "steelyard.name" .) | quote }}
        {{- if not $kernel }}
        - {{ printf "--replicas-service=%s/%s-replicas" .Release.Namespace (include "steelyard.name" .) | quote }}
        {{- end }}
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
        {{- if and $kernel .Values.socketCgroup }}
        - --socket-cgroup=/host/cgroup
        {{- end }}
        {{- if and $kernel .Values.kubeProxyReplacement }}
        - --kube-proxy-replacement
        {{- if .Values.clusterIPPackets }}
        - --cluster-ip-packets
        {{- end }}
        {{- end }}
        {{- if and $kernel .Values.announce }}
        - --announce={{ .Values.announce }}
        {{- end }}
        {{- range .Values.namespaces }}
        - {{ printf "--namespace=%s" . | quote }}
        {{- end }}
        {{- range .Values.trustedProxies }}
        - {{ printf "--trusted-proxy=%s" . | quote }}
        {{- end }}
        {{- if $kernel }}
        # This is a port of the node, because the pod uses the node's network.
        - --admin=127.0.0.1:9901
        {{- else }}
        # Probes and Prometheus connect from outside the pod. The control API stays on the pod's loopback address; use
        # `kubectl exec POD -- steelyard status`.
        - --metrics=:9902
        {{- with .Values.drainDelaySeconds }}
        # The senders of traffic learn a moment later than the pod that it is terminating.
        - --drain-delay={{ . | int64 }}s
        {{- end }}
        {{- end }}
        {{- with .Values.workers }}
        - --workers={{ . | int64 }}
        {{- end }}
        {{- with .Values.accessLog }}
        - {{ printf "--access-log=%s" . | quote }}
        {{- end }}
        {{- if and (not $kernel) .Values.telemetry }}
        - --telemetry=/etc/steelyard/telemetry/telemetry.yaml
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
        # The API server copies the labels about the topology from the node to its pods (Kubernetes 1.35). Without it, or in a cluster without
        # zones, this is empty.
        - name: NODE_ZONE
          valueFrom: {fieldRef: {fieldPath: "metadata.labels['topology.kubernetes.io/zone']"}}
        {{- with .Values.apiServer.host }}
        # Nothing leads to the Service of the API server before this pod serves it.
        - {name: KUBERNETES_SERVICE_HOST, value: {{ . | quote }}}
        - {name: KUBERNETES_SERVICE_PORT, value: {{ $.Values.apiServer.port | int64 | quote }}}
        {{- end }}
        - {name: STEELYARD_LOG, value: {{ .Values.log | quote }}}
        {{- with .Values.extraEnv }}{{ toYaml . | nindent 8 }}{{ end }}
      {{- if not $kernel }}
      ports:
        {{- range .Values.service.ports }}
        - {name: {{ .name | quote }}, containerPort: {{ default .port .targetPort | int64 }}, protocol: {{ default "TCP" .protocol }}}
        {{- end }}
        - {name: http-metrics, containerPort: 9902}
      {{- end }}
      # The pod is ready once it has read the cluster and serves the resulting configuration. It is not ready while it drains.
      readinessProbe:
        {{- if $kernel }}
        httpGet: {host: 127.0.0.1, path: /readyz, port: 9901}
        {{- else }}
        httpGet: {path: /readyz, port: 9902}
        {{- end }}
        {{- toYaml .Values.readinessProbe | nindent 8 }}
      # The pod is alive even when the API server is unreachable, because a restart would lose the configuration that it has.
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
          # BPF loads the programs, and NET_ADMIN attaches them. With PERFMON, the verifier accepts reads of packets at computed
          # offsets. NET_RAW sends resets to connections that are idle or whose endpoint is dead.
          add: [BPF, NET_ADMIN, PERFMON, NET_RAW]
          {{- end }}
        {{- end }}
      {{- if $kernel }}
      volumeMounts:
        # Programs and maps that are pinned here outlive the pod.
        - {name: bpffs, mountPath: /sys/fs/bpf}
        {{- if .Values.socketCgroup }}
        # The pod's own /sys/fs/cgroup shows nothing but the pod.
        - {name: cgroup, mountPath: /host/cgroup, readOnly: true}
        {{- end }}
      {{- else if .Values.telemetry }}
      volumeMounts:
        - {name: telemetry, mountPath: /etc/steelyard/telemetry, readOnly: true}
        {{- with .Values.telemetrySecret }}
        - {name: telemetry-secret, mountPath: /etc/steelyard/telemetry-secret, readOnly: true}
        {{- end }}
      {{- end }}
  {{- if and (not $kernel) .Values.telemetry }}
  volumes:
    - name: telemetry
      configMap: {name: {{ printf "%s-telemetry" (include "steelyard.name" .) | quote }}}
    {{- with .Values.telemetrySecret }}
    - name: telemetry-secret
      secret: {secretName: {{ . | quote }}}
    {{- end }}
  {{- end }}
  {{- if $kernel }}
  volumes:
    - name: bpffs
      hostPath: {path: /sys/fs/bpf, type: Directory}
    {{- if .Values.socketCgroup }}
    - name: cgroup
      hostPath: {path: {{ .Values.socketCgroup | quote }}, type: Directory}
    {{- end }}
  {{- end }}
{{- end -}}
