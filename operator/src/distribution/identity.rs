//! The identity of a sidecar, or of a pod of the service: a projected service-account token with Sluice's audience, which is
//! tied to a pod by its UID. A token without the audience is denied, and so is that of a pod that no longer exists or has no
//! sidecar. A label that opts a pod out applies to the next pod: a sidecar that runs keeps its session.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::api::{Api, ObjectMeta, PostParams};
use sluice_config::TOKEN_AUDIENCE;
use sluice_crds::SIDECAR_CONTAINER;
use sluice_crds::policy::Enforcer;
use sluice_host::logging::told;

use crate::cluster::pods::Pods;
use crate::cluster::pods::pod::{Labels, Pod};
use crate::service_account::ServiceAccount;

/// The pod of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Enforces policies there.
    pub enforcer: Enforcer,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    pub pod_uid: String,
    /// Labels of the pod.
    pub labels: Labels,
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
    /// The pod has no sidecar, and is none of the service.
    #[error("the pod {0} has no container `{SIDECAR_CONTAINER}`")]
    NoSidecar(String),
    /// The API server could not review the token.
    #[error("the API server could not review the token: {}", told(.0))]
    Api(#[from] kube::Error),
    /// The API server did not respond in time.
    #[error("the API server did not respond in time")]
    Slow,
}

/// The pod that a valid token names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenClaims {
    pub(super) namespace: String,
    pub(super) service_account: String,
    pub(super) pod: String,
    pub(super) pod_uid: String,
    /// Time at which the token expires, in seconds since the Unix epoch.
    pub(super) expires: Option<i64>,
}

/// Lets the API server review a token.
pub(super) async fn review(client: &kube::Client, token: &str) -> Result<TokenClaims, Denied> {
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
    let Some((namespace, service_account)) =
        username.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'))
    else {
        return Err(Denied::Token(format!("{username} is not a service account")));
    };
    let (namespace, service_account) = (namespace.to_owned(), service_account.to_owned());
    Ok(TokenClaims { namespace, service_account, pod, pod_uid, expires: expiry(token) })
}

/// Finds the pod of a valid token in the table of pods. A pod that the table does not have yet is read. Only a pod with a
/// sidecar has a session, and one of the service.
pub(super) async fn find_pod(
    pods: &Pods,
    service: Option<&ServiceAccount>,
    claims: TokenClaims,
) -> Result<Identity, Denied> {
    let name = || format!("{}/{}", claims.namespace, claims.pod);
    let found = match pods.get(&claims.namespace, &claims.pod_uid) {
        Some(pod) => {
            let facts = pods.facts(&claims.namespace, std::slice::from_ref(&pod)).await?;
            facts.into_iter().flatten().next().map(|facts| (pod, facts))
        }
        None => pods.read_unreported(&claims.namespace, &claims.pod).await?,
    };
    // As the API server, which no longer accepts the tokens of a pod that should have ended a minute ago.
    let now = Timestamp::now().as_second();
    let lives = |pod: &Pod| pod.ends.is_none_or(|ends| now < ends.as_second() + 60);
    let found = found.filter(|(pod, _)| pod.uid == claims.pod_uid && pod.name == claims.pod && lives(pod));
    let Some((pod, facts)) = found else {
        return Err(Denied::Pod(name()));
    };
    let enforcer = match service {
        Some(service)
            if service.namespace == claims.namespace
                && service.name == claims.service_account
                && service.has_pod(&pod.namespace, &pod.labels) =>
        {
            Enforcer::Service
        }
        _ if facts.injected => Enforcer::Sidecar,
        _ => return Err(Denied::NoSidecar(name())),
    };
    Ok(Identity {
        enforcer,
        namespace: claims.namespace,
        labels: pod.labels.clone(),
        expires: claims.expires,
        pod: claims.pod,
        pod_uid: claims.pod_uid,
    })
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
