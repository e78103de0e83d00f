//! The identity of a sidecar, or of a pod of the service: a projected service-account token with Sluice's audience, which is
//! tied to a pod by its UID. A token without the audience is denied, and so is that of a pod that no longer exists or has no
//! sidecar. A label that opts a pod out applies to the next pod: a sidecar that runs keeps its session.
//!
//! A token that the public keys of the API server decide about needs no token review: strangers cannot make the API server work, and
//! pods do not wait for each other. Undecided are tokens of a key or an issuer that the API server does not publish, and all tokens
//! while its keys cannot be had. These are reviewed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{AlgorithmFamily, DecodingKey, Validation, decode, decode_header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::api::{Api, ObjectMeta, PostParams};
use serde_json::Value;
use serde_json::value::RawValue;
use sluice_config::TOKEN_AUDIENCE;
use sluice_config::message::TokenKeys;
use sluice_crds::SIDECAR_CONTAINER;
use sluice_crds::policy::Enforcer;
use sluice_host::logging::told;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::cluster::pods::Pods;
use crate::cluster::pods::pod::Pod;
use crate::distribution::hub::Hub;
use crate::distribution::session::Identity;
use crate::locks::lock;
use crate::names::ServiceAccount;

#[cfg(test)]
pub(super) mod token_keys_tests;

#[cfg(test)]
mod identity_tests;

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
    serde_json::from_slice::<Value>(&claims).ok()?.get("exp")?.as_i64()
}

const JWKS_PATH: &str = "/openid/v1/jwks";
const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";
/// Age after which keys are fetched again: a key that the API server has withdrawn proves nothing for longer.
const MAX_AGE: Duration = Duration::from_secs(300);
/// Minimum interval between two requests for the keys. A stranger can name any key.
const MIN_INTERVAL: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which the service's keys are read.
const PUBLISH_EVERY: Duration = Duration::from_secs(60);
/// Difference between the clocks of the API server and the operator, in seconds.
const LEEWAY: u64 = 10;

/// The verdict of the keys about a token.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is valid.
    Valid(TokenClaims),
    /// It is not valid, with the reason.
    Invalid(String),
    /// The keys do not decide.
    Undecided,
}

/// The keys of the API server, fetched when they are needed.
pub(super) struct ApiServerKeys {
    client: kube::Client,
    state: Mutex<KeyState>,
    /// One request for the keys at a time.
    fetching: Semaphore,
}

#[derive(Default)]
struct KeyState {
    /// The keys, and the time at which they were fetched.
    keys: Option<(Arc<Keys>, Instant)>,
    /// Time of the last request for the keys.
    tried: Option<Instant>,
}

impl KeyState {
    /// Returns the keys if they can decide about a token of the key `id`, or cannot be fetched again yet.
    fn keys(&self, id: &str) -> Option<Option<Arc<Keys>>> {
        let fresh = self.keys.as_ref().filter(|(_, fetched)| fetched.elapsed() < MAX_AGE);
        let keys = fresh.map(|(keys, _)| keys.clone());
        let is_known = keys.as_ref().is_some_and(|keys| keys.by_id.contains_key(id));
        let tried_recently = self.tried.is_some_and(|tried| tried.elapsed() < MIN_INTERVAL);
        (is_known || tried_recently).then_some(keys)
    }
}

/// The keys, and the issuer whose tokens they sign.
struct Keys {
    /// As they are passed on.
    published: TokenKeys,
    issuer: String,
    by_id: HashMap<String, DecodingKey>,
}

impl ApiServerKeys {
    pub(super) fn new(client: kube::Client) -> Self {
        Self { client, state: Mutex::default(), fetching: Semaphore::new(1) }
    }

    /// Decides about a token.
    pub(super) async fn verify(&self, token: &str) -> Verdict {
        let id = match decode_header(token) {
            Ok(header) => header.kid,
            Err(error) => return Verdict::Invalid(format!("it is not a JSON Web Token: {error}")),
        };
        let Some(id) = id else { return Verdict::Undecided };
        match self.keys(&id).await {
            Some(keys) => keys.verify(&id, token),
            None => Verdict::Undecided,
        }
    }

