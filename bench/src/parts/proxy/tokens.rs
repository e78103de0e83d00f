//! CPU time of the sidecar for a request whose client is a claim of a verified token, against the sidecar that takes the same
//! token for a header like any other. A token that was seen before is remembered; a new one is verified.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::json;

use super::load::{Responses, load_as, upstream};
use super::proxies::Proxy;
use crate::report::row::Row;
use crate::report::verification::Verification;
use crate::support::cores::Cores;
use crate::support::rounds::interleave;

const ROUNDS: u64 = 5;
/// Requests of a round with tokens that were seen before, and number of these tokens. A sidecar remembers 4,096.
const KNOWN: (usize, usize) = (40_000, 1_000);
/// Requests of a round with a new token each.
const NEW: usize = 10_000;

/// Measures tokens that were seen before, and new ones.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let upstream = upstream().await?;
    let issuer = Issuer::new()?;
    let header = policy("header: {name: authorization}", "");
    let claim = policy("jwtClaim: {jwt: main, claim: sub}", &issuer.jwt()?);
    let mut rows = Vec::new();
    for (what, requests, tokens) in
        [("a token that was seen before", KNOWN.0, KNOWN.1), ("a new token, signed by ES256", NEW, NEW)]
    {
        let ours = Proxy::start_sluice_with(cores, upstream, &claim).await?;
        let plain = Proxy::start_sluice_with(cores, upstream, &header).await?;
        let rounds =
            (0..=ROUNDS).map(|round| issuer.headers(round, tokens)).collect::<Result<Vec<_>, _>>()?;
        rows.push(compare([&ours, &plain], what, &rounds, requests).await?);
    }
    Ok(rows)
}

fn policy(part: &str, jwt: &str) -> String {
    format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: p}}\nspec:\n  limits:\n  - name: per-user\n    \
         key: {{parts: [{{{part}}}], onMissing: Deny}}\n    rates: [{{requests: 1000000000, per: 1h}}]\n{jwt}"
    )
}

/// An issuer of tokens.
struct Issuer(EncodingKey);

impl Issuer {
    fn new() -> anyhow::Result<Self> {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        Ok(Self(EncodingKey::from_ec_der(&pair.serialize_der())))
    }

    /// Returns the part of a policy that names the issuer, and its keys.
    fn jwt(&self) -> anyhow::Result<String> {
        let mut key = serde_json::to_value(Jwk::from_encoding_key(&self.0, Algorithm::ES256)?)?;
        key["kid"] = "bench".into();
        let keys = json!({"keys": [key]});
        Ok(format!(
            "  jwt: [{{name: main, issuer: \"https://id.example\", jwksFrom: {{configMapRef: {{name: keys, key: jwks.json}}}}}}]\n---\n\
             apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: keys}}\ndata:\n  jwks.json: '{keys}'\n"
        ))
    }

    /// Returns headers with a token for each of this number of users.
    fn headers(&self, round: u64, users: usize) -> anyhow::Result<Arc<[String]>> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let header = Header { kid: Some("bench".to_owned()), ..Header::new(Algorithm::ES256) };
        let token = |user: usize| {
            let claims =
                json!({"iss": "https://id.example", "exp": now + 3600, "sub": format!("{round}-{user}")});
            let token = encode(&header, &claims, &self.0).context("a token cannot be signed")?;
            Ok(format!("authorization: Bearer {token}"))
        };
        (0..users).map(token).collect()
    }
}

async fn compare(
    proxies: [&Proxy; 2],
    what: &str,
    headers: &[Arc<[String]>],
    requests: usize,
) -> anyhow::Result<Row> {
    let mut totals = [Responses::default(); 2];
    let rounds = interleave(ROUNDS, async |side, round| {
        let [ours, plain] = &mut totals;
        let (proxy, totals) = (side.of(proxies), side.of([ours, plain]));
        let headers = &headers[round as usize];
        if headers.len() < requests {
            load_as(proxy.address, "/", headers.clone(), headers.len()).await?;
        }
        let before = proxy.processes.cpu()?;
        *totals += load_as(proxy.address, "/", headers.clone(), requests).await?;
        Ok(proxy.processes.cpu_since(&before)?.as_secs_f64() * 1e6 / requests as f64)
    })
    .await?;
    let [ours, plain] = totals;
    let mut verification = Verification::default();
    let expected = requests as u64 * (ROUNDS + 1);
    verification.expect_both("responses with 200", ours.admitted, plain.admitted, expected);
    let row = format!("proxy CPU: {what}");
    Ok(Row::compared(row, "us/request", &rounds, "the token as a header like any other", &verification))
}
