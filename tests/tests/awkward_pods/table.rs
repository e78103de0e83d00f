//! Pods as people write them, and what becomes of each.

use serde_json::{Value, json};

/// The outcome that is expected of a pod in a namespace with injection.
#[derive(Debug, Clone, Copy)]
pub enum Expected {
    /// It gets a sidecar.
    Injected,
    /// It gets a sidecar, and a warning with this text.
    Warned(&'static str),
    /// It gets none, and the reason has this text.
    Skipped(&'static str),
}

/// A pod, and the LimitRange of its namespace.
pub struct Case {
    pub name: &'static str,
    pub limits: Value,
    pub metadata: Value,
    pub spec: Value,
    pub expected: Expected,
}

use Expected::{Injected, Skipped, Warned};

fn http(number: u16) -> Value {
    json!([{"name": "http", "containerPort": number}])
}

fn app(extra: Value) -> Value {
    let mut app = json!({"name": "app", "image": "app", "ports": http(8080)});
    app.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    app
}

fn helper(ports: Value) -> Value {
    json!({"name": "helper", "image": "helper", "restartPolicy": "Always", "ports": ports})
}

fn with(extra: Value) -> Value {
    json!({"containers": [app(extra)]})
}

fn amounts(cpu: &str, memory: &str) -> Value {
    json!({"cpu": cpu, "memory": memory})
}

fn resources(request: Value, limit: Value) -> Value {
    json!({"resources": {"requests": request, "limits": limit}})
}

fn small() -> Value {
    resources(amounts("50m", "64Mi"), amounts("200m", "128Mi"))
}

fn container_range(range: Value) -> Value {
    typed("Container", range)
}

fn pod_range(range: Value) -> Value {
    typed("Pod", range)
}

fn typed(kind: &str, mut range: Value) -> Value {
    range["type"] = json!(kind);
    json!([range])
}

/// Returns all cases.
pub fn cases() -> Vec<Case> {
    [ports(), resources_of_pods(), bounds(), platforms(), others()].into_iter().flatten().collect()
}

fn case(name: &'static str, spec: Value, expected: Expected) -> Case {
    Case { name, limits: json!(null), metadata: json!({}), spec, expected }
}

fn bounded(name: &'static str, limits: Value, spec: Value, expected: Expected) -> Case {
    Case { limits, ..case(name, spec, expected) }
}

fn annotated(name: &'static str, annotations: Value, spec: Value, expected: Expected) -> Case {
    Case { metadata: json!({"annotations": annotations}), ..case(name, spec, expected) }
}

fn ports() -> Vec<Case> {
    let init = |init: Value, app: Value| json!({"containers": [app], "initContainers": [init]});
    let other = |name: &str, ports: Value| json!({"name": name, "image": "other", "ports": ports});
    let two = |one: Value, two: Value| json!({"containers": [one, two]});
    vec![
        case("a port named http", with(json!({})), Injected),
        case(
            "a native sidecar with the same name",
            init(helper(http(9000)), app(json!({}))),
            Skipped("containers app and helper both have a port named \"http\""),
        ),
        case(
            "a native sidecar alone has the name",
            init(helper(http(9000)), app(json!({"ports": [{"containerPort": 8080}]}))),
            Injected,
        ),
        case(
            "a native sidecar with another name",
            init(helper(json!([{"name": "metrics", "containerPort": 9000}])), app(json!({}))),
            Injected,
        ),
        case(
            "a native sidecar on 8790",
            init(helper(json!([{"containerPort": 8790}])), app(json!({}))),
            Injected,
        ),
        case(
            "an init container with the same name",
            init(json!({"name": "setup", "image": "setup", "ports": http(9000)}), app(json!({}))),
            Injected,
        ),
        case(
            "two containers with the same name",
            two(app(json!({})), other("other", http(9000))),
            Skipped("containers app and other both have a port named \"http\""),
        ),
        case(
            "a mesh as a native sidecar",
            init(
                json!({"name": "istio-proxy", "image": "istio", "restartPolicy": "Always", "ports": [{"name": "http-envoy-prom", "containerPort": 15090}]}),
                app(json!({})),
            ),
            Injected,
        ),
        case("no port", with(json!({"ports": []})), Skipped("no container has a named TCP port")),
        case(
            "a port of UDP named http",
            with(json!({"ports": [{"name": "http", "containerPort": 8080, "protocol": "UDP"}]})),
            Skipped("no container has a named TCP port"),
        ),
        case("an application on 8790", with(json!({"ports": http(8790)})), Injected),
        case("an application on 8791", with(json!({"ports": http(8791)})), Injected),
        case("an application on 8792", with(json!({"ports": http(8792)})), Injected),
        case("an application on 8793", with(json!({"ports": http(8793)})), Skipped("uses port 8793")),
        case(
            "another container on 8790 and 8791",
            two(app(json!({})), other("other", json!([{"containerPort": 8790}, {"containerPort": 8791}]))),
            Injected,
        ),
        case(
            "a port of the host",
            with(json!({"ports": [{"name": "http", "containerPort": 8080, "hostPort": 18080}]})),
            Injected,
        ),
        annotated(
            "a port named twice in the annotation",
            json!({"sluice.dev/ports": "http, http"}),
            with(json!({})),
            Injected,
        ),
        annotated(
            "a native sidecar's port in the annotation",
            json!({"sluice.dev/ports": "metrics"}),
            init(helper(json!([{"name": "metrics", "containerPort": 9000}])), app(json!({}))),
            Injected,
        ),
        case(
            "probes and handlers by name",
            with(json!({
                "readinessProbe": {"httpGet": {"path": "/", "port": "http"}},
                "livenessProbe": {"tcpSocket": {"port": "http"}},
                "startupProbe": {"httpGet": {"path": "/", "port": "http"}},
                "lifecycle": {"preStop": {"httpGet": {"path": "/stop", "port": "http"}}, "postStart": {"tcpSocket": {"port": "http"}}},
            })),
            Injected,
        ),
    ]
}

fn resources_of_pods() -> Vec<Case> {
    let of_pod =
        |of_pod: Value, container: Value| json!({"containers": [app(container)], "resources": of_pod});
    let requests = |cpu: &str, memory: &str| json!({"resources": {"requests": amounts(cpu, memory)}});
    vec![
        case(
            "requests of the pod equal to the containers'",
            of_pod(json!({"requests": amounts("100m", "64Mi")}), requests("100m", "64Mi")),
            Injected,
        ),
        case("limits of the pod", of_pod(json!({"limits": amounts("500m", "256Mi")}), json!({})), Injected),
        case(
            "limits of the pod below a sidecar's",
            of_pod(json!({"limits": {"cpu": "100m", "memory": "64Mi"}}), json!({})),
            Injected,
        ),
        case(
            "requests and limits of the pod",
            of_pod(
                json!({"requests": amounts("0.1", "64Mi"), "limits": amounts("1", "1e9")}),
                requests("100m", "64Mi"),
            ),
            Injected,
        ),
        case(
            "equal requests and limits of the pod",
            of_pod(
                json!({"requests": amounts("500m", "256Mi"), "limits": amounts("0.5", "256Mi")}),
                json!({}),
            ),
            Injected,
        ),
        case(
            "only the memory of the pod",
            of_pod(json!({"limits": {"memory": "256Mi"}}), requests("100m", "64Mi")),
            Injected,
        ),
        case("limits of the pod alone", of_pod(json!({"limits": amounts("4", "8Gi")}), json!({})), Injected),
        case(
            "limits of the pod, and requests of a container",
            of_pod(json!({"limits": amounts("4", "8Gi")}), requests("100m", "64Mi")),
            Injected,
        ),
        case(
            "limits of the pod equal to a container's requests",
            of_pod(json!({"limits": amounts("100m", "64Mi")}), requests("100m", "64Mi")),
            Injected,
        ),
        case(
            "limits of the pod, and a request of CPU",
            of_pod(json!({"limits": amounts("4", "8Gi")}), json!({"resources": {"requests": {"cpu": "1"}}})),
            Injected,
        ),
        case(
            "limits of the pod and of a container",
            of_pod(
                json!({"limits": amounts("4", "8Gi")}),
                json!({"resources": {"limits": amounts("100m", "64Mi")}}),
            ),
            Injected,
        ),
        case(
            "limits and a request of the pod",
            of_pod(json!({"limits": amounts("4", "8Gi"), "requests": {"cpu": "1"}}), json!({})),
            Injected,
        ),
        case(
            "requests of the pod alone",
            of_pod(json!({"requests": amounts("4", "8Gi")}), json!({})),
            Injected,
        ),
        case(
            "requests of the pod, and equal limits of a container",
            of_pod(
                json!({"requests": amounts("4", "8Gi")}),
                json!({"resources": {"limits": amounts("4", "8Gi")}}),
            ),
            Injected,
        ),
        case(
            "requests of the pod, and limits of a container above its requests",
            of_pod(
                json!({"requests": amounts("4", "8Gi")}),
                resources(amounts("100m", "64Mi"), amounts("4", "8Gi")),
            ),
            Injected,
        ),
        case(
            "limits of the pod below an init container's requests",
            json!({
                "containers": [app(requests("100m", "64Mi"))],
                "initContainers": [{"name": "setup", "image": "setup", "resources": {"requests": amounts("1", "1Gi")}}],
                "resources": {"limits": amounts("1", "1Gi")},
            }),
            Injected,
        ),
        case(
            "a Guaranteed pod",
            with(resources(amounts("500m", "256Mi"), amounts("500m", "256Mi"))),
            Injected,
        ),
        case(
            "a Guaranteed pod with whole CPUs",
            with(resources(amounts("2", "1Gi"), amounts("2", "1Gi"))),
            Injected,
        ),
        case(
            "a Guaranteed pod by its limits alone",
            with(json!({"resources": {"limits": amounts("1", "1Gi")}})),
            Injected,
        ),
        annotated(
            "a Guaranteed pod with an annotation for a whole CPU",
            json!({"sluice.dev/cpu-limit": "2"}),
            with(resources(amounts("2", "1Gi"), amounts("2", "1Gi"))),
            Warned("sluice.dev/cpu-limit"),
        ),
        case(
            "a pod that is resized in place",
            with(
                json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}], "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}}}),
            ),
            Injected,
        ),
        annotated(
            "a pod that a VPA has changed",
            json!({"vpaUpdates": "Pod resources updated by web: container 0: cpu request, memory request", "vpaObservedContainers": "app"}),
            with(resources(amounts("587m", "262144k"), amounts("1174m", "524288k"))),
            Injected,
        ),
        case(
            "other resources",
            with(
                json!({"resources": {"requests": {"ephemeral-storage": "1Gi", "example.com/gpu": "1"}, "limits": {"ephemeral-storage": "2Gi", "example.com/gpu": "1"}}}),
            ),
            Injected,
        ),
    ]
}

