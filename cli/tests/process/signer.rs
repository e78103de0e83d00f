//! An issuer of tokens.

use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

/// An issuer's key.
pub(crate) struct Signer {
    id: &'static str,
    key: EncodingKey,
}

impl Signer {
    pub(crate) fn new(id: &'static str) -> Self {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        Self { id, key: EncodingKey::from_ec_der(&pair.serialize_der()) }
    }

    pub(crate) fn jwk(&self) -> Value {
        let mut jwk =
            serde_json::to_value(Jwk::from_encoding_key(&self.key, Algorithm::ES256).unwrap()).unwrap();
        jwk["kid"] = self.id.into();
        jwk
    }

    /// Returns the header with a token of a user.
    pub(crate) fn token(&self, user: &str, tenant: Option<&str>) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let mut claims = json!({"iss": "https://id.example", "aud": "shop", "exp": now + 3600, "sub": user, "tenant": tenant});
        claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        let header = Header { kid: Some(self.id.into()), ..Header::new(Algorithm::ES256) };
        format!("authorization: Bearer {}\r\n", encode(&header, &claims, &self.key).unwrap())
    }
}
