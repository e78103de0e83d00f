//! JSON Web Tokens that identify clients (RFC 7519): verifies the token of a request, and reads its claims. With a token that cannot be
//! verified the part of the key is unclear, and the request is never counted for another client.
//!
//! Verified tokens are in bounded memory: two generations, of which the older is forgotten when the newer is full. A token that
//! is used moves to the newer. Tokens that are not valid are remembered for a second in places of their own, so that nobody
//! can displace the others by them, and several limits do not verify one request several times.
//!
//! - [`keys`]: how a policy verifies tokens, the public keys, and which of them may verify a token.
//! - `token`: finds the token of a request.

pub mod keys;
#[cfg(test)]
mod tests;
mod token;

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Validation, decode};
use serde_json::{Map, Value};

use self::keys::Key;
pub use self::keys::{CompiledJwt, MAX_JWKS, Verification, VerificationKeys, read_jwks};
use self::token::Token;
use crate::effort::note;
use crate::nack::Nack;
use crate::request::{Part, RequestAttributes};

/// Longest header of a token that is verified, in bytes.
const MAX_HEADER: usize = 4 << 10;
/// Largest number of keys that are tried for a token which names none of them unambiguously: an old one and a new one. Each
/// costs more than all else that a request does.
const MAX_TRIED: usize = 2;
/// Longest claim that identifies a client, in bytes. A longer one is not clear.
pub(crate) const MAX_CLAIM: usize = 256;
/// Difference between the clocks of the issuer and of this machine that is forgiven, in seconds.
const LEEWAY: u64 = 60;

/// Requirements of tokens.
struct Required {
    issuer: String,
    audiences: Vec<String>,
}

/// Verifies one kind of tokens.
pub struct JwtVerifier {
    name: String,
    /// The requirements, and the public keys; `None` for tokens that something else has verified.
    keys: Option<(Required, Vec<Key>)>,
    /// Names of the claims that limits need.
    claims: Vec<String>,
    cache: Cache,
    refusals: Arc<TokenRefusals>,
}

impl fmt::Debug for JwtVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwtVerifier").field("name", &self.name).finish_non_exhaustive()
    }
}

impl JwtVerifier {
    /// Creates a verifier for tokens of which these claims are needed. Fails if there are no keys.
    pub fn new(jwt: &CompiledJwt, claims: Vec<String>) -> Result<Self, Nack> {
        let keys = match &jwt.verification {
            Verification::Trusted => None,
            Verification::Keys(VerificationKeys { issuer, audiences, jwks }) => {
                let found = keys::keys(jwks)
                    .map_err(|error| Nack(format!("jwt {}: the key set {error}", jwt.name)))?;
                if found.is_empty() {
                    return Err(Nack(format!("jwt {}: there are no keys that can verify tokens", jwt.name)));
                }
                Some((Required { issuer: issuer.clone(), audiences: audiences.clone() }, found))
            }
        };
        let (cache, refusals) = (Cache::default(), Arc::default());
        Ok(Self { name: jwt.name.clone(), keys, claims, cache, refusals })
    }

    /// Returns the name to which keys refer.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the numbers of tokens that were refused. A token counts once in a second, however often it is sent.
    #[must_use]
    pub fn refusals(&self) -> &Arc<TokenRefusals> {
        &self.refusals
    }

    /// Passes a claim of the request's token to `read`, and returns the result. It is unclear if there are several tokens, or one that
    /// is not valid, which counts as refused. `now` returns the time in seconds since the Unix epoch.
    pub fn read_claim<R>(
        &self,
        request: &RequestAttributes<'_>,
        claim: &str,
        now: impl FnOnce() -> u64,
        read: impl FnOnce(&str) -> R,
    ) -> Part<R> {
        let token = match Token::of(request.headers) {
            Part::Value(token) => token,
            Part::Missing => return Part::Missing,
            Part::Unclear => return Part::Unclear,
        };
        let Some(index) = self.claims.iter().position(|known| known == claim) else { return Part::Missing };
        let (key, now) = (self.cache.key(token.bytes()), now());
        let verified = match self.cache.get(key, now) {
            Some(verified) => verified,
            None if self.cache.is_refused(key, now) => return Part::Unclear,
            None => match self.verify(token.bytes(), now) {
                Ok(verified) => {
                    let verified = Arc::new(verified);
                    self.cache.insert(key, verified.clone());
                    verified
                }
                Err(reason) => {
                    if request.counts_errors {
                        self.cache.refuse(key, now);
                        self.refusals.count(reason);
                    }
                    return Part::Unclear;
                }
            },
        };
        match verified.claims.get(index) {
            Some(Claim::Text(text)) => Part::Value(read(text)),
            Some(Claim::Unusable) => Part::Unclear,
            Some(Claim::Absent) | None => Part::Missing,
        }
    }

