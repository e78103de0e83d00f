use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::*;

const ISSUER: &str = "https://kubernetes.default.svc";

pub(in crate::distribution) struct Signer {
    key: EncodingKey,
    jwk: Value,
}

impl Signer {
    pub(in crate::distribution) fn new(id: &str) -> Self {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let key = EncodingKey::from_ec_der(&pair.serialize_der());
        let mut jwk = serde_json::to_value(Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap()).unwrap();
        jwk["kid"] = id.into();
        Self { key, jwk }
    }

    pub(in crate::distribution) fn sign(&self, id: &str, claims: &Value) -> String {
        let header = Header { kid: Some(id.into()), ..Header::new(Algorithm::ES256) };
        encode(&header, claims, &self.key).unwrap()
    }
}

fn keys(jwk: &Value) -> Keys {
    let set = json!({"keys": [jwk, {"kty": "oct", "kid": "hmac", "k": "AAAA", "alg": "HS256"}]});
    Keys::new(ISSUER.into(), &set.to_string()).unwrap()
}

/// Returns keys that have been fetched.
pub(in crate::distribution) fn token_keys(client: kube::Client, signer: &Signer) -> ApiServerKeys {
    let token_keys = ApiServerKeys::new(client);
    crate::locks::lock(&token_keys.state).keys = Some((Arc::new(keys(&signer.jwk)), Instant::now()));
    token_keys
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

pub(in crate::distribution) fn claims() -> Value {
    json!({
        "iss": ISSUER, "aud": [TOKEN_AUDIENCE], "exp": now() + 600, "nbf": now() - 1,
        "kubernetes.io": {"namespace": "shop", "pod": {"name": "web-1", "uid": "u"}, "serviceaccount": {"name": "s"}},
    })
}

pub(in crate::distribution) fn with(field: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[field] = value;
    claims
}

#[test]
fn a_token_of_a_pod_is_valid() {
    let signer = Signer::new("a");
    let verdict = keys(&signer.jwk).verify("a", &signer.sign("a", &claims()));
    let Verdict::Valid(found) = verdict else { panic!("{verdict:?}") };
    assert_eq!((&*found.namespace, &*found.pod, &*found.pod_uid), ("shop", "web-1", "u"));
    assert!(found.expires > Some(now()));
}

#[test]
fn a_token_that_proves_less_is_not_valid() {
    let signer = Signer::new("a");
    let keys = keys(&signer.jwk);
    for (claims, reason) in [
        (with("aud", json!(["https://kubernetes.default.svc"])), "not valid for the audience"),
        (with("aud", Value::Null), ""),
        (with("exp", Value::Null), ""),
        (with("kubernetes.io", json!({"namespace": "shop"})), "not bound to a pod"),
        (with("kubernetes.io", Value::Null), "not bound to a pod"),
    ] {
        let verdict = keys.verify("a", &signer.sign("a", &claims));
        assert!(
            matches!(&verdict, Verdict::Invalid(found) if found.contains(reason)),
            "{claims} {verdict:?}"
        );
    }
}

#[test]
fn a_forged_token_is_not_valid() {
    let (signer, stranger) = (Signer::new("a"), Signer::new("a"));
    let keys = keys(&signer.jwk);
    let is_invalid = |token: &str| matches!(keys.verify("a", token), Verdict::Invalid(_));
    assert!(is_invalid(&stranger.sign("a", &claims())), "another key under the same name");
    let token = signer.sign("a", &claims());
    let [header, body, signature]: [&str; 3] = token.split('.').collect::<Vec<_>>().try_into().unwrap();
    let other =
        signer.sign("a", &with("kubernetes.io", json!({"namespace": "b", "pod": {"name": "p", "uid": "v"}})));
    let other_body = other.split('.').nth(1).unwrap();
    assert!(is_invalid(&format!("{header}.{other_body}.{signature}")), "another body");
    assert!(is_invalid(&format!("{header}.{body}.")) && is_invalid("a.b.c") && is_invalid(""));
    // The public key as a shared secret, and no signature at all.
    let hmac = Header { kid: Some("a".into()), ..Header::new(Algorithm::HS256) };
    let secret = serde_json::to_vec(&signer.jwk).unwrap();
    assert!(is_invalid(&encode(&hmac, &claims(), &EncodingKey::from_secret(&secret)).unwrap()));
    assert!(is_invalid(&format!("eyJhbGciOiJub25lIiwia2lkIjoiYSJ9.{body}.")));
}

#[test]
fn other_keys_and_issuers_are_left_to_a_review() {
    let signer = Signer::new("a");
    let keys = keys(&signer.jwk);
    assert_eq!(keys.verify("b", &signer.sign("b", &claims())), Verdict::Undecided);
    assert_eq!(keys.verify("hmac", &signer.sign("hmac", &claims())), Verdict::Undecided);
    for claims in
        [with("iss", json!("other")), with("exp", json!(now() - 60)), with("nbf", json!(now() + 60))]
    {
        assert_eq!(keys.verify("a", &signer.sign("a", &claims)), Verdict::Undecided, "{claims}");
    }
}

#[tokio::test(start_paused = true)]
async fn keys_are_fetched_again_for_an_unknown_key_but_not_all_the_time() {
    let signer = Signer::new("a");
    let mut state = KeyState::default();
    assert!(state.keys("a").is_none(), "there are none yet");
    state.tried = Some(Instant::now());
    assert!(state.keys("a").is_some_and(|keys| keys.is_none()), "they could not be had");
    state.keys = Some((Arc::new(keys(&signer.jwk)), Instant::now()));
    assert!(state.keys("b").is_some());
    tokio::time::advance(MIN_INTERVAL).await;
    assert!(state.keys("a").is_some() && state.keys("b").is_none());
    // A failed request for an unknown key changes nothing for the known one.
    state.tried = Some(Instant::now());
    assert!(state.keys("a").is_some_and(|keys| keys.is_some()));
    tokio::time::advance(MAX_AGE).await;
    assert!(state.keys("a").is_none());
}
