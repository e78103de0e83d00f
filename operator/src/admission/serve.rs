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

async fn inject_pod(
    State(admission): State<Admission>,
    Json(review): Json<AdmissionReview<DynamicObject>>,
) -> Json<AdmissionReview<DynamicObject>> {
    let request: AdmissionRequest<DynamicObject> = match review.try_into() {
        Ok(request) => request,
        Err(error) => return Json(AdmissionResponse::invalid(error).into_review()),
    };
    let mut response = AdmissionResponse::from(&request);
    let before =
        request.object.as_ref().and_then(|object| serde_json::to_value(object).ok()).unwrap_or_default();
    let outcome = match serde_json::from_value::<Pod>(before.clone()) {
        Err(error) => {
            tracing::warn!("a pod cannot be read and gets no sidecar: {error}");
            "unreadable"
        }
        Ok(pod) => match inject(&pod, &admission.config) {
            Ok(injected) => match patch(&pod, &injected) {
                Ok(patch) => {
                    response = response.with_patch(patch).unwrap_or_else(AdmissionResponse::invalid);
                    "injected"
                }
                Err(error) => {
                    tracing::warn!("a pod gets no sidecar: {error}");
                    "unreadable"
                }
            },
            Err(skip) => {
                if let Skip::Capture(error) = &skip {
                    response.warnings = Some(vec![format!("sluice: no sidecar for this pod: {error}")]);
                }
                match skip {
                    Skip::Present => "present",
                    Skip::OptedOut => "opted-out",
                    Skip::HostNetwork => "host-network",
                    Skip::Windows => "windows",
                    Skip::Job => "job",
                    Skip::Capture(_) => "nothing-to-capture",
                }
            }
        },
    };
    admission.metrics.admission("inject", outcome);
    Json(response.into_review())
}

/// What changed. Both sides went through the same types, so that a field that these do not know is not in the patch,
/// and stays.
fn patch(before: &Pod, after: &Pod) -> serde_json::Result<json_patch::Patch> {
    Ok(json_patch::diff(&serde_json::to_value(before)?, &serde_json::to_value(after)?))
}

async fn validate_policy(
    State(admission): State<Admission>,
    Json(review): Json<AdmissionReview<DynamicObject>>,
) -> Json<AdmissionReview<DynamicObject>> {
    let request: AdmissionRequest<DynamicObject> = match review.try_into() {
        Ok(request) => request,
        Err(error) => return Json(AdmissionResponse::invalid(error).into_review()),
    };
    let mut response = AdmissionResponse::from(&request);
    let object =
        request.object.as_ref().and_then(|object| serde_json::to_value(object).ok()).unwrap_or(Value::Null);
    let verdict = judge(&object);
    admission.metrics.admission("validate", if verdict.refused.is_some() { "refused" } else { "allowed" });
    if let Some(why) = verdict.refused {
        response = response.deny(why);
    }
    if !verdict.warnings.is_empty() {
        response.warnings = Some(verdict.warnings);
    }
    Json(response.into_review())
}