    /// Reports whether applications could take different tokens of a request for its only one.
    #[must_use]
    pub fn is_in_doubt(&self, request: &RequestAttributes<'_>) -> bool {
        Token::of(request.headers) == Part::Unclear
    }

    fn verify(&self, token: &[u8], now: u64) -> Result<Verified, TokenRefusal> {
        let (claims, expires) = match &self.keys {
            Some((required, keys)) => verify(token, required, keys, now)?,
            None => {
                let claims = token.split(|byte| *byte == b'.').nth(1).and_then(json);
                (claims.ok_or(TokenRefusal::Malformed)?, u64::MAX)
            }
        };
        let claims = self.claims.iter().map(|name| claims.get(name).map_or(Claim::Absent, claim));
        Ok(Verified { expires, claims: claims.collect() })
    }

    #[cfg(test)]
    fn cached(&self) -> usize {
        self.cache.len()
    }
}

/// Verifies a token, and returns its claims and the time from which it is no longer valid.
fn verify(
    token: &[u8],
    required: &Required,
    keys: &[Key],
    now: u64,
) -> Result<(Map<String, Value>, u64), TokenRefusal> {
    let (algorithm, name) = header(token).ok_or(TokenRefusal::Malformed)?;
    // All keys of a set are trusted alike. A token that names none may be signed by any.
    let able = keys.iter().filter(|key| {
        let is_named = name.as_deref().is_none_or(|name| key.id.as_deref().is_none_or(|id| id == name));
        key.algorithms.contains(&algorithm) && is_named
    });
    let mut validation = Validation::new(algorithm);
    // Times are compared below, with the given time.
    validation.validate_exp = false;
    validation.set_issuer(&[&required.issuer]);
    validation.set_required_spec_claims(&["exp", "iss"]);
    if required.audiences.is_empty() {
        validation.validate_aud = false;
    } else {
        validation.set_audience(&required.audiences);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
    }
    let mut result = Err(TokenRefusal::UnknownKey);
    for key in able.take(MAX_TRIED) {
        // About what it takes, in bytes that could be compared meanwhile.
        note(100_000);
        let decoded = decode::<Map<String, Value>>(token, &key.key, &validation);
        result = decoded.map_err(|error| TokenRefusal::of(error.kind()));
        // Another key may have signed the token, unless this one has.
        if !matches!(result, Err(TokenRefusal::Signature | TokenRefusal::Malformed)) {
            break;
        }
    }
    let claims = result?.claims;
    // A list of issuers, which the library accepts, is none (RFC 7519, section 4.1.1).
    if claims.get("iss").and_then(Value::as_str) != Some(&required.issuer) {
        return Err(TokenRefusal::Claims);
    }
    let seconds = |name: &str| {
        let time = claims.get(name).map(|time| time.as_f64().filter(|time| time.is_finite()));
        time.map(|time| time.map(|time| time as u64).ok_or(TokenRefusal::Claims)).transpose()
    };
    let expires = seconds("exp")?.ok_or(TokenRefusal::Claims)?.saturating_add(LEEWAY);
    let begins = seconds("nbf")?.unwrap_or(0);
    let is_valid = now < expires && begins <= now.saturating_add(LEEWAY);
    if is_valid { Ok((claims, expires)) } else { Err(TokenRefusal::Expired) }
}

/// Returns the algorithm and the name of the key in the header of a token.
fn header(token: &[u8]) -> Option<(Algorithm, Option<String>)> {
    let header = json(token.split(|byte| *byte == b'.').next().filter(|part| part.len() <= MAX_HEADER)?)?;
    // Extensions that must be understood (RFC 7515, section 4.1.11).
    if header.contains_key("crit") {
        return None;
    }
    let algorithm = header.get("alg")?.as_str()?.parse().ok()?;
    let name = match header.get("kid") {
        Some(name) => Some(name.as_str()?.to_owned()),
        None => None,
    };
    Some((algorithm, name))
}

/// Decodes a part of a token.
fn json(part: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

/// Returns a claim as a text that identifies a client.
fn claim(value: &Value) -> Claim {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if !number.is_f64() => number.to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Null => return Claim::Absent,
        Value::Number(_) | Value::Array(_) | Value::Object(_) => return Claim::Unusable,
    };
    match text.len() {
        0 => Claim::Absent,
        1..=MAX_CLAIM => Claim::Text(text.into()),
        _ => Claim::Unusable,
    }
}

