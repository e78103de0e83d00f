//! Workloads with sidecars on a real node: Jobs end, probes succeed, and rollouts lose no request.

use serde_json::{Value, json};
use sluice_tests::client::{get, get_many};
use sluice_tests::node::{Load, Shop, apply, has_native_sidecars, install, kubectl, run};
use sluice_tests::process::repository_root;
use sluice_tests::wait::until;

/// Returns the pods of a Job with one container, which has the port `http`.
fn batch_pods(container: &Value) -> Value {
    let mut app = json!({
        "name": "app",
        "image": "sluice.local/toolbox:test",
        "ports": [{"name": "http", "containerPort": 8080}],
    });
    app.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    json!({"spec": {"restartPolicy": "Never", "containers": [app]}})
}

/// Expects that a Job completes without a sidecar, which an ordinary container would keep it from, and is told why.
async fn assert_jobs_get_no_sidecar(namespace: &str) {
    let _shop = Shop::open(namespace);
    // Events are about the pods of policies.
    let policy = json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "RateLimitPolicy",
        "metadata": {"name": "p", "namespace": namespace},
        "spec": {
            "targetRefs": [{"kind": "Job", "name": "export"}],
            "limits": [{"name": "all", "rates": [{"requests": 5, "per": "1m"}]}],
        },
    });
    apply(&policy.to_string());
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "export", "namespace": namespace},
        "spec": {"backoffLimit": 0, "template": batch_pods(&json!({"args": ["sleep", "15s"]}))},
    });
    apply(&job.to_string());
    until("an event says why", async || {
        let query = format!(
            "-n {namespace} get events --field-selector reason=NotInjected -o jsonpath={{.items[*].message}}"
        );
        kubectl(&query).contains("it belongs to a Job").then_some(())
    })
    .await;
    kubectl(&format!("-n {namespace} wait --for=condition=Complete job/export --timeout=180s"));
}

/// Expects that the only pod of a Job had a sidecar, and that all its containers ended with exit code 0.
fn assert_pod_succeeded(namespace: &str, job: &str) {
    let pods = kubectl(&format!("-n {namespace} get pods -l batch.kubernetes.io/job-name={job} -o json"));
    let pods: Value = serde_json::from_str(&pods).unwrap();
    assert_eq!(pods["items"].as_array().unwrap().len(), 1, "{pods}");
    let status = &pods["items"][0]["status"];
    assert_eq!(status["phase"], "Succeeded", "{status}");
    let ended = |kind: &str| {
        let container = &status[kind][0];
        assert_eq!(
            (&container["state"]["terminated"]["exitCode"], &container["restartCount"]),
            (&json!(0), &json!(0)),
            "{status}"
        );
        container["name"].as_str().unwrap().to_owned()
    };
    assert_eq!([ended("initContainerStatuses"), ended("containerStatuses")], ["sluice-sidecar", "app"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn e2e_a_job_with_a_sidecar_is_limited_and_completes() {
    install();
    if !has_native_sidecars() {
        return assert_jobs_get_no_sidecar("job").await;
    }
    let shop = Shop::open("job");
    // The application ends after six requests. Denied requests do not reach it.
    let pods = batch_pods(&json!({"args": ["serve"], "env": [{"name": "REQUESTS", "value": "6"}]}));
    let job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "export", "namespace": "job"},
        "spec": {"backoffLimit": 0, "template": pods},
    });
    apply(&job.to_string());
    shop.limit_workload("p", "Job", "export", 5);
    kubectl("-n job wait --for=condition=Ready pod -l batch.kubernetes.io/job-name=export --timeout=180s");
    shop.wait_for("p", "Ready", "True Ready").await;
    let pod = kubectl("-n job get pods -o jsonpath={.items[0].status.podIP}:8790");
    let tally = get_many(&pod, 8, 4, &[("x-client", "alice")]).await;
    assert_eq!((tally.count(200), tally.count(429)), (5, 3), "{tally:?}");
    assert_eq!(get(&pod, "/", &[("x-client", "bob")]).await.status, 200);

    kubectl("-n job wait --for=condition=Complete job/export --timeout=180s");
    assert_eq!(kubectl("-n job get job export -o jsonpath={.status.succeeded}"), "1");
    assert_pod_succeeded("job", "export");
    shop.wait_for("p", "Programmed", "True ScaledToZero").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e2e_a_cron_job_with_sidecars_completes() {
    install();
    if !has_native_sidecars() {
        return;
    }
    let shop = Shop::open("cron-job");
    let cron_job = json!({
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "report", "namespace": "cron-job"},
        "spec": {
            "schedule": "* * * * *",
            "jobTemplate": {"spec": {"backoffLimit": 0, "template": batch_pods(&json!({"args": ["sleep", "2s"]}))}},
        },
    });
    apply(&cron_job.to_string());
    shop.limit_workload("p", "CronJob", "report", 5);
    until("a Job of the CronJob has completed", async || {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let last = kubectl("-n cron-job get cronjob report -o jsonpath={.status.lastSuccessfulTime}");
        (!last.is_empty()).then_some(())
    })
    .await;
    let (_, text) = run("kubectl", &["-n", "cron-job", "get", "jobs", "-o", "json"], "");
    let jobs: Value = serde_json::from_str(&text).unwrap();
    let jobs = jobs["items"].as_array().unwrap();
    let job = jobs.iter().find(|job| job["status"]["succeeded"] == 1).expect("a Job that has completed");
    assert_pod_succeeded("cron-job", job["metadata"]["name"].as_str().unwrap());
    kubectl("-n cron-job patch cronjob report -p {\"spec\":{\"suspend\":true}}");
    shop.wait_for("p", "Programmed", "True ScaledToZero").await;
}

