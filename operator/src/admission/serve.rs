//! The webhook's two endpoints. Only the API server calls them; whoever else does learns nothing: an answer depends
//! on the request alone. An error never blocks a pod: what cannot be read is let through as it is.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::routing::post;
use k8s_openapi::api::core::v1::Pod;
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview};
use serde_json::Value;

use crate::admission::inject::{InjectConfig, Skip, inject};
use crate::admission::validate::judge;
use crate::metrics::Metrics;

/// The API server sends objects of up to 3 MiB, old and new.
const MAX_BODY: usize = 8 << 20;

/// What the endpoints need.
#[derive(Clone)]
struct Admission {
    config: Arc<InjectConfig>,
    metrics: Arc<Metrics>,
}

/// `POST /inject` and `POST /validate`.
pub fn router(config: InjectConfig, metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/inject", post(inject_pod))
        .route("/validate", post(validate_policy))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(Admission { config: Arc::new(config), metrics })
}

type Review = Json<AdmissionReview<DynamicObject>>;

/// Reads a review, lets `decide` answer it with what is allowed until it says otherwise, and writes it.
fn answer(review: Review, decide: impl FnOnce(&Value, AdmissionResponse) -> AdmissionResponse) -> Review {
    let request: AdmissionRequest<DynamicObject> = match review.0.try_into() {
        Ok(request) => request,
        Err(error) => return Json(AdmissionResponse::invalid(error).into_review()),
    };
    let object =
        request.object.as_ref().and_then(|object| serde_json::to_value(object).ok()).unwrap_or_default();
    Json(decide(&object, AdmissionResponse::from(&request)).into_review())
}

async fn inject_pod(State(admission): State<Admission>, review: Review) -> Review {
    answer(review, |object, mut response| {
        let outcome = match with_sidecar(object, &admission.config) {
            Ok(patch) => {
                response = response.with_patch(patch).unwrap_or_else(AdmissionResponse::invalid);
                "injected"
            }
            Err(Without::Unreadable(error)) => {
                tracing::warn!("a pod gets no sidecar: {error}");
                "unreadable"
            }
            Err(Without::Skip(skip)) => {
                if let Skip::Capture(error) = &skip {
                    let named = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
                    tracing::info!(
                        namespace = named("namespace"),
                        pod = named("name") + &named("generateName"),
                        "no sidecar for this pod: {error}"
                    );
                    response.warnings = Some(vec![format!("sluice: no sidecar for this pod: {error}")]);
                }
                skip.as_str()
            }
        };
        admission.metrics.admission("inject", outcome);
        response
    })
}

/// Why a pod stays as it is.
enum Without {
    Unreadable(serde_json::Error),
    Skip(Skip),
}

impl From<serde_json::Error> for Without {
    fn from(error: serde_json::Error) -> Self {
        Self::Unreadable(error)
    }
}

/// What changes with a sidecar. Both sides go through the same types, so that a field that these do not know is not
/// in the patch, and stays.
fn with_sidecar(object: &Value, config: &InjectConfig) -> Result<json_patch::Patch, Without> {
    let before: Pod = serde_json::from_value(object.clone())?;
    let after = inject(&before, config).map_err(Without::Skip)?;
    Ok(json_patch::diff(&serde_json::to_value(before)?, &serde_json::to_value(after)?))
}

async fn validate_policy(State(admission): State<Admission>, review: Review) -> Review {
    answer(review, |object, mut response| {
        let verdict = judge(object);
        let outcome = if verdict.refused.is_some() { "refused" } else { "allowed" };
        admission.metrics.admission("validate", outcome);
        if let Some(why) = verdict.refused {
            response = response.deny(why);
        }
        if !verdict.warnings.is_empty() {
            response.warnings = Some(verdict.warnings);
        }
        response
    })
}
