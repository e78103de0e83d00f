//! The identity of a sidecar: a projected service-account token with Sluice's audience, which the API server
//! reviews and which is tied to a pod by its UID. A token without the audience, or of a pod that no longer
//! exists, is denied.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, ObjectMeta, PostParams};
use sluice_config::TOKEN_AUDIENCE;

/// The pod of a sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    pub pod_uid: String,
    /// Labels of the pod.
    pub labels: BTreeMap<String, String>,
    /// Time at which the token expires, in seconds since the Unix epoch.
    pub expires: Option<i64>,
}

/// The reason why a sidecar is denied a session.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    /// The token is not valid.
    #[error("the token was not accepted: {0}")]
    Token(String),
    /// The pod does not exist.
    #[error("the token belongs to the pod {0}, which does not exist")]
    Pod(String),
    /// The API server could not review the token.
    #[error("the API server could not review the token: {0}")]
    Api(#[from] kube::Error),
}

/// Reviews a token and returns the pod that it belongs to.
pub async fn review(client: &kube::Client, token: &str) -> Result<Identity, Denied> {
    let review = TokenReview {
        metadata: ObjectMeta::default(),
        spec: TokenReviewSpec { audiences: Some(vec![TOKEN_AUDIENCE.into()]), token: Some(token.into()) },
        status: None,
    };
    let api: Api<TokenReview> = Api::all(client.clone());
    let status = api.create(&PostParams::default(), &review).await?.status.unwrap_or_default();
    if status.authenticated != Some(true) {
        return Err(Denied::Token(
            status.error.unwrap_or_else(|| format!("it is not valid for the audience {TOKEN_AUDIENCE}")),
        ));
    }
    // An API server without support for audiences omits them. The token then proves nothing here.
    if !status.audiences.unwrap_or_default().iter().any(|audience| audience == TOKEN_AUDIENCE) {
        return Err(Denied::Token(format!("it was reviewed without the audience {TOKEN_AUDIENCE}")));
    }
    let user = status.user.unwrap_or_default();
    let extra = |name: &str| {
        let values = user.extra.as_ref()?.get(&format!("authentication.kubernetes.io/{name}"))?;
        values.first().cloned()
    };
    let (Some(pod), Some(pod_uid)) = (extra("pod-name"), extra("pod-uid")) else {
        return Err(Denied::Token("it is not bound to a pod".into()));
    };
    let username = user.username.unwrap_or_default();
    let Some((namespace, _)) =
        username.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'))
    else {
        return Err(Denied::Token(format!("{username} is not a service account")));
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    match pods.get_metadata_opt(&pod).await? {
        Some(object) if object.uid().as_deref() == Some(&pod_uid) => Ok(Identity {
            namespace: namespace.to_owned(),
            labels: object.labels().clone(),
            expires: expiry(token),
            pod,
            pod_uid,
        }),
        _ => Err(Denied::Pod(format!("{namespace}/{pod}"))),
    }
}

/// Returns the expiry of a token. The token has been reviewed, so its claims can be trusted.
fn expiry(token: &str) -> Option<i64> {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice::<serde_json::Value>(&claims).ok()?.get("exp")?.as_i64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expiry_of_a_token_is_read_and_an_unreadable_token_has_none() {
        let token = format!("h.{}.s", URL_SAFE_NO_PAD.encode(r#"{"exp":1700000000}"#));
        assert_eq!(expiry(&token), Some(1_700_000_000));
        for nonsense in ["", "a.b", "a.!.c", "a.e30.c"] {
            assert_eq!(expiry(nonsense), None);
        }
    }
}
