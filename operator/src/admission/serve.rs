//! The two endpoints of the webhook. They are meant for the API server and do not authenticate callers: a
//! response depends on the request alone, so it reveals nothing. An error never blocks a pod; a pod that
//! cannot be read is admitted unchanged.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::routing::post;
use k8s_openapi::api::core::v1::Pod;
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview};
use serde_json::Value;
use sluice_crds::Installation;

use crate::admission::config::InjectConfig;
use crate::admission::inject::{Skip, inject};
use crate::admission::review::review;
use crate::metrics::Metrics;

/// Maximum size of a request, in bytes. The API server sends an old and a new object of up to 3 MiB each.
const MAX_BODY: usize = 8 << 20;

#[derive(Clone)]
struct Admission {
    config: Arc<InjectConfig>,
    installation: Arc<Installation>,
    metrics: Arc<Metrics>,
}

/// Returns the routes `POST /inject` and `POST /validate`.
pub fn router(config: InjectConfig, installation: Installation, metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/inject", post(inject_pod))
        .route("/validate", post(validate_policy))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(Admission { config: Arc::new(config), installation: Arc::new(installation), metrics })
}

/// The body of requests and responses.
type ReviewBody = Json<AdmissionReview<DynamicObject>>;

/// Reads a review and returns it with the response that `decide` makes from the object and a response that
/// allows it.
fn respond(
    review: ReviewBody,
    decide: impl FnOnce(&Value, AdmissionResponse) -> AdmissionResponse,
) -> ReviewBody {
    let request: AdmissionRequest<DynamicObject> = match review.0.try_into() {
        Ok(request) => request,
        Err(error) => return Json(AdmissionResponse::invalid(error).into_review()),
    };
    let object =
        request.object.as_ref().and_then(|object| serde_json::to_value(object).ok()).unwrap_or_default();
    Json(decide(&object, AdmissionResponse::from(&request)).into_review())
}

async fn inject_pod(State(admission): State<Admission>, review: ReviewBody) -> ReviewBody {
    respond(review, |object, mut response| {
        let outcome = match patch(object, &admission.config) {
            Ok(patch) => {
                response = response.with_patch(patch).unwrap_or_else(AdmissionResponse::invalid);
                "injected"
            }
            Err(NoPatch::Unreadable(error)) => {
                tracing::warn!("a pod gets no sidecar because it could not be read: {error}");
                "unreadable"
            }
            Err(NoPatch::Skip(skip)) => {
                if let Skip::Capture(error) = &skip {
                    let named = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
                    tracing::info!(
                        namespace = named("namespace"),
                        pod = named("name") + &named("generateName"),
                        "the pod gets no sidecar: {error}"
                    );
                    response.warnings = Some(vec![format!("sluice: the pod gets no sidecar: {error}")]);
                }
                skip.as_str()
            }
        };
        admission.metrics.admission("inject", outcome);
        response
    })
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
/// fields that these types do not have are not in the patch and stay as they are.
fn patch(object: &Value, config: &InjectConfig) -> Result<json_patch::Patch, NoPatch> {
    let before: Pod = serde_json::from_value(object.clone())?;
    let after = inject(&before, config).map_err(NoPatch::Skip)?;
    Ok(json_patch::diff(&serde_json::to_value(before)?, &serde_json::to_value(after)?))
}

async fn validate_policy(State(admission): State<Admission>, body: ReviewBody) -> ReviewBody {
    respond(body, |object, mut response| {
        let review = review(object, &admission.installation);
        let outcome = if review.rejection.is_some() { "refused" } else { "allowed" };
        admission.metrics.admission("validate", outcome);
        if let Some(reason) = review.rejection {
            response = response.deny(reason);
        }
        if !review.warnings.is_empty() {
            response.warnings = Some(review.warnings);
        }
        response
    })
}
