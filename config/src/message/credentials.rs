//! Access to the store, as the operator sends it.

use serde::{Deserialize, Serialize};

use crate::store_access::StoreAccess;

/// The store that sidecars count in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Credentials {
    /// Message version, [`crate::message::VERSION`].
    pub version: u32,
    /// Access to the store; `None` if none is configured, so that limits cannot be enforced.
    pub store: Option<StoreAccess>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::VERSION;

    #[test]
    fn credentials_survive_serialization_and_print_no_password() {
        let access = r#"{"url":"redis://:hunter2@a","latencyBudgetMillis":50,"keySecret":"AAAAAAAAAAAAAAAAAAAAAA==","prefix":"sluice:"}"#;
        let store = serde_json::from_str(access).unwrap();
        let credentials = Credentials { version: VERSION, store };
        assert!(!format!("{credentials:?}").contains("hunter2"), "{credentials:?}");
        let text = serde_json::to_string(&credentials).unwrap();
        assert_eq!(serde_json::from_str::<Credentials>(&text).unwrap(), credentials);
    }
}
