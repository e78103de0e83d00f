//! The two endpoints of the webhook. They are meant for the API server and do not authenticate callers: a
//! response tells only what the request contains, and how many policies and limits the namespace of the policy has. Nothing that a
//! request contains is written anywhere but into the response and the log. An error never blocks a pod; a pod that cannot be read is
//! admitted unchanged. A policy is validated as by `sluice check`.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Extension, Json, Router};
use bytes::Bytes;
use http_body_util::LengthLimitError;
use k8s_openapi::api::core::v1::Pod;
use kube::core::admission::{AdmissionResponse, AdmissionReview};
use kube::core::{DynamicObject, ObjectMeta, Status, TypeMeta};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use sluice_crds::{Installation, Violation, compile};
use sluice_host::serve::choice::network;
use sluice_host::serve::turns::{Turn, Turns};
use sluice_host::serve::{BodyError, Peer, cause};
use tokio::time::Instant;

use crate::admission::read::{POLICY, Parts};
use crate::args::Quotas;
use crate::cluster::namespaces::LimitRanges;
use crate::injection::config::InjectConfig;
use crate::injection::decide;
use crate::injection::inject::{Injected, inject};
use crate::metrics::Metrics;
use crate::names::StoreKey;
use crate::store::resolve::{Resolved, StoreRules};
use crate::webhooks::keep::PROBE_NAME;

#[cfg(test)]
mod tests;

/// Maximum size of a request, in bytes. The API server sends an old and a new object of up to 3 MiB each.
const MAX_BODY: usize = 8 << 20;

/// Longest error about a pod in a warning, in characters.
const MAX_ERROR: usize = 256;
/// Longest time for which a review waits for its turn. The API server waits for 5 s.
const WAIT: Duration = Duration::from_secs(4);
/// Memory of the reviews that are computed at the same time, and of those that wait for that, in bytes.
const CAPACITY: usize = 120 << 20;
const ROOM: usize = 4 << 30;
/// Memory of a review, in bytes: so many times its body, and what becomes of its parts. Those of small bodies are small.
const BODY_FACTOR: usize = 4;
const POD_BYTES: usize = 8 << 20;
const POLICY_BYTES: usize = 44 << 20;
const PARTS_FACTOR: usize = 1000;

/// The parts of a pod.
pub(super) const POD: Parts = Parts { cost: decide::cost_of_part, most: decide::MOST_PARTS };

#[derive(Clone)]
struct Admission {
    config: Arc<InjectConfig>,
    limit_ranges: LimitRanges,
    reviewer: Arc<Reviewer>,
    metrics: Arc<Metrics>,
    turns: Turns<IpAddr>,
}

/// Returns the routes `POST /inject` and `POST /validate`.
pub fn router(
    config: Arc<InjectConfig>,
    limit_ranges: LimitRanges,
    reviewer: Reviewer,
    metrics: Arc<Metrics>,
) -> Router {
    Router::new().route("/inject", post(inject_pod)).route("/validate", post(validate_policy)).with_state(
        Admission {
            config,
            limit_ranges,
            reviewer: Arc::new(reviewer),
            metrics,
            turns: Turns::new(CAPACITY, ROOM),
        },
    )
}

/// The body of a response.
type ReviewBody = Json<AdmissionReview<DynamicObject>>;

/// The body of a request, as far as it is read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReceivedReview<'a> {
    api_version: String,
    kind: String,
    #[serde(borrow)]
    request: Request<'a>,
}

/// A request. Its objects are read later, and only if they are needed.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    uid: String,
    namespace: Option<String>,
    #[serde(default)]
    dry_run: bool,
    #[serde(borrow)]
    object: Option<&'a RawValue>,
    #[serde(borrow)]
    old_object: Option<&'a RawValue>,
}

impl Request<'_> {
    /// Reads parts of the object.
    fn read(&self, parts: Parts) -> serde_json::Result<Value> {
        parts.read(self.object.map_or("null", RawValue::get))
    }

    /// Reports whether the object has the spec that it had. The API server writes both in the same form.
    fn keeps_spec(&self) -> bool {
        #[derive(Deserialize)]
        struct Object<'a> {
            #[serde(borrow)]
            spec: &'a RawValue,
        }
        fn spec(object: Option<&RawValue>) -> Option<&str> {
            let object: Object<'_> = serde_json::from_str(object?.get()).ok()?;
            Some(object.spec.get())
        }
        let old = spec(self.old_object);
        old.is_some() && old == spec(self.object)
    }
}

/// A body, and the turn to review it.
type Turned = (Bytes, Turn<IpAddr>);

