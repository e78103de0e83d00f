//! How a policy verifies tokens, and the public keys.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::{Deserialize, Serialize};

/// Kind of tokens that identify clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CompiledJwt {
    /// Name to which keys refer, unique in the policy.
    pub name: String,
    /// Verification of the tokens.
    pub verification: Verification,
}

/// Verification of tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Verification {
    /// The sidecar verifies them.
    Keys(VerificationKeys),
    /// Something in front of the pod has verified them.
    Trusted,
}

/// Requirements of tokens that the sidecar verifies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VerificationKeys {
    /// Issuer of the tokens.
    pub issuer: String,
    /// Audiences, one of which a token must be for. If empty, it may be for any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audiences: Vec<String>,
    /// The public keys, as a JSON Web Key Set (RFC 7517).
    pub jwks: String,
}

/// Size of the largest key set that is read, in bytes.
pub const MAX_JWKS: usize = 64 << 10;
/// Size of the largest key set that is passed on, in bytes.
const MAX_PASSED_ON: usize = 16 << 10;
/// Largest number of keys in a set.
const MAX_KEYS: usize = 32;
/// Members of a key that are passed on: its kind, its name, and the public key itself.
const MEMBERS: [&str; 9] = ["kty", "kid", "alg", "use", "n", "e", "crv", "x", "y"];
/// Longest name of a key, in bytes.
const MAX_NAME: usize = 256;
/// Number of bits of RSA keys.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

const RSA: [Algorithm; 6] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

/// A public key.
pub(super) struct Key {
    pub(super) id: Option<String>,
    /// Algorithms of the tokens that it verifies. All are asymmetric.
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) key: DecodingKey,
}

/// Reads a key set, and returns it with only the keys that can verify tokens, and with only their members that are needed for
/// that. Fails, with the end of a sentence, if there are none. The text quotes nothing of the set.
pub fn read_jwks(text: &[u8]) -> Result<String, String> {
    if text.len() > MAX_JWKS {
        return Err(format!("has more than {MAX_JWKS} bytes"));
    }
    let set = parse(text)?;
    let usable: Vec<_> = set.keys.iter().filter(|jwk| Key::new(jwk).is_some()).collect();
    if usable.is_empty() || usable.len() > MAX_KEYS {
        return Err(format!(
            "has {} public keys that can verify tokens, and 1 to {MAX_KEYS} are needed: RSA of 2048 to 8192 bits, EC with the \
             curve P-256 or P-384, or Ed25519",
            usable.len()
        ));
    }
    let members = |jwk: &&Jwk| {
        let mut jwk = serde_json::to_value(jwk).unwrap_or_default();
        if let Some(members) = jwk.as_object_mut() {
            members.retain(|name, _| MEMBERS.contains(&name.as_str()));
        }
        jwk
    };
    let set = serde_json::json!({"keys": usable.iter().map(members).collect::<Vec<_>>()}).to_string();
    if set.len() > MAX_PASSED_ON {
        return Err(format!("has public keys of more than {MAX_PASSED_ON} bytes together: remove old ones"));
    }
    Ok(set)
}

/// Returns the keys of a set.
pub(super) fn keys(text: &str) -> Result<Vec<Key>, String> {
    Ok(parse(text.as_bytes())?.keys.iter().filter_map(Key::new).collect())
}

fn parse(text: &[u8]) -> Result<JwkSet, String> {
    serde_json::from_slice(text).map_err(|error| {
        // The error may quote the set.
        format!("is not a JSON Web Key Set, see line {}, column {}", error.line(), error.column())
    })
}

impl Key {
    /// Returns a key that can verify tokens. A symmetric key never can: whoever has it can make tokens.
    fn new(jwk: &Jwk) -> Option<Self> {
        if jwk.common.public_key_use == Some(PublicKeyUse::Encryption) {
            return None;
        }
        if jwk.common.key_id.as_ref().is_some_and(|name| name.len() > MAX_NAME) {
            return None;
        }
        let has_size =
            |coordinate: &str, size: usize| bytes(coordinate).is_some_and(|bytes| bytes.len() == size);
        let possible: &[Algorithm] = match &jwk.algorithm {
            AlgorithmParameters::RSA(key) if is_rsa(&key.n, &key.e) => &RSA,
            AlgorithmParameters::EllipticCurve(key) => match key.curve {
                EllipticCurve::P256 if has_size(&key.x, 32) && has_size(&key.y, 32) => &[Algorithm::ES256],
                EllipticCurve::P384 if has_size(&key.x, 48) && has_size(&key.y, 48) => &[Algorithm::ES384],
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(key)
                if key.curve == EllipticCurve::Ed25519 && has_size(&key.x, 32) =>
            {
                &[Algorithm::EdDSA]
            }
            _ => return None,
        };
        let named = jwk.common.key_algorithm;
        let is_allowed =
            |algorithm: &&Algorithm| named.is_none_or(|named| named == KeyAlgorithm::from(**algorithm));
        let algorithms: Vec<_> = possible.iter().filter(is_allowed).copied().collect();
        if algorithms.is_empty() {
            return None;
        }
        Some(Self { id: jwk.common.key_id.clone(), algorithms, key: DecodingKey::from_jwk(jwk).ok()? })
    }
}

/// Reports whether these are modulus and exponent of an RSA key that can be used. A leading zero byte is not allowed (RFC
/// 7518, section 2).
fn is_rsa(modulus: &str, exponent: &str) -> bool {
    let (Some(modulus), Some(exponent)) = (bytes(modulus), bytes(exponent)) else { return false };
    let bits =
        |number: &[u8]| number.first().map_or(0, |first| number.len() * 8 - first.leading_zeros() as usize);
    let is_short = |number: &[u8]| number.first().is_some_and(|first| *first > 0);
    let is_odd = |number: &[u8]| number.last().is_some_and(|last| last % 2 == 1);
    RSA_BITS.contains(&bits(&modulus))
        && is_short(&modulus)
        && is_odd(&modulus)
        && is_short(&exponent)
        && is_odd(&exponent)
        && (2..=33).contains(&bits(&exponent))
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}