fn bounds() -> Vec<Case> {
    vec![
        bounded("max 500m CPU", container_range(json!({"max": {"cpu": "500m"}})), with(small()), Injected),
        bounded(
            "max 5e2m CPU as an exponent",
            container_range(json!({"max": {"cpu": "5e-1"}})),
            with(small()),
            Injected,
        ),
        bounded(
            "max 100m CPU and 64Mi",
            container_range(
                json!({"max": amounts("100m", "64Mi"), "default": amounts("100m", "64Mi"), "defaultRequest": amounts("50m", "32Mi")}),
            ),
            with(json!({})),
            Injected,
        ),
        bounded(
            "max 50m CPU",
            container_range(json!({"max": {"cpu": "50m"}})),
            with(json!({})),
            Skipped("leave no room"),
        ),
        bounded(
            "max 32Mi",
            container_range(json!({"max": {"memory": "32Mi"}})),
            with(json!({})),
            Skipped("leave no room"),
        ),
        bounded(
            "min 50m CPU and 100Mi",
            container_range(json!({"min": amounts("50m", "100Mi")})),
            with(resources(amounts("50m", "100Mi"), amounts("1", "200Mi"))),
            Injected,
        ),
        bounded(
            "min 2 CPU",
            container_range(json!({"min": {"cpu": "2"}})),
            with(resources(json!({"cpu": "2"}), json!({"cpu": "3"}))),
            Injected,
        ),
        bounded(
            "ratio 4",
            container_range(json!({"maxLimitRequestRatio": {"cpu": "4", "memory": "2"}})),
            with(small()),
            Injected,
        ),
        bounded(
            "ratio 1",
            container_range(json!({"maxLimitRequestRatio": {"cpu": "1", "memory": "1"}})),
            with(resources(amounts("300m", "128Mi"), amounts("300m", "128Mi"))),
            Injected,
        ),
        bounded(
            "defaults",
            container_range(
                json!({"default": amounts("300m", "200Mi"), "defaultRequest": amounts("100m", "100Mi")}),
            ),
            with(json!({})),
            Injected,
        ),
        bounded(
            "max of ephemeral storage",
            container_range(json!({"max": {"ephemeral-storage": "1Gi"}})),
            with(json!({})),
            Injected,
        ),
        bounded(
            "pod max with room",
            pod_range(json!({"max": amounts("500m", "256Mi")})),
            with(small()),
            Injected,
        ),
        bounded(
            "pod max without room",
            pod_range(json!({"max": amounts("250m", "1Gi")})),
            with(small()),
            Skipped("leave no room"),
        ),
        bounded(
            "pod max with resources of the pod",
            pod_range(json!({"max": amounts("700m", "512Mi")})),
            json!({"containers": [app(json!({}))], "resources": {"requests": amounts("100m", "64Mi"), "limits": amounts("500m", "256Mi")}}),
            Injected,
        ),
        bounded(
            "pod min",
            pod_range(json!({"min": amounts("2", "1Gi")})),
            with(resources(amounts("2", "1Gi"), amounts("2500m", "2Gi"))),
            Injected,
        ),
        bounded(
            "pod ratio 4",
            pod_range(json!({"maxLimitRequestRatio": {"cpu": "4"}})),
            with(small()),
            Injected,
        ),
        bounded(
            "a Guaranteed pod under a max",
            container_range(json!({"max": amounts("150m", "100Mi")})),
            with(resources(amounts("150m", "100Mi"), amounts("150m", "100Mi"))),
            Injected,
        ),
        Case {
            metadata: json!({"annotations": {"sluice.dev/memory-limit": "1Gi"}}),
            ..bounded(
                "an annotation beyond the max",
                container_range(json!({"max": {"memory": "256Mi"}})),
                with(small()),
                Warned("sluice.dev/memory-limit"),
            )
        },
    ]
}

