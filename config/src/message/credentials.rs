//! Access to the store, as the operator sends it.

use serde::{Deserialize, Serialize};

use crate::store_access::StoreChoice;

/// The store that sidecars count in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Credentials {
    /// Message version, [`crate::message::VERSION`].
    pub version: u32,
    /// The store, with the access to it.
    #[serde(default)]
    pub store: StoreChoice,
}

#[cfg(test)]
mod tests {
    use sluice_store::RedisOptions;

    use super::*;
    use crate::KeySecret;
    use crate::message::VERSION;
    use crate::store_access::StoreAccess;

    #[test]
    fn credentials_survive_serialization_and_print_no_password() {
        let redis = RedisOptions::from_url("redis://:hunter2@a").unwrap();
        let access = StoreAccess { redis, key_secret: KeySecret::new([0; 16]) };
        let store = StoreChoice::Access(Box::new(access));
        let credentials = Credentials { version: VERSION, store };
        assert!(!format!("{credentials:?}").contains("hunter2"), "{credentials:?}");
        let text = serde_json::to_string(&credentials).unwrap();
        assert_eq!(serde_json::from_str::<Credentials>(&text).unwrap(), credentials);
    }
}
