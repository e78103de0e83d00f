//! Verifies tokens with the public keys of the API server. A token that these keys decide about needs no token review:
//! strangers cannot make the API server work, and pods do not wait for each other.
//!
//! Undecided are tokens of a key or an issuer that the API server does not publish, and all tokens while its keys
//! cannot be had. These are reviewed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{AlgorithmFamily, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::value::RawValue;
use sluice_config::TOKEN_AUDIENCE;
use sluice_config::message::TokenKeys as PublishedKeys;
use sluice_host::logging::told;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::distribution::hub::Hub;
use crate::distribution::identity::TokenClaims;

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
pub(super) struct TokenKeys {
    client: kube::Client,
    state: Mutex<State>,
    /// One request for the keys at a time.
    fetching: Semaphore,
}

#[derive(Default)]
struct State {
    /// The keys, and the time at which they were fetched.
    keys: Option<(Arc<Keys>, Instant)>,
    /// Time of the last request for the keys.
    tried: Option<Instant>,
}

impl State {
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
    published: PublishedKeys,
    issuer: String,
    by_id: HashMap<String, DecodingKey>,
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
}

#[derive(Deserialize)]
struct Claims {
    exp: i64,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Option<Binding>,
}

#[derive(Deserialize)]
struct Binding {
    namespace: String,
    #[serde(default)]
    serviceaccount: BoundAccount,
    pod: Option<BoundPod>,
}

#[derive(Deserialize, Default)]
struct BoundAccount {
    name: String,
}

#[derive(Deserialize)]
struct BoundPod {
    name: String,
    uid: String,
}

impl TokenKeys {
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
        if let Some(keys) = self.lock().keys(id) {
            return keys;
        }
        let _permit = self.fetching.acquire().await.ok()?;
        // Another caller may have fetched them meanwhile.
        if let Some(keys) = self.lock().keys(id) {
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
        let mut state = self.lock();
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
        let discovery: Discovery = self.get(DISCOVERY_PATH).await?;
        let jwks: Box<RawValue> = self.get(JWKS_PATH).await?;
        Keys::new(discovery.issuer, jwks.get())
    }

    async fn get<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let request = axum::http::Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
        self.client.request(request).await.map_err(|error| format!("{path}: {}", told(&error)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keys {
    /// Leaves out keys of a kind that is not supported: their tokens are reviewed.
    fn new(issuer: String, jwks: &str) -> Result<Self, String> {
        let set: JwkSet = serde_json::from_str(jwks).map_err(|error| format!("{JWKS_PATH}: {error}"))?;
        let published = PublishedKeys { issuer: issuer.clone(), jwks: jwks.to_owned() };
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
        let claims = match decode::<Claims>(token, key, &validation) {
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
        let bound =
            claims.kubernetes.and_then(|bound| Some((bound.namespace, bound.serviceaccount, bound.pod?)));
        let Some((namespace, account, pod)) = bound else {
            return Verdict::Invalid("it is not bound to a pod".into());
        };
        Verdict::Valid(TokenClaims {
            namespace,
            service_account: account.name,
            pod: pod.name,
            pod_uid: pod.uid,
            expires: Some(claims.exp),
        })
    }
}

#[cfg(test)]
pub(super) mod tests;