/// Reads the body of a request, and waits for its turn. Its parts become at most so many bytes. Whoever sends slowly keeps no other
/// request from its turn, and the address that sends the most waits the longest.
async fn read(
    admission: &Admission,
    peer: Option<Extension<Peer>>,
    body: Body,
    parts: usize,
) -> Result<Turned, (StatusCode, String)> {
    let bytes = to_bytes(body, MAX_BODY).await.map_err(|error| {
        let status = if cause::<LengthLimitError>(&error).is_some() {
            StatusCode::PAYLOAD_TOO_LARGE
        } else if let Some(BodyError::NoRoom(_)) = cause(&error) {
            StatusCode::SERVICE_UNAVAILABLE
        } else {
            StatusCode::REQUEST_TIMEOUT
        };
        (status, format!("the operator of Sluice did not receive the review: {error}\n"))
    })?;
    let memory = bytes.len() * BODY_FACTOR + parts.min(bytes.len() * PARTS_FACTOR);
    let address = peer.map_or(Ipv4Addr::LOCALHOST.into(), |Extension(Peer(peer))| network(peer.ip()));
    match admission.turns.turn(&address, memory, Instant::now() + WAIT).await {
        Ok(turn) => Ok((bytes, turn)),
        Err(error) => {
            let text = format!("the operator of Sluice is too busy to review this: {error}. Try again\n");
            Err((StatusCode::SERVICE_UNAVAILABLE, text))
        }
    }
}

/// Reads a request, and makes a response that allows it.
fn receive(body: &[u8]) -> serde_json::Result<(Request<'_>, AdmissionResponse)> {
    let mut review: ReceivedReview<'_> = serde_json::from_slice(body)?;
    let mut response = AdmissionResponse::invalid("");
    response.types = TypeMeta { api_version: review.api_version, kind: review.kind };
    response.uid = std::mem::take(&mut review.request.uid);
    response.allowed = true;
    response.result = Status::default();
    Ok((review.request, response))
}

async fn inject_pod(
    State(admission): State<Admission>,
    peer: Option<Extension<Peer>>,
    body: Body,
) -> Result<ReviewBody, (StatusCode, String)> {
    let (body, _turn) = read(&admission, peer, body, POD_BYTES).await?;
    inject_reviewed(&admission, &body).map_err(|error| no_review(&error))
}

/// Says that a body is no review.
fn no_review(error: &serde_json::Error) -> (StatusCode, String) {
    (StatusCode::BAD_REQUEST, format!("this is no AdmissionReview: {error}\n"))
}

fn inject_reviewed(admission: &Admission, body: &[u8]) -> serde_json::Result<ReviewBody> {
    let (request, mut response) = receive(body)?;
    let bounds = admission.limit_ranges.bounds(request.namespace.as_deref().unwrap_or_default());
    let pod: Pod = match request.read(POD).and_then(serde_json::from_value) {
        Ok(pod) => pod,
        Err(error) => {
            // A text of the pod may be in it.
            let error: String = error.to_string().chars().take(MAX_ERROR).collect();
            tracing::warn!("a pod gets no sidecar because it could not be read: {error}");
            response.warnings =
                Some(vec![format!("sluice: the pod gets no sidecar: it could not be read: {error}")]);
            admission.metrics.admission("inject", "unreadable");
            return Ok(Json(response.into_review()));
        }
    };
    let outcome = match inject(&pod, &admission.config, &bounds) {
        Ok(Injected { patch, warnings, outcome }) => {
            for warning in &warnings {
                log_pod(&pod.metadata, warning);
            }
            if !warnings.is_empty() {
                response.warnings =
                    Some(warnings.iter().map(|warning| format!("sluice: {warning}")).collect());
            }
            response = response.with_patch(patch).unwrap_or_else(AdmissionResponse::invalid);
            outcome
        }
        Err(skip) => {
            if !skip.is_wanted() {
                let warning = format!("the pod gets no sidecar: {skip}");
                log_pod(&pod.metadata, &warning);
                response.warnings = Some(vec![format!("sluice: {warning}")]);
            }
            skip.as_str()
        }
    };
    admission.metrics.admission("inject", outcome);
    Ok(Json(response.into_review()))
}

/// Reports whether a text is a label of DNS, as the names of namespaces are.
fn is_label(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.len() <= 63 && text.bytes().all(plain)
}

/// Logs what is wrong with a new pod, which may not have a name yet.
fn log_pod(pod: &ObjectMeta, problem: &str) {
    let name = pod.name.as_ref().or(pod.generate_name.as_ref());
    tracing::info!(namespace = pod.namespace, pod = name, "{problem}");
}