/// Each probe refers to the captured port by its name, and fails at the first response that is not a success.
#[tokio::test(flavor = "multi_thread")]
async fn e2e_probes_succeed_while_a_policy_denies_every_request() {
    install();
    let shop = Shop::open("probes");
    apply(
        "
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: nothing, namespace: probes}
spec:
  selector: {matchLabels: {app: web}}
  limits: [{name: all, rates: [{requests: 0, per: 1h}]}]
",
    );
    shop.deploy_with("web", 2, |pods| {
        let probe = |path: &str| {
            json!({
                "httpGet": {"path": path, "port": "http"},
                "periodSeconds": 1,
                "timeoutSeconds": 30,
                "failureThreshold": 1,
            })
        };
        let container = &mut pods["containers"][0];
        container["livenessProbe"] = probe("/liveness");
        container["readinessProbe"] = probe("/readiness");
        container["startupProbe"] = probe("/startup");
        // The application may need longer to start than to respond.
        container["startupProbe"]["failureThreshold"] = json!(60);
    });
    shop.wait_for("nothing", "Ready", "True Ready").await;
    let address = shop.address("web");
    let denied = get_many(&address, 20, 4, &[]).await;
    assert_eq!(denied.count(429), 20, "{denied:?}");
    // No request of a client reaches the application, so it has only counted probes.
    for pod in shop.pod_addresses("web") {
        until(&format!("{pod} has been probed"), async || {
            let probes = get(&format!("{pod}:8080"), "/count", &[]).await.body;
            (probes.trim().parse::<u32>().ok()? >= 12).then_some(())
        })
        .await;
    }
    let denied = get_many(&address, 20, 4, &[]).await;
    assert_eq!(denied.count(429), 20, "{denied:?}");
    let state = "{.items[*].status.containerStatuses[*]['ready','restartCount']}";
    // Without native sidecars, the sidecar is one of the containers.
    let state = kubectl(&format!("-n probes get pods -o jsonpath={state}"));
    assert!(state.starts_with("true true"), "{state}");
    assert!(state.split(' ').all(|word| word == "true" || word == "0"), "{state}");
}

#[tokio::test(flavor = "multi_thread")]
async fn e2e_a_rollout_under_load_loses_no_request() {
    install();
    let shop = Shop::open("rollout");
    shop.deploy("web", 2);
    let load = Load::start(&shop.address("web"));
    shop.restart("web").await;
    let tally = load.stop().await;
    assert_eq!(tally.by_status.keys().collect::<Vec<_>>(), [&200], "{tally:?}");
}

/// The application does not finish the requests that it has when it is told to stop.
#[tokio::test(flavor = "multi_thread")]
async fn e2e_a_rollout_of_an_application_that_exits_at_once_loses_no_request_and_admits_n() {
    const N: usize = 5000;
    install();
    let shop = Shop::open("exits");
    shop.deploy_with("web", 2, |pods| {
        pods["containers"][0]["env"] = json!([{"name": "DRAIN", "value": "none"}]);
    });
    shop.limit_in_all("p", "web", N);
    shop.wait_for("p", "Ready", "True Ready").await;
    let load = Load::start(&shop.address("web"));
    shop.restart("web").await;
    shop.wait_for("p", "Ready", "True Ready").await;
    load.expect_exactly(N).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e2e_the_quick_start_admits_five_of_seven_requests() {
    install();
    let manifests = std::fs::read_to_string(repository_root().join("examples/quickstart.yaml")).unwrap();
    // The nodes reach no registry, but have an echo server.
    let image = "registry.k8s.io/e2e-test-images/agnhost:2.53";
    assert!(manifests.contains(image));
    let manifests = manifests.replace(image, "sluice.local/toolbox:test");
    apply(&manifests.replace("[netexec, --http-port=8080]", "[serve]"));
    // It is ready with the first pods, before all of them exist.
    kubectl("-n quickstart rollout status deployment/hello --timeout=180s");
    until("the policy is ready in all pods", async || {
        let policy = kubectl("-n quickstart get ratelimitpolicies.sluice.dev hello --no-headers");
        let columns: Vec<&str> = policy.split_whitespace().collect();
        (columns[..4] == ["hello", "True", "True", "3/3"]).then_some(())
    })
    .await;
    let address = kubectl("-n quickstart get service hello -o jsonpath={.spec.clusterIP}:80");
    let mut statuses = Vec::new();
    for _ in 0..7 {
        statuses.push(get(&address, "/", &[("x-api-key", "me")]).await.status);
    }
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429]);
    kubectl("delete namespace quickstart --wait=false");
}
