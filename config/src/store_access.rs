//! The stores, and access to them, as the operator sends it to sidecars.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
pub use sluice_store::redis::{Calls, Endpoint, MAX_PARTITIONS, RedisOptions, Tls, Topology};

use crate::key_secret::KeySecret;
use crate::policy::DEFAULT_STORE;

/// The store that the configuration chooses for the counters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StoreChoice {
    /// None: `onStoreFailure` decides every request. With `Share`, each process enforces its local quota
    /// forever.
    #[default]
    Unconfigured,
    /// In the memory of each process.
    Memory,
    /// In Redis.
    Access(Box<StoreAccess>),
}

/// The stores of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreChoices {
    /// The stores by the names under which the policies of the pod refer to them. With `namespaces`, all names but
    /// [`DEFAULT_STORE`] begin with a namespace and a slash.
    #[serde(default)]
    pub stores: BTreeMap<String, StoreChoice>,
    /// The secrets that the keys of each namespace are hashed with in the store of the installation. A pod that enforces the policies
    /// of one namespace has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<BTreeMap<String, KeySecret>>,
}

/// Access to a Redis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreAccess {
    /// The servers, and how to reach them.
    pub redis: RedisOptions,
    /// Secret that keys are hashed with.
    pub key_secret: KeySecret,
}

impl StoreChoices {
    /// Chooses one store, the default of the installation.
    #[must_use]
    pub fn only(default: StoreChoice) -> Self {
        Self { stores: BTreeMap::from([(DEFAULT_STORE.to_owned(), default)]), namespaces: None }
    }

    /// Returns the name under which a policy's store is among these.
    #[must_use]
    pub fn name_of<'a>(&self, namespace: &str, store: &'a str) -> Cow<'a, str> {
        match self.namespaces {
            Some(_) if store != DEFAULT_STORE => Cow::Owned(format!("{namespace}/{store}")),
            Some(_) | None => Cow::Borrowed(store),
        }
    }

    /// Returns the secret that the keys of a namespace are hashed with, if it has one of its own in the store of the installation.
    #[must_use]
    pub fn secret_of(&self, namespace: &str, store: &str) -> Option<&KeySecret> {
        self.namespaces.as_ref()?.get(namespace).filter(|_| store == DEFAULT_STORE)
    }

    /// Returns the store of this name. One that was not chosen is unconfigured.
    #[must_use]
    pub fn get(&self, name: &str) -> &StoreChoice {
        self.stores.get(name).unwrap_or(&StoreChoice::Unconfigured)
    }
}

impl StoreChoice {
    /// Returns what determines the counter of a key. Local counts carry over between two choices for which it
    /// is equal.
    #[must_use]
    pub fn key_space(&self) -> Option<(&KeySecret, &str, u16)> {
        match self {
            Self::Access(access) => Some((&access.key_secret, &access.redis.prefix, access.redis.partitions)),
            Self::Unconfigured | Self::Memory => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sluice_store::redis::{ClientCertificate, Secret, StoreCredentials};

    use super::*;

    #[test]
    fn access_has_a_typed_form_on_the_wire() {
        let key_secret = "AAAAAAAAAAAAAAAAAAAAAA==";
        let redis = |url: &str| RedisOptions::from_url(url).unwrap();
        let json = |redis| {
            let access = StoreAccess { redis, key_secret: KeySecret::new([0; 16]) };
            let value = serde_json::to_value(&access).unwrap();
            assert_eq!(serde_json::from_value::<StoreAccess>(value.clone()).unwrap(), access);
            value
        };
        let plain = json!({
            "redis": {
                "topology": {"standalone": {"database": 3}},
                "endpoints": [{"host": "::1", "port": 6380}],
                "tls": null, "username": "u", "password": "p@ss",
                "latencyBudgetMillis": 50, "prefix": "sluice:", "calls": "scripts", "partitions": 64,
            },
            "keySecret": key_secret,
        });
        assert_eq!(json(redis("redis://u:p%40ss@[::1]:6380/3")), plain);

        let credentials = StoreCredentials {
            password: Some(Secret::new("p")),
            sentinel_username: Some("w".into()),
            sentinel_password: Some(Secret::new("s")),
            ca: Some("CA".into()),
            client_certificate: Some(ClientCertificate { certificate: "C".into(), key: "K".into() }),
            ..StoreCredentials::default()
        };
        let sentinel = json(redis("rediss+sentinel://a,b:1/main").with_credentials(credentials).unwrap());
        let topology = json!({"sentinel": {"master": "main", "username": "w", "password": "s"}});
        assert_eq!(sentinel["redis"]["topology"], topology);
        let tls = json!({"ca": "CA", "clientCertificate": {"certificate": "C", "key": "K"}});
        assert_eq!(sentinel["redis"]["tls"], tls);

        let cluster = json(redis("redis+cluster://a,b"));
        assert_eq!(cluster["redis"]["topology"], "cluster");
        // Fields of a later version are ignored, but an unknown topology is an error without any value.
        let mut later = cluster.clone();
        later["redis"]["later"] = 1.into();
        assert_eq!(serde_json::from_value::<StoreAccess>(later).unwrap().redis, redis("redis+cluster://a,b"));
        let mut unknown = cluster;
        unknown["redis"]["topology"] = json!({"ring": {"password": "hunter2"}});
        let error = serde_json::from_value::<StoreAccess>(unknown).unwrap_err().to_string();
        assert!(error.contains("unknown variant `ring`") && !error.contains("hunter2"), "{error}");
    }
}
