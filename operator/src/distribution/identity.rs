//! Who asks for a stream: a projected service-account token with Sluice's audience, reviewed by the API server, tied
//! to a pod by its UID. A token without the audience, of another pod, or of a pod that is gone, gets nothing.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, ObjectMeta, PostParams};
use sluice_config::TOKEN_AUDIENCE;

/// A sidecar, known by its pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub pod_uid: String,
    /// The pod's labels.
    pub labels: BTreeMap<String, String>,
    /// When the token ends, in seconds since the Unix epoch.
    pub expires: Option<i64>,
}

/// Why somebody gets no stream.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    /// The token is not good.
    #[error("the token is not accepted: {0}")]
    Token(String),
    /// The pod is not there.
    #[error("the token is of the pod {0}, which is not there")]
    Pod(String),
    /// The API server cannot say.
    #[error("the API server cannot review the token: {0}")]
    Api(#[from] kube::Error),
}

/// Reviews a token.
pub async fn review(client: &kube::Client, token: &str) -> Result<Identity, Denied> {
    let review = TokenReview {
        metadata: ObjectMeta::default(),
        spec: TokenReviewSpec { audiences: Some(vec![TOKEN_AUDIENCE.into()]), token: Some(token.into()) },
        status: None,
    };
    let api: Api<TokenReview> = Api::all(client.clone());
    let status = api.create(&PostParams::default(), &review).await?.status.unwrap_or_default();
    if status.authenticated != Some(true) {
        return Err(Denied::Token(status.error.unwrap_or_else(|| "it is not valid for sluice.dev".into())));
    }
    // An API server that knows no audiences would leave them out: then the token proves nothing here.
    if !status.audiences.unwrap_or_default().iter().any(|audience| audience == TOKEN_AUDIENCE) {
        return Err(Denied::Token(format!("it is not for the audience {TOKEN_AUDIENCE}")));
    }
    let user = status.user.unwrap_or_default();
    let extra = |name: &str| {
        let values = user.extra.as_ref()?.get(&format!("authentication.kubernetes.io/{name}"))?;
        values.first().cloned()
    };
    let (Some(pod), Some(pod_uid)) = (extra("pod-name"), extra("pod-uid")) else {
        return Err(Denied::Token("it is bound to no pod".into()));
    };
    let name = user.username.unwrap_or_default();
    let Some((namespace, _)) =
        name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'))
    else {
        return Err(Denied::Token(format!("{name} is no service account")));
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

/// When a token ends. It was reviewed, so that its claims are the API server's own.
fn expiry(token: &str) -> Option<i64> {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice::<serde_json::Value>(&claims).ok()?.get("exp")?.as_i64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_s_end_is_read_and_nonsense_has_none() {
        let token = format!("h.{}.s", URL_SAFE_NO_PAD.encode(r#"{"exp":1700000000}"#));
        assert_eq!(expiry(&token), Some(1_700_000_000));
        for nonsense in ["", "a.b", "a.!.c", "a.e30.c"] {
            assert_eq!(expiry(nonsense), None);
        }
    }
}