    async fn keys(&self, id: &str) -> Option<Arc<Keys>> {
        if let Some(keys) = lock(&self.state).keys(id) {
            return keys;
        }
        let _permit = self.fetching.acquire().await.ok()?;
        // Another caller may have fetched them meanwhile.
        if let Some(keys) = lock(&self.state).keys(id) {
            return keys;
        }
        let fetched = timeout(TIMEOUT, self.fetch()).await;
        let fetched = fetched.map_err(|_| format!("no response within {TIMEOUT:?}")).and_then(|keys| keys);
        let keys = fetched
            .inspect_err(|error| {
                tracing::warn!(error, "cannot read the API server's token keys, tokens are reviewed");
            })
            .ok()
            .map(Arc::new);
        let mut state = lock(&self.state);
        let now = Instant::now();
        state.tried = Some(now);
        // After a failure the old keys serve until they are too old.
        if let Some(keys) = keys {
            state.keys = Some((keys, now));
        }
        state.keys(id).flatten()
    }

    /// Passes the keys on to the service, again and again: tokens of an issuer's old keys must be refused in the end. Never returns.
    pub(super) async fn publish(self: Arc<Self>, hub: Arc<Hub>) {
        loop {
            match timeout(TIMEOUT, self.fetch()).await {
                Ok(Ok(keys)) => hub.set_token_keys(keys.published),
                Ok(Err(error)) => {
                    tracing::warn!(error, "cannot read the API server's token keys for the service");
                }
                Err(_) => tracing::warn!("no response to the request for the API server's token keys"),
            }
            tokio::time::sleep(PUBLISH_EVERY).await;
        }
    }

    async fn fetch(&self) -> Result<Keys, String> {
        let discovery: Value = self.get(DISCOVERY_PATH).await?;
        let issuer =
            discovery["issuer"].as_str().ok_or_else(|| format!("{DISCOVERY_PATH} names no issuer"))?;
        let jwks: Box<RawValue> = self.get(JWKS_PATH).await?;
        Keys::new(issuer.to_owned(), jwks.get())
    }

    async fn get<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let request = axum::http::Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
        self.client.request(request).await.map_err(|error| format!("{path}: {}", told(&error)))
    }
}

impl Keys {
    /// Leaves out keys of a kind that is not supported: their tokens are reviewed.
    fn new(issuer: String, jwks: &str) -> Result<Self, String> {
        let set: JwkSet = serde_json::from_str(jwks).map_err(|error| format!("{JWKS_PATH}: {error}"))?;
        let published = TokenKeys { issuer: issuer.clone(), jwks: jwks.to_owned() };
        let key = |jwk: &Jwk| {
            let key = DecodingKey::from_jwk(jwk).ok()?;
            // A shared secret is no public key.
            let is_public = key.family() != AlgorithmFamily::Hmac;
            Some((jwk.common.key_id.clone()?, is_public.then_some(key)?))
        };
        Ok(Self { published, issuer, by_id: set.keys.iter().filter_map(key).collect() })
    }

    fn verify(&self, id: &str, token: &str) -> Verdict {
        let Some(key) = self.by_id.get(id) else { return Verdict::Undecided };
        let mut validation = Validation::new_for_family(key.family());
        validation.leeway = LEEWAY;
        validation.validate_nbf = true;
        validation.set_audience(&[TOKEN_AUDIENCE]);
        validation.set_issuer(&[&self.issuer]);
        validation.set_required_spec_claims(&["exp", "aud", "iss"]);
        let claims = match decode::<Value>(token, key, &validation) {
            Ok(decoded) => decoded.claims,
            // The API server may accept several issuers, and publishes the first. Its clock may differ.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::InvalidIssuer | ErrorKind::ImmatureSignature | ErrorKind::ExpiredSignature
                ) =>
            {
                return Verdict::Undecided;
            }
            Err(error) if matches!(error.kind(), ErrorKind::InvalidAudience) => {
                return Verdict::Invalid(format!("it is not valid for the audience {TOKEN_AUDIENCE}"));
            }
            Err(error) => return Verdict::Invalid(error.to_string()),
        };
        let text = |path: &str| Some(claims.pointer(path)?.as_str()?.to_owned());
        let bound = || {
            Some(TokenClaims {
                namespace: text("/kubernetes.io/namespace")?,
                service_account: text("/kubernetes.io/serviceaccount/name").unwrap_or_default(),
                pod: text("/kubernetes.io/pod/name")?,
                pod_uid: text("/kubernetes.io/pod/uid")?,
                expires: Some(claims["exp"].as_i64()?),
            })
        };
        bound().map_or_else(|| Verdict::Invalid("it is not bound to a pod".into()), Verdict::Valid)
    }
}
