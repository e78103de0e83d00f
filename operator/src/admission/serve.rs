//! The two endpoints of the webhook. They are meant for the API server and do not authenticate callers: a
//! response tells only what the request contains, and how many policies and limits the namespace of the policy has. Nothing that a
//! request contains is written anywhere but into the response and the log. An error never blocks a pod; a pod that cannot be read is
//! admitted unchanged.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use bytes::Bytes;
use k8s_openapi::api::core::v1::Pod;
use kube::core::admission::{AdmissionResponse, AdmissionReview};
use kube::core::{DynamicObject, ObjectMeta, Status, TypeMeta};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::admission::read::{POLICY, Parts};
use crate::admission::review::Reviewer;
use crate::cluster::limit_ranges::LimitRanges;
use crate::injection::config::InjectConfig;
use crate::injection::inject::{Injected, inject};
use crate::injection::parts;
use crate::metrics::Metrics;
use crate::webhooks::probe::PROBE_NAME;

/// Maximum size of a request, in bytes. The API server sends an old and a new object of up to 3 MiB each.
const MAX_BODY: usize = 8 << 20;

/// Longest time in which the body of a request arrives. The API server waits for 5 s.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of reviews that are computed at the same time. Those whose bodies have not arrived do not count.
const MAX_REVIEWS: usize = 8;

/// The parts of a pod.
pub(super) const POD: Parts = Parts { cost: parts::cost, most: parts::MOST };

#[derive(Clone)]
struct Admission {
    config: Arc<InjectConfig>,
    limit_ranges: LimitRanges,
    reviewer: Arc<Reviewer>,
    metrics: Arc<Metrics>,
    permits: Arc<Semaphore>,
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
            permits: Arc::new(Semaphore::new(MAX_REVIEWS)),
        },
    )
}

/// The body of a response.
type ReviewBody = Json<AdmissionReview<DynamicObject>>;

/// The body of a request, as far as it is read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
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
}

/// Reads the body of a request, and waits until it may be reviewed. Whoever sends slowly keeps no other request from its turn.
async fn read(admission: &Admission, body: Body) -> Result<(Bytes, OwnedSemaphorePermit), StatusCode> {
    let reading = tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, MAX_BODY));
    let bytes = match reading.await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => return Err(StatusCode::PAYLOAD_TOO_LARGE),
        Err(_) => return Err(StatusCode::REQUEST_TIMEOUT),
    };
    let permit = admission.permits.clone().acquire_owned().await;
    let permit = permit.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    Ok((bytes, permit))
}

/// Reads a request, and makes a response that allows it.
fn receive(body: &[u8]) -> Result<(Request<'_>, AdmissionResponse), StatusCode> {
    let mut review: Review<'_> = serde_json::from_slice(body).map_err(|_| StatusCode::BAD_REQUEST)?;
    let mut response = AdmissionResponse::invalid("");
    response.types = TypeMeta { api_version: review.api_version, kind: review.kind };
    response.uid = std::mem::take(&mut review.request.uid);
    response.allowed = true;
    response.result = Status::default();
    Ok((review.request, response))
}

async fn inject_pod(State(admission): State<Admission>, body: Body) -> Result<ReviewBody, StatusCode> {
    let (body, _permit) = read(&admission, body).await?;
    inject_reviewed(&admission, &body)
}

fn inject_reviewed(admission: &Admission, body: &[u8]) -> Result<ReviewBody, StatusCode> {
    let (request, mut response) = receive(body)?;
    let bounds = admission.limit_ranges.bounds(request.namespace.as_deref().unwrap_or_default());
    let pod: Pod = match request.read(POD).and_then(serde_json::from_value) {
        Ok(pod) => pod,
        Err(error) => {
            tracing::warn!("a pod gets no sidecar because it could not be read: {error}");
            admission.metrics.admission("inject", "unreadable");
            return Ok(Json(response.into_review()));
        }
    };
    let outcome = match inject(&pod, &admission.config, &bounds) {
        Ok(Injected { patch, warnings }) => {
            for warning in &warnings {
                log_pod(&pod.metadata, warning);
            }
            if !warnings.is_empty() {
                response.warnings =
                    Some(warnings.iter().map(|warning| format!("sluice: {warning}")).collect());
            }
            response = response.with_patch(patch).unwrap_or_else(AdmissionResponse::invalid);
            "injected"
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

async fn validate_policy(State(admission): State<Admission>, body: Body) -> Result<ReviewBody, StatusCode> {
    let (body, _permit) = read(&admission, body).await?;
    validate_reviewed(&admission, &body).await
}

async fn validate_reviewed(admission: &Admission, body: &[u8]) -> Result<ReviewBody, StatusCode> {
    let (request, mut response) = receive(body)?;
    let object = match request.read(POLICY) {
        Ok(object) => object,
        Err(error) => return Ok(Json(response.deny(error).into_review())),
    };
    // The API server has set both, and nothing is told about another namespace.
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    if request.namespace.as_deref() != Some(namespace) || !is_label(namespace) {
        let reason = "the namespace of the object is not the one of the request";
        return Ok(Json(response.deny(reason).into_review()));
    }
    let is_probe =
        request.dry_run && object["metadata"]["generateName"].as_str().is_some_and(|name| name == PROBE_NAME);
    let review = admission.reviewer.review(object, request.old_object).await;
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