fn platforms() -> Vec<Case> {
    let windows = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/os", "operator": "In", "values": ["windows"]}]}]}}});
    let also = |extra: Value| {
        let mut spec = with(json!({}));
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        spec
    };
    vec![
        case(
            "Windows by its operating system",
            also(json!({"os": {"name": "windows"}})),
            Skipped("runs on Windows"),
        ),
        case(
            "Windows by a node selector",
            also(json!({"nodeSelector": {"kubernetes.io/os": "windows"}})),
            Skipped("runs on Windows"),
        ),
        case("Windows by affinity", also(json!({"affinity": windows})), Skipped("runs on Windows")),
        case(
            "Windows by its options",
            also(json!({"securityContext": {"windowsOptions": {"runAsUserName": "ContainerUser"}}})),
            Skipped("runs on Windows"),
        ),
        case(
            "the host's network",
            also(
                json!({"hostNetwork": true, "containers": [app(json!({"ports": [{"name": "http", "containerPort": 8080, "hostPort": 8080}]}))]}),
            ),
            Skipped("network of its host"),
        ),
        annotated(
            "a mirror pod",
            json!({"kubernetes.io/config.mirror": "a", "kubernetes.io/config.hash": "a"}),
            also(json!({"nodeName": "node"})),
            Skipped("kubelet made it from a file"),
        ),
        case("the DNS of the node", also(json!({"dnsPolicy": "Default"})), Warned("dnsPolicy Default")),
        case(
            "a DNS of its own",
            also(json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.53"]}})),
            Warned("dnsPolicy None"),
        ),
        case("a short grace period", also(json!({"terminationGracePeriodSeconds": 1})), Injected),
        case("no grace period", also(json!({"terminationGracePeriodSeconds": 0})), Injected),
    ]
}

fn others() -> Vec<Case> {
    let two = |other: Value| json!({"containers": [app(json!({})), other]});
    vec![
        case(
            "a container of the user named sluice-sidecar",
            two(json!({"name": "sluice-sidecar", "image": "mine"})),
            Skipped("is named sluice-sidecar"),
        ),
        case(
            "a volume of the user named sluice-state",
            json!({
                "containers": [app(json!({"volumeMounts": [{"name": "sluice-state", "mountPath": "/data"}]}))],
                "volumes": [{"name": "sluice-state", "emptyDir": {}}],
            }),
            Skipped("volume of its own named sluice-state"),
        ),
        case(
            "strict security",
            json!({
                "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "fsGroup": 2000, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [app(json!({"securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}}}))],
            }),
            Injected,
        ),
        case(
            "shared processes, gates, spreading and overhead",
            json!({
                "shareProcessNamespace": true,
                "schedulingGates": [{"name": "example.com/gate"}],
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
                "readinessGates": [{"conditionType": "example.com/ready"}],
                "containers": [app(json!({"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]}))],
            }),
            Injected,
        ),
        case(
            "a pod that runs once",
            json!({"restartPolicy": "Never", "containers": [app(json!({}))]}),
            Injected,
        ),
    ]
}
