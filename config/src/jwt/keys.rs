//! Public keys.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};

/// Size of the largest key set, in bytes.
pub const MAX_JWKS: usize = 64 << 10;
/// Largest number of keys in a set.
const MAX_KEYS: usize = 32;

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

/// Reads a key set, and returns the same set with only the keys that can verify tokens. Fails, with the end of a sentence,
/// if there are none. The text quotes nothing of the set.
pub fn read_jwks(text: &[u8]) -> Result<String, String> {
    if text.len() > MAX_JWKS {
        return Err(format!("has more than {MAX_JWKS} bytes"));
    }
    let set = parse(text)?;
    let usable: Vec<_> = set.keys.into_iter().filter(|jwk| Key::new(jwk).is_some()).collect();
    if usable.is_empty() || usable.len() > MAX_KEYS {
        return Err(format!(
            "has {} public keys that can verify tokens, and 1 to {MAX_KEYS} are needed: RSA of 2048 bits or more, EC with the \
             curve P-256 or P-384, or Ed25519",
            usable.len()
        ));
    }
    serde_json::to_string(&JwkSet { keys: usable }).map_err(|_| "cannot be written as JSON".to_owned())
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
        let possible: &[Algorithm] = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => &RSA,
            AlgorithmParameters::EllipticCurve(key) => match key.curve {
                EllipticCurve::P256 => &[Algorithm::ES256],
                EllipticCurve::P384 => &[Algorithm::ES384],
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
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
