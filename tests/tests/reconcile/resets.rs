//! Resets of single clients: the objects, the sessions and the status.

use kube::ResourceExt as _;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use sluice_config::message::{ResetReport, ResetStep, Resets};
use sluice_crds::CounterReset;
use sluice_tests::components::Session;
use sluice_tests::kubernetes::TestNamespace;
use sluice_tests::wait::until;

use super::fixture::{confirm, open_session, spec, start};

const KEY: &str = "q83vEjRWeJCrze8SNFZ4kA";

fn reset(policy: &str, key: &str) -> CounterReset {
    let object = json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "CounterReset", "metadata": {"generateName": "p-"},
        "spec": {"policy": policy, "limit": "l", "key": key},
    });
    serde_json::from_value(object).unwrap()
}

/// Creates a reset and returns its name and UID.
async fn create(namespace: &TestNamespace, policy: &str) -> (String, String) {
    let created =
        namespace.api::<CounterReset>().create(&PostParams::default(), &reset(policy, KEY)).await.unwrap();
    (created.name_any(), created.uid().unwrap())
}

/// Waits until the condition `Complete` of a reset has this status and reason, and a message that begins so.
async fn wait_for(namespace: &TestNamespace, name: &str, expected: &str, message: &str) {
    let api = namespace.api::<CounterReset>();
    until(&format!("reset {name} is {expected}: {message}"), async || {
        let conditions = api.get(name).await.ok()?.status?.conditions;
        let complete = conditions.into_iter().find(|condition| condition.type_ == "Complete")?;
        let is_as_expected = format!("{} {}", complete.status, complete.reason) == expected;
        (is_as_expected && complete.message.starts_with(message)).then_some(())
    })
    .await;
}

/// Waits until a session orders this step of a reset, by the policy, the limit and the key of its object.
async fn wait_for_step(session: &mut Session, uid: &str, step: ResetStep) {
    loop {
        let resets = session.message::<Resets>("resets").await;
        let Some(order) = resets.resets.get(uid) else { continue };
        assert_eq!((order.policy.as_str(), order.limit.as_str(), order.key.as_str()), ("p", "l", KEY));
        if order.step == step {
            return;
        }
    }
}

/// Waits until a session orders no reset any more.
async fn wait_for_end(session: &mut Session) {
    while !session.message::<Resets>("resets").await.resets.is_empty() {}
}

#[tokio::test]
async fn a_reset_is_complete_when_one_pod_has_removed_the_counter_and_all_have_forgotten_the_client() {
    let (namespace, control) = start("reset").await;
    namespace.apply("p", spec(5)).await.unwrap();
    let mut sessions = Vec::new();
    for pod in ["one", "two"] {
        let mut session = open_session(&namespace, &control, pod).await;
        confirm(&mut session).await;
        sessions.push(session);
    }
    let (name, uid) = create(&namespace, "p").await;
    let message = "The counter has not been removed from the store yet.";
    wait_for(&namespace, &name, "False InProgress", message).await;
    let [one, two] = &mut sessions[..] else { unreachable!() };
    // Either pod may be the first one that is to remove the counter.
    let (chosen, other) = tokio::select! {
        () = wait_for_step(one, &uid, ResetStep::Remove) => (0, 1),
        () = wait_for_step(two, &uid, ResetStep::Remove) => (1, 0),
    };
    let failed = ResetReport::Failed { reason: "no answer".into() };
    sessions[chosen].report_resets([(uid.clone(), failed)]).await;
    wait_for(&namespace, &name, "False PodFailed", message).await;
    wait_for_step(&mut sessions[other], &uid, ResetStep::Remove).await;
    sessions[other].report_resets([(uid.clone(), ResetReport::Removed { at: 7 })]).await;
    for session in &mut sessions {
        wait_for_step(session, &uid, ResetStep::Forget { removed_at: 7 }).await;
    }
    let forgotten = [(uid.clone(), ResetReport::Forgotten { removed_at: 7 })];
    sessions[chosen].report_resets(forgotten.clone()).await;
    let message = "The counter is removed. 1 of 2 pods have forgotten the client.";
    wait_for(&namespace, &name, "False InProgress", message).await;
    sessions[other].report_resets(forgotten).await;
    let message = "The counter is removed, and 2 pods have forgotten the client.";
    wait_for(&namespace, &name, "True Complete", message).await;
    // It is over for the pods.
    wait_for_end(&mut sessions[other]).await;
}

#[tokio::test]
async fn a_reset_says_what_it_waits_for_and_ends_with_its_object() {
    let (namespace, control) = start("noreset").await;
    let (unknown, uid) = create(&namespace, "p").await;
    wait_for(&namespace, &unknown, "False PolicyNotFound", "The namespace has no such policy").await;
    namespace.apply("p", spec(5)).await.unwrap();
    wait_for(&namespace, &unknown, "False NotConnected", "No pod that enforces the policy runs.").await;
    let mut session = open_session(&namespace, &control, "one").await;
    wait_for_step(&mut session, &uid, ResetStep::Remove).await;
    namespace.api::<CounterReset>().delete(&unknown, &DeleteParams::default()).await.unwrap();
    wait_for_end(&mut session).await;
}

#[tokio::test]
async fn the_api_server_rejects_resets_of_no_key_and_changed_ones() {
    let (namespace, _) = start("badreset").await;
    let api = namespace.api::<CounterReset>();
    for key in ["", "alice", "q83vEjRWeJCrze8SNFZ4k\n", "q83vEjRWeJCrze8SNFZ4kAA", "q83vEjRWeJCrze8SNF/4kA"] {
        let error = api.create(&PostParams::default(), &reset("p", key)).await.unwrap_err().to_string();
        assert!(error.contains("spec.key"), "{key:?}: {error}");
    }
    let error = api.create(&PostParams::default(), &reset("P/p", KEY)).await.unwrap_err().to_string();
    assert!(error.contains("spec.policy"), "{error}");
    let mut changed = api.create(&PostParams::default(), &reset("p", KEY)).await.unwrap();
    changed.spec.limit = "other".into();
    let error =
        api.replace(&changed.name_any(), &PostParams::default(), &changed).await.unwrap_err().to_string();
    assert!(error.contains("a reset cannot be changed: create another one"), "{error}");
}
