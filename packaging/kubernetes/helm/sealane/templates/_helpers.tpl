{{- define "sealane.labels" -}}
app.kubernetes.io/name: sealane
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "sealane.pod" -}}
metadata:
  labels:
    {{- include "sealane.labels" . | nindent 4 }}
  annotations:
    # The configuration of the operator is read when a Pod starts.
    sealane.github.io/configuration: {{ include (print $.Template.BasePath "/configuration.yaml") . | sha256sum | quote }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ .Release.Name }}
  # Only the controller gets a token, from the volume `token`.
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: {{ add .Values.preStop .Values.drain 20 }}
  {{- with .Values.images.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    seccompProfile: { type: RuntimeDefault }
    {{- if eq .Values.ports "direct" }}
    sysctls:
      # So that a process without capabilities can listen on port 80.
      - { name: net.ipv4.ip_unprivileged_port_start, value: "0" }
    {{- end }}
  initContainers:
    # A sidecar: it starts before the gateway, and stops after it.
    - name: controller
      image: {{ .Values.images.controller }}
      imagePullPolicy: {{ .Values.images.pullPolicy }}
      restartPolicy: Always
      args:
        - --base=/etc/sealane/base/base.toml
        - --config=/etc/sealane/run/sealane.toml
        - --admin=/run/sealane/admin.sock
        - --lease={{ .Release.Name }}
        - --ports={{ .Values.ports }}
        - --target-ports={{ .Values.targetPorts.first }}-{{ .Values.targetPorts.last }}
        - --service-type={{ .Values.serviceType }}
        - --selector=app.kubernetes.io/name=sealane,app.kubernetes.io/instance={{ .Release.Name }}
        {{- if .Values.ingressClass }}
        - --ingress-service={{ .Release.Namespace }}/{{ .Release.Name }}-ingress
        {{- else }}
        - --no-ingress
        {{- end }}
        {{- range .Values.addresses }}
        - --address={{ . }}
        {{- end }}
        {{- range .Values.trustedProxies }}
        - --trusted-proxy={{ . }}
        {{- end }}
        {{- if .Values.proxyProtocol }}
        - --proxy-protocol
        {{- end }}
        {{- if .Values.http3 }}
        - --http3
        {{- end }}
      env:
        - { name: POD_NAME, valueFrom: { fieldRef: { fieldPath: metadata.name } } }
        - { name: POD_NAMESPACE, valueFrom: { fieldRef: { fieldPath: metadata.namespace } } }
        # From Kubernetes 1.35 on, Pods have this label of their node. Without it, topology hints are not used.
        - { name: ZONE, valueFrom: { fieldRef: { fieldPath: "metadata.labels['topology.kubernetes.io/zone']" } } }
      ports:
        - { name: controller, containerPort: 9902 }
      # The gateway's container starts when its first configuration is there.
      startupProbe:
        httpGet: { path: /healthz, port: controller }
        periodSeconds: 1
        failureThreshold: 60
      readinessProbe:
        httpGet: { path: /readyz, port: controller }
        periodSeconds: 5
      livenessProbe:
        httpGet: { path: /healthz, port: controller }
      resources:
        {{- toYaml .Values.resources.controller | nindent 8 }}
      securityContext: &restricted
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: { drop: [ALL] }
      volumeMounts:
        - { name: base, mountPath: /etc/sealane/base, readOnly: true }
        - { name: configuration, mountPath: /etc/sealane/run }
        - { name: run, mountPath: /run/sealane }
        - { name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true }
  containers:
    - name: gateway
      image: {{ .Values.images.gateway }}
      imagePullPolicy: {{ .Values.images.pullPolicy }}
      args: [serve, -c, /etc/sealane/run/sealane.toml]
      ports:
        - { name: http, containerPort: 8080 }
        - { name: https, containerPort: 8443 }
        {{- if .Values.http3 }}
        - { name: http3, containerPort: 8443, protocol: UDP }
        {{- end }}
        - { name: health, containerPort: 8081 }
        - { name: metrics, containerPort: 9901 }
      readinessProbe:
        httpGet: { path: /healthz, port: metrics }
        periodSeconds: 5
      # Not /healthz, which fails while the gateway drains.
      livenessProbe:
        tcpSocket: { port: metrics }
        failureThreshold: 6
      lifecycle:
        preStop:
          sleep: { seconds: {{ .Values.preStop }} }
      resources:
        {{- toYaml .Values.resources.gateway | nindent 8 }}
      securityContext: *restricted
      volumeMounts:
        - { name: configuration, mountPath: /etc/sealane/run }
        - { name: run, mountPath: /run/sealane }
  volumes:
    - name: base
      configMap: { name: {{ .Release.Name }}-base }
    # Private keys are in memory only.
    - name: configuration
      emptyDir: { medium: Memory, sizeLimit: 256Mi }
    - name: run
      emptyDir: { medium: Memory, sizeLimit: 16Mi }
    - name: token
      projected:
        sources:
          - serviceAccountToken: { path: token, expirationSeconds: 3600 }
          - configMap: { name: kube-root-ca.crt, items: [{ key: ca.crt, path: ca.crt }] }
          - downwardAPI: { items: [{ path: namespace, fieldRef: { fieldPath: metadata.namespace } }] }
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: topology.kubernetes.io/zone
      whenUnsatisfiable: ScheduleAnyway
      labelSelector: { matchLabels: { app.kubernetes.io/instance: {{ .Release.Name }} } }
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
