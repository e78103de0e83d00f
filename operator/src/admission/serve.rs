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
use k8s_openapi::api::core::v1::Pod;
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview};
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::admission::review::Reviewer;
use crate::cluster::limit_ranges::LimitRanges;
use crate::injection::bounds::Bounds;
use crate::injection::config::InjectConfig;
use crate::injection::inject::inject;
use crate::injection::skip::Skip;
use crate::metrics::Metrics;
use crate::webhooks::probe::PROBE_NAME;

/// Maximum size of a request, in bytes. The API server sends an old and a new object of up to 3 MiB each.
const MAX_BODY: usize = 8 << 20;

/// Longest time in which the body of a request arrives. The API server waits for 5 s.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of reviews that are computed at the same time. Those whose bodies have not arrived do not count.
const MAX_REVIEWS: usize = 8;

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

/// The body of requests and responses.
type ReviewBody = Json<AdmissionReview<DynamicObject>>;

/// Reads the body of a request, and waits until it may be reviewed. Whoever sends slowly keeps no other request from its turn.
async fn read(admission: &Admission, body: Body) -> Result<(ReviewBody, OwnedSemaphorePermit), StatusCode> {
    let reading = tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, MAX_BODY));
    let bytes = match reading.await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => return Err(StatusCode::PAYLOAD_TOO_LARGE),
        Err(_) => return Err(StatusCode::REQUEST_TIMEOUT),
    };
    let permit = admission.permits.clone().acquire_owned().await;
    let permit = permit.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    let review = serde_json::from_slice(&bytes).map_err(|_| StatusCode::BAD_REQUEST)?;
    Ok((Json(review), permit))
}

/// A request with its objects in JSON, and a response that allows it.
struct Received {
    request: AdmissionRequest<DynamicObject>,
    object: Value,
    response: AdmissionResponse,
}

/// Reads a request. The error is the response to one that cannot be read.
fn receive(review: ReviewBody) -> Result<Received, Box<ReviewBody>> {
    let request: AdmissionRequest<DynamicObject> = match review.0.try_into() {
        Ok(request) => request,
        Err(error) => return Err(Box::new(Json(AdmissionResponse::invalid(error).into_review()))),
    };
    let object = json(request.object.as_ref()).unwrap_or_default();
    Ok(Received { object, response: AdmissionResponse::from(&request), request })
}

fn json(object: Option<&DynamicObject>) -> Option<Value> {
    serde_json::to_value(object?).ok()
}

async fn inject_pod(State(admission): State<Admission>, body: Body) -> Result<ReviewBody, StatusCode> {
    let (review, _permit) = read(&admission, body).await?;
    Ok(inject_reviewed(&admission, review))
}

fn inject_reviewed(admission: &Admission, review: ReviewBody) -> ReviewBody {
    let Received { request, object, mut response } = match receive(review) {
        Ok(received) => received,
        Err(invalid) => return *invalid,
    };
    let bounds = admission.limit_ranges.bounds(request.namespace.as_deref().unwrap_or_default());
    let outcome = match patch(&object, &admission.config, &bounds) {
        Ok((patch, warnings)) => {
            for warning in &warnings {
                log_pod(&object, warning);
            }
            if !warnings.is_empty() {
                response.warnings =
                    Some(warnings.iter().map(|warning| format!("sluice: {warning}")).collect());
            }
            response = response.with_patch(patch).unwrap_or_else(AdmissionResponse::invalid);
            "injected"
        }
        Err(NoPatch::Unreadable(error)) => {
            tracing::warn!("a pod gets no sidecar because it could not be read: {error}");
            "unreadable"
        }
        Err(NoPatch::Skip(skip)) => {
            if !skip.is_wanted() {
                let warning = format!("the pod gets no sidecar: {skip}");
                log_pod(&object, &warning);
                response.warnings = Some(vec![format!("sluice: {warning}")]);
            }
            skip.as_str()
        }
    };
    admission.metrics.admission("inject", outcome);
    Json(response.into_review())
}

/// Reports whether a text is a label of DNS, as the names of namespaces are.
fn is_label(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.len() <= 63 && text.bytes().all(plain)
}

/// Logs what is wrong with a new pod, which may not have a name yet.
fn log_pod(pod: &Value, problem: &str) {
    let named = |name: &str| pod["metadata"][name].as_str().unwrap_or_default().to_owned();
    tracing::info!(namespace = named("namespace"), pod = named("name") + &named("generateName"), "{problem}");
}

/// The reason why a pod is left unchanged.
enum NoPatch {
    Unreadable(serde_json::Error),
    Skip(Skip),
}

impl From<serde_json::Error> for NoPatch {
    fn from(error: serde_json::Error) -> Self {
        Self::Unreadable(error)
    }
}

/// Returns the patch that adds the sidecar to a pod. Both versions of the pod pass through the same types, so
/// fields that these types do not have are not in the patch and stay as they are. Also returns warnings.
fn patch(
    object: &Value,
    config: &InjectConfig,
    bounds: &Bounds,
) -> Result<(json_patch::Patch, Vec<String>), NoPatch> {
    let before: Pod = serde_json::from_value(object.clone())?;
    let after = inject(&before, config, bounds).map_err(NoPatch::Skip)?;
    let patch = json_patch::diff(&serde_json::to_value(before)?, &serde_json::to_value(after.pod)?);
    Ok((patch, after.warnings))
}

async fn validate_policy(State(admission): State<Admission>, body: Body) -> Result<ReviewBody, StatusCode> {
    let (review, _permit) = read(&admission, body).await?;
    Ok(validate_reviewed(&admission, review).await)
}

async fn validate_reviewed(admission: &Admission, review: ReviewBody) -> ReviewBody {
    let Received { request, object, mut response } = match receive(review) {
        Ok(received) => received,
        Err(invalid) => return *invalid,
    };
    // The API server has set both, and nothing is told about another namespace.
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    if request.namespace.as_deref() != Some(namespace) || !is_label(namespace) {
        let reason = "the namespace of the object is not the one of the request";
        return Json(response.deny(reason).into_review());
    }
    let review = admission.reviewer.review(&object, json(request.old_object.as_ref()).as_ref()).await;
    let is_probe =
        request.dry_run && object["metadata"]["generateName"].as_str().is_some_and(|name| name == PROBE_NAME);
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
    Json(response.into_review())
}
