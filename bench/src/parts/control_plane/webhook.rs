//! Pods are created through the webhook: 50 a second, among policies of their namespace. Each call opens a connection of its
//! own, which the API server would keep.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use sluice_tests::components::ControlClient;

use super::fleet::Fleet;
use super::single;
use super::watched::Watched;
use crate::report::row::{Aim, Row};
use crate::report::verification::Verification;

const POLICIES: usize = 10;
/// Pods that are created, one every [`EVERY`]: 50 a second.
const PODS: u32 = 1_000;
const EVERY: Duration = Duration::from_millis(20);

/// Measures the rows of this part.
pub(crate) async fn measure() -> anyhow::Result<Vec<Row>> {
    let fleet = Fleet::create(1, POLICIES).await?;
    let operator = fleet.start_operator().await;
    let webhook = ControlClient::new(&operator.webhook_url, operator.ca_file());
    let namespace = &fleet.namespaces[0].name;
    send(&webhook, namespace, 0).await?;
    let watched = Watched::begin()?;
    let start = Instant::now();
    // As those of the API server, the calls do not wait for each other.
    let calls = (1..=PODS).map(|number| {
        let (webhook, namespace) = (webhook.clone(), namespace.clone());
        tokio::spawn(async move {
            let due = start + EVERY * number;
            tokio::time::sleep_until(due.into()).await;
            let sent = Instant::now();
            send(&webhook, &namespace, number).await?;
            anyhow::Ok(sent.elapsed())
        })
    });
    let mut times = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        times.push(call.await??);
    }
    times.sort_unstable();
    let p99 = times.get(times.len() * 99 / 100).context("there were no pods")?.as_secs_f64() * 1e3;
    let what = |what: &str| format!("50 pods a second are created in a namespace with 10 policies: {what}");
    let none = Verification::default();
    let row = Row::single(what("99 % of the webhook's answers within"), "ms", p99, &none);
    println!("webhook: {p99:.2} ms");
    Ok(vec![
        row.with_aim(Aim::AtMost(10.0)),
        single(&what("CPU time of the operator for each"), "ms", watched.cpu_ms()? / f64::from(PODS)),
    ])
}

/// Lets the webhook inject a sidecar into a pod.
async fn send(webhook: &ControlClient, namespace: &str, number: u32) -> anyhow::Result<()> {
    let name = format!("web-{number}");
    let pod = json!({
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": "a"}},
        "spec": {"containers": [{"name": "web", "image": "web", "ports": [{"name": "http", "containerPort": 8080}]}]},
    });
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": name, "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE", "userInfo": {}, "object": pod, "namespace": namespace, "name": name,
        },
    });
    let request =
        Request::post("/inject").header("host", "webhook").header("content-type", "application/json");
    let response = webhook.send(request.body(Full::new(Bytes::from(review.to_string())))?).await;
    let answer: Value = serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?;
    ensure!(answer["response"]["patch"].is_array(), "the webhook did not inject a sidecar: {answer}");
    Ok(())
}
