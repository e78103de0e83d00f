//! Policies for the pods of workloads and Services.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use sluice_crds::RateLimitPolicy;
use sluice_tests::kubernetes::TestNamespace;
use sluice_tests::wait::until;

use super::fixture::{confirm, open_session, start};

/// Returns a policy for the pods of some targets.
fn spec(targets: Value) -> Value {
    json!({
        "targetRefs": targets,
        "limits": [{"name": "l", "key": {"parts": [{"clientIP": {}}]}, "rates": [{"requests": 5, "per": "1h"}]}],
    })
}

/// Returns a workload of the API group apps.
fn workload(app: &str) -> Value {
    let labels = json!({"app": app});
    let containers = json!([{"name": "app", "image": "app"}]);
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": containers}});
    json!({"spec": {"selector": {"matchLabels": labels}, "template": template}})
}

/// Waits until a policy selects these many pods.
async fn wait_for_pods(namespace: &TestNamespace, policy: &str, expected: i32) {
    let api = namespace.api::<RateLimitPolicy>();
    until(&format!("{policy} selects {expected} pods"), async || {
        let pods = api.get(policy).await.ok()?.status?.pods?;
        (pods.selected == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_policy_follows_the_workload_that_it_refers_to() {
    let (namespace, control) = start("targets").await;
    let web = json!([{"group": "apps", "kind": "Deployment", "name": "web"}]);
    namespace.apply("p", spec(web)).await.unwrap();
    let message = namespace.wait_for("p", "Ready", "False TargetNotFound").await;
    let name = &namespace.name;
    assert_eq!(
        message,
        format!(
            "Accepted: 1 of 1 target does not exist in namespace {name}: deployment/web. Create what is missing, or \
             correct spec.targetRefs. Until then, the policy applies to no pod."
        )
    );

    namespace.apply_object::<Deployment>("web", workload("a")).await;
    let message = namespace.wait_for("p", "Programmed", "False NoPods").await;
    let expected = format!(
        "deployment/web has no running pod: `kubectl -n {name} describe deployment/web` shows its events."
    );
    assert_eq!(message, expected);
    namespace.wait_for("p", "Accepted", "True Accepted").await;
    let mut session = open_session(&namespace, &control, "one").await;
    confirm(&mut session).await;
    namespace.wait_for("p", "Ready", "True Ready").await;
    // Another policy selects this pod, and this one does not.
    namespace.pod("other", true, json!({"app": "b"})).await;
    let labels = json!({
        "selector": {"matchLabels": {"app": "b"}},
        "limits": [{"name": "l", "rates": [{"requests": 5, "per": "1h"}]}],
    });
    namespace.apply("q", labels).await.unwrap();
    wait_for_pods(&namespace, "q", 1).await;
    wait_for_pods(&namespace, "p", 1).await;

    namespace.delete_pod("one").await;
    let api = namespace.api::<Deployment>();
    let zero = json!({"spec": {"replicas": 0}});
    api.patch("web", &PatchParams::default(), &Patch::Merge(&zero)).await.unwrap();
    let message = namespace.wait_for("p", "Programmed", "True ScaledToZero").await;
    assert!(message.starts_with("deployment/web is scaled to zero. "), "{message}");
    api.delete("web", &Default::default()).await.unwrap();
    namespace.wait_for("p", "Accepted", "False TargetNotFound").await;
}

#[tokio::test]
async fn a_policy_may_refer_to_every_kind_of_workload() {
    let (namespace, _control) = start("kinds").await;
    namespace.apply_object::<Deployment>("x", workload("deployment")).await;
    namespace.apply_object::<StatefulSet>("x", workload("stateful-set")).await;
    namespace.apply_object::<DaemonSet>("x", workload("daemon-set")).await;
    namespace.apply_object::<ReplicaSet>("x", workload("replica-set")).await;
    let mut job = workload("job");
    job["spec"]["manualSelector"] = json!(true);
    job["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
    namespace.apply_object::<Job>("x", job.clone()).await;
    let template = json!({"spec": {"template": job["spec"]["template"]}});
    namespace
        .apply_object::<CronJob>("x", json!({"spec": {"schedule": "0 0 1 1 *", "jobTemplate": template}}))
        .await;
    namespace.service("x", json!({"app": "service"}), json!("http")).await;
    let kinds = [
        ("Deployment", "deployment"),
        ("StatefulSet", "stateful-set"),
        ("DaemonSet", "daemon-set"),
        ("ReplicaSet", "replica-set"),
        ("Job", "job"),
        ("Service", "service"),
    ];
    let target = |kind: &str| json!([{"kind": kind, "name": "x"}]);
    for (kind, app) in kinds {
        namespace.apply(app, spec(target(kind))).await.unwrap();
        namespace.pod(app, true, json!({"app": app})).await;
    }
    namespace.apply("cron-job", spec(target("CronJob"))).await.unwrap();
    let message = namespace.wait_for("cron-job", "Programmed", "True ScaledToZero").await;
    assert!(message.starts_with("cronjob/x runs no Job. "), "{message}");
    for (_, app) in kinds {
        wait_for_pods(&namespace, app, 1).await;
    }
    let all: Vec<_> = kinds.iter().map(|(kind, _)| json!({"kind": kind, "name": "x"})).collect();
    namespace.apply("all", spec(json!(all))).await.unwrap();
    wait_for_pods(&namespace, "all", 6).await;

    // The Job that a CronJob runs, as its controller lists it.
    let labels = json!({"batch.kubernetes.io/controller-uid": "job-of-the-cron-job"});
    namespace.pod("cron-job", true, labels).await;
    let active = json!([{"kind": "Job", "name": "x-1", "uid": "job-of-the-cron-job"}]);
    let jobs: Api<CronJob> = namespace.api();
    let status = json!({"status": {"active": active}});
    jobs.patch_status("x", &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    wait_for_pods(&namespace, "cron-job", 1).await;
}

#[tokio::test]
async fn selector_and_targets_exclude_each_other() {
    let (namespace, _control) = start("either").await;
    let mut both = spec(json!([{"kind": "Deployment", "name": "web"}]));
    both["selector"] = json!({"matchLabels": {"app": "a"}});
    let error = namespace.apply("p", both).await.unwrap_err().to_string();
    assert!(error.contains("at most one of selector, targetRefs may be set"), "{error}");
    let other = spec(json!([{"group": "", "kind": "Pod", "name": "web"}]));
    let error = namespace.apply("p", other).await.unwrap_err().to_string();
    assert!(error.contains("Unsupported value: \"Pod\""), "{error}");
}
