//! Objects that were stored before they were reviewed, or that are not valid any more.

use kube::ResourceExt as _;
use serde_json::json;
use sluice_crds::RateLimitPolicy;
use sluice_tests::kubernetes::ControlPlane;
use sluice_tests::wait::until;

use super::fixture::{invalid_spec, review_policies, start};

#[tokio::test]
async fn a_policy_that_is_not_valid_any_more_can_be_labelled_and_deleted_but_not_edited() {
    let (namespace, _control) = start("review").await;
    namespace.apply("p", invalid_spec()).await.unwrap();
    let plane = ControlPlane::shared().await;
    let patch = |patch: &serde_json::Value| {
        let mut kubectl = plane.kubectl();
        kubectl.args([
            "--namespace",
            &namespace.name,
            "patch",
            "ratelimitpolicy",
            "p",
            "--type=merge",
            "--patch",
        ]);
        let output = kubectl.arg(patch.to_string()).output().unwrap();
        (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let finalizers = |finalizers: &[&str]| patch(&json!({"metadata": {"finalizers": finalizers}}));
    assert!(finalizers(&["example.com/wait"]).0);
    review_policies(&namespace).await;
    until("the API server calls the webhook", async || {
        // One that was created before would not be refused again: its spec does not change.
        namespace
            .apply(&format!("other-{:x}", rand::random::<u32>()), invalid_spec())
            .await
            .err()
            .filter(|error| error.to_string().contains("9000h"))
    })
    .await;

    let (is_labelled, text) = patch(&json!({"metadata": {"labels": {"team": "shop"}}}));
    let warning =
        "Warning: this object is admitted only because its spec is as before: spec.limits[0].rates[0].per";
    assert!(is_labelled && text.contains(warning), "{text}");
    let (is_edited, text) = patch(&json!({"spec": {"mode": "Shadow"}}));
    assert!(!is_edited && text.contains("9000h"), "{text}");

    // The garbage collector, Argo CD and the end of a namespace remove finalizers in this way.
    let api = namespace.api::<RateLimitPolicy>();
    let deleted = api.delete("p", &kube::api::DeleteParams::foreground()).await.unwrap();
    assert!(deleted.left().is_some_and(|policy| policy.finalizers().len() == 2));
    let (is_edited, text) = patch(&json!({"spec": {"mode": "Shadow"}}));
    assert!(!is_edited, "a finalizer is no way past the review: {text}");
    let (is_released, text) = finalizers(&[]);
    assert!(is_released, "{text}");
    assert!(api.get_opt("p").await.unwrap().is_none());
}
