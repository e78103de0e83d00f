//! The address and the credentials of the store.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::key_secret::KeySecret;

/// Access to a Redis: a single server, a cluster, or a master that sentinels watch.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreAccess {
    /// Address and topology: `redis://HOST:PORT`, `redis+cluster://HOST:PORT,...` or
    /// `redis+sentinel://HOST:PORT,.../MASTER`; with `rediss` in place of `redis` for TLS.
    pub url: String,
    /// Username for the servers; if absent, the default user.
    #[serde(default)]
    pub username: Option<String>,
    /// Password for the servers.
    #[serde(default)]
    pub password: Option<String>,
    /// Username for the sentinels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentinel_username: Option<String>,
    /// Password for the sentinels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentinel_password: Option<String>,
    /// Certificate authority that signs the store's certificate, in PEM; if absent, the public authorities.
    #[serde(default)]
    pub ca: Option<String>,
    /// Certificate to present to a store that requires one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientCertificate>,
    /// Longest time that a check may take, in milliseconds.
    pub latency_budget_millis: u64,
    /// Secret that keys are hashed with.
    pub key_secret: KeySecret,
    /// Prefix of every key that Sluice writes to the store.
    pub prefix: String,
}

/// A client certificate with its private key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientCertificate {
    /// The certificate, followed by its intermediate certificates, in PEM.
    pub certificate: String,
    /// The private key, in PEM.
    pub key: String,
}

impl fmt::Debug for StoreAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Anything before the last @ may be a password, even if the text is not a valid URL.
        let url = self.url.rsplit_once('@').map_or(self.url.as_str(), |(_, rest)| rest);
        f.debug_struct("StoreAccess").field("url", &url).finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertificate").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message as a release without the later fields wrote it.
    const OLD: &str = r#"{"url":"redis://:hunter2@a","username":null,"password":null,"ca":null,"latencyBudgetMillis":50,"keySecret":"AAAAAAAAAAAAAAAAAAAAAA==","prefix":"sluice:"}"#;

    #[test]
    fn access_without_the_later_fields_keeps_its_serialized_form() {
        let access: StoreAccess = serde_json::from_str(OLD).unwrap();
        assert_eq!((&access.client, &access.sentinel_password), (&None, &None));
        assert_eq!(serde_json::to_string(&access).unwrap(), OLD);
    }

    #[test]
    fn debug_output_contains_no_secrets() {
        let access = StoreAccess {
            username: Some("hunter2".into()),
            password: Some("hunter2".into()),
            sentinel_username: Some("hunter2".into()),
            sentinel_password: Some("hunter2".into()),
            client: Some(ClientCertificate { certificate: "hunter2".into(), key: "hunter2".into() }),
            ..serde_json::from_str(OLD).unwrap()
        };
        let text = format!("{access:?} {:?}", access.client);
        assert!(text.contains("url: \"a\"") && !text.contains("hunter2"), "{text}");
        let text = serde_json::to_string(&access).unwrap();
        assert_eq!(serde_json::from_str::<StoreAccess>(&text).unwrap(), access);
    }
}
