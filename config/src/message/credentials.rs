//! Access to the stores, as the operator sends it.

use serde::{Deserialize, Serialize};

use crate::store_access::StoreChoices;

/// The stores that a sidecar counts in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Credentials {
    /// Message version, [`crate::message::VERSION`].
    pub version: u32,
    /// The stores, with the access to them.
    #[serde(flatten)]
    pub stores: StoreChoices,
    /// Names of stores that the operator cannot resolve at present. The sidecar keeps the access that it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keep: Vec<String>,
    /// The keys that tokens of callers are verified with. Only for the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_keys: Option<TokenKeys>,
}

/// The public keys of an issuer of service-account tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenKeys {
    /// The issuer.
    pub issuer: String,
    /// Its keys, as a JSON Web Key Set (RFC 7517).
    pub jwks: String,
}

#[cfg(test)]
mod tests {
    use sluice_store::RedisOptions;

    use super::*;
    use crate::KeySecret;
    use crate::message::VERSION;
    use crate::store_access::{StoreAccess, StoreChoice};

    #[test]
    fn credentials_survive_serialization_and_print_no_password() {
        let redis = RedisOptions::from_url("redis://:hunter2@a").unwrap();
        let access = StoreAccess { redis, key_secret: KeySecret::new([0; 16]) };
        let stores = StoreChoices::only(StoreChoice::Access(Box::new(access)));
        let credentials = Credentials { version: VERSION, stores, keep: Vec::new(), token_keys: None };
        assert!(!format!("{credentials:?}").contains("hunter2"), "{credentials:?}");
        let text = serde_json::to_string(&credentials).unwrap();
        assert_eq!(serde_json::from_str::<Credentials>(&text).unwrap(), credentials);
    }
}