async fn validate_policy(
    State(admission): State<Admission>,
    peer: Option<Extension<Peer>>,
    body: Body,
) -> Result<ReviewBody, (StatusCode, String)> {
    let (body, _turn) = read(&admission, peer, body, POLICY_BYTES).await?;
    validate_reviewed(&admission, &body).await.map_err(|error| no_review(&error))
}

async fn validate_reviewed(admission: &Admission, body: &[u8]) -> serde_json::Result<ReviewBody> {
    let (request, mut response) = receive(body)?;
    let (mut review, is_probe) = match request.read(POLICY) {
        Ok(object) => {
            let metadata = &object["metadata"];
            // The API server has set both, and nothing is told about another namespace.
            let namespace = metadata["namespace"].as_str().unwrap_or_default();
            if request.namespace.as_deref() != Some(namespace) || !is_label(namespace) {
                let reason = "the namespace of the object is not the one of the request";
                return Ok(Json(response.deny(reason).into_review()));
            }
            let is_probe = request.dry_run && metadata["generateName"] == PROBE_NAME;
            (admission.reviewer.review(object, request.old_object).await, is_probe)
        }
        Err(error) => (Reviewed { rejection: Some(error.to_string()), warnings: Vec::new() }, false),
    };
    // Otherwise nobody could delete an object with finalizers, or label it, that is not valid any more.
    if let Some(reason) = review.rejection.take_if(|_| request.keeps_spec()) {
        review.warnings.push(format!("this object is admitted only because its spec is as before: {reason}"));
    }
    let outcome = match &review.rejection {
        Some(_) if is_probe => "probe",
        Some(_) => "refused",
        None => "allowed",
    };
    admission.metrics.admission("validate", outcome);
    if let Some(reason) = review.rejection {
        response = response.deny(reason);
    }
    if !review.warnings.is_empty() {
        response.warnings = Some(review.warnings);
    }
    Ok(Json(response.into_review()))
}

/// Maximum number of violations, or warnings, in one response.
const MAX_LINES: usize = 20;

/// The result of reviewing a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reviewed {
    /// The violations of an invalid policy as one text, or the quota that it exceeds; `None` if it is admitted.
    pub rejection: Option<String>,
    /// Warnings about settings that are valid but probably wrong.
    pub warnings: Vec<String>,
}

/// Reviews policies: what they say, and whether there is room for them. Reviews stores: what they say, and whether
/// their namespace may have them.
#[derive(Clone, Default)]
pub struct Reviewer {
    /// The settings of the installation.
    pub installation: Installation,
    /// The quotas, and access to the cluster. `None` checks no quotas.
    pub quotas: Option<(Quotas, kube::Client)>,
    /// Which stores the installation has. `None` reviews no stores.
    pub stores: Option<StoreRules>,
}

impl Reviewer {
    /// Reviews an object, and the text of its last edit if there is one.
    pub async fn review(&self, object: Value, old: Option<&RawValue>) -> Reviewed {
        match object["kind"].as_str() {
            Some("RateLimitStore") => self.review_store(&object),
            _ => self.review_policy(object, old).await,
        }
    }

    fn review_store(&self, object: &Value) -> Reviewed {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let key = StoreKey::new(text("namespace"), text("name"));
        let rejection = match self.stores.as_ref().map(|rules| rules.compile(&key, object)) {
            Some(Err(Resolved::Invalid(violations))) => Some(lines(&violations).join("; ")),
            Some(Err(_)) => Some(
                "namespaces have no stores of their own in this installation: ask the administrators of Sluice for the \
                 chart value tenantStores.enabled"
                    .to_owned(),
            ),
            Some(Ok(_)) | None => None,
        };
        Reviewed { rejection, warnings: Vec::new() }
    }

    async fn review_policy(&self, object: Value, old: Option<&RawValue>) -> Reviewed {
        let compiled = compile(&object, &self.installation);
        // Before the last edit is read: either may be large.
        drop(object);
        let compiled = match compiled {
            Ok(compiled) => compiled,
            Err(violations) => {
                return Reviewed { rejection: Some(lines(&violations).join("; ")), warnings: Vec::new() };
            }
        };
        let rejection = match &self.quotas {
            Some((quotas, client)) => {
                let old = old.map(|old| POLICY.read(old.get()).unwrap_or_default());
                quotas.refusal(client, &self.installation, &compiled, old).await
            }
            None => None,
        };
        Reviewed { rejection, warnings: lines(&compiled.warnings) }
    }
}

fn lines(violations: &[Violation]) -> Vec<String> {
    let mut lines: Vec<_> = violations.iter().take(MAX_LINES).map(ToString::to_string).collect();
    if violations.len() > MAX_LINES {
        lines.push(format!("and {} more", violations.len() - MAX_LINES));
    }
    lines
}