/// Number of independent parts, so that threads seldom wait for each other.
const SHARDS: usize = 8;
/// Largest number of tokens in a generation of a part. All parts together keep at most 4096.
const GENERATION: usize = 256;

/// Number of refused tokens that a part remembers.
const REFUSED: usize = 16;

/// The claims of a verified token that limits need.
#[derive(Debug)]
struct Verified {
    /// Time from which the token is no longer valid, in seconds since the Unix epoch.
    expires: u64,
    /// The claims, in the order in which they were asked for.
    claims: Box<[Claim]>,
}

/// A claim of a token.
#[derive(Debug)]
enum Claim {
    /// It is not there, or empty.
    Absent,
    /// It is a text that identifies a client.
    Text(Box<str>),
    /// It is there, and too long or of a type that identifies nobody.
    Unusable,
}

/// The cache. Its keys are hashes with secrets that nobody knows.
#[derive(Debug, Default)]
struct Cache {
    secrets: [RandomState; 2],
    shards: [Mutex<Generations>; SHARDS],
}

#[derive(Debug, Default)]
struct Generations {
    newer: HashMap<u128, Arc<Verified>>,
    older: HashMap<u128, Arc<Verified>>,
    /// Tokens that were refused, each with the second in which that was.
    refused: [(u128, u64); REFUSED],
}

impl Cache {
    /// Returns the key of a token.
    fn key(&self, token: &[u8]) -> u128 {
        let [high, low] = [0, 1].map(|n: usize| self.secrets[n].hash_one(token));
        u128::from(high) << 64 | u128::from(low)
    }

    /// Returns a token that is valid at a time, in seconds since the Unix epoch.
    fn get(&self, key: u128, now: u64) -> Option<Arc<Verified>> {
        let mut shard = self.shard(key);
        if let Some(found) = shard.newer.get(&key) {
            return (now < found.expires).then(|| found.clone());
        }
        let found = shard.older.remove(&key).filter(|found| now < found.expires)?;
        shard.insert(key, found.clone());
        Some(found)
    }

    /// Reports whether a token was refused in this second.
    fn is_refused(&self, key: u128, now: u64) -> bool {
        self.shard(key).refused[place(key)] == (key, now)
    }

    /// Remembers a token that was refused.
    fn refuse(&self, key: u128, now: u64) {
        self.shard(key).refused[place(key)] = (key, now);
    }

    fn insert(&self, key: u128, verified: Arc<Verified>) {
        self.shard(key).insert(key, verified);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        let shards = self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner));
        shards.map(|shard| shard.newer.len() + shard.older.len()).sum()
    }

    fn shard(&self, key: u128) -> MutexGuard<'_, Generations> {
        // No statement that changes a generation can panic halfway.
        self.shards[key as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the place of a refused token in its part.
fn place(key: u128) -> usize {
    (key >> 64) as usize % REFUSED
}

impl Generations {
    fn insert(&mut self, key: u128, verified: Arc<Verified>) {
        if self.newer.len() >= GENERATION {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(key, verified);
    }
}

/// The reason why a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenRefusal {
    /// It is no JSON Web Token, or has an extension or an algorithm that is not known.
    Malformed,
    /// No key of the set may verify it: because of its `kid` or its algorithm.
    UnknownKey,
    /// The signature is wrong.
    Signature,
    /// The issuer or the audience is another one, or a claim that is required is missing.
    Claims,
    /// It has expired, or is yet to begin.
    Expired,
}

impl TokenRefusal {
    /// All reasons.
    pub const ALL: [Self; 5] =
        [Self::Malformed, Self::UnknownKey, Self::Signature, Self::Claims, Self::Expired];

    /// Returns the name of the reason in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownKey => "unknown_key",
            Self::Signature => "signature",
            Self::Claims => "claims",
            Self::Expired => "expired",
        }
    }

    /// Returns the reason of a library's error.
    fn of(error: &ErrorKind) -> Self {
        match error {
            ErrorKind::InvalidSignature => Self::Signature,
            ErrorKind::InvalidIssuer | ErrorKind::InvalidAudience | ErrorKind::MissingRequiredClaim(_) => {
                Self::Claims
            }
            _ => Self::Malformed,
        }
    }
}

/// Numbers of refused tokens.
#[derive(Debug, Default)]
pub struct TokenRefusals([AtomicU64; TokenRefusal::ALL.len()]);

impl TokenRefusals {
    fn count(&self, reason: TokenRefusal) {
        self.0[reason as usize].fetch_add(1, Relaxed);
    }

    /// Returns the number of tokens that were refused for a reason.
    #[must_use]
    pub fn get(&self, reason: TokenRefusal) -> u64 {
        self.0[reason as usize].load(Relaxed)
    }
}
