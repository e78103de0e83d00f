//! The store of the installation: a `RateLimitStore` in the operator's namespace, which the operator makes from its
//! arguments. Helm could not: its definition does not exist yet when the chart is installed. And the Secrets that the operator creates if
//! they do not exist: what keys are hashed with, what passwords are derived from, and what the embedded Redis starts with.
//!
//! The secret for hashing keys is never changed. With another one, every counter in the store would be lost.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use serde_json::{Value, json};
use sluice_config::policy::DEFAULT_STORE;
use sluice_crds::store::Access;
use sluice_crds::{RateLimitStore, RateLimitStoreSpec};
use sluice_store::RedisOptions;
use sluice_store::redis::Endpoint;

use crate::args::{Args, StoreAccess};
use crate::certificates::secret::Certificates;
use crate::cluster::watch::api;
use crate::names::StoreKey;
use crate::store::embedded::{self, ServerCertificate};
use crate::store::resolve::{SECRET_TYPE, StoreRules};

/// Scheme of a store in the memory of each sidecar, used by tests.
const MEMORY: &str = "memory:";

/// Returns which stores the installation has.
pub fn rules(args: &Args) -> StoreRules {
    let default = StoreKey::new(&args.namespace, DEFAULT_STORE);
    StoreRules { default, tenant_stores: args.tenant_stores }
}

/// Returns the spec of the store, or `None` for a store in memory.
pub fn spec(args: &Args) -> anyhow::Result<Option<RateLimitStoreSpec>> {
    if args.store_url.starts_with(MEMORY) {
        return Ok(None);
    }
    let redis = RedisOptions {
        latency_budget: Duration::from_millis(args.store_latency_budget_ms),
        prefix: args.store_prefix.clone(),
        partitions: args.store_partitions,
        ..RedisOptions::from_url(&args.store_url).context("--store-url")?
    };
    anyhow::ensure!(
        redis.username.is_none() && redis.password.is_none(),
        "--store-url contains a user or a password, which everyone who reads the operator's pod would see: put them \
         into the Secret that --store-secret names"
    );
    anyhow::ensure!(
        !redis.endpoints.iter().any(Endpoint::is_socket),
        "--store-url begins with unix://, which only `sluice run` can use: name an address that all pods reach"
    );
    let access = match args.store_access {
        StoreAccess::Shared => Access::Shared,
        StoreAccess::Managed => Access::Managed,
    };
    let spec =
        RateLimitStoreSpec::of(&redis, args.store_secret.as_deref(), access, args.store_password_epoch);
    Ok(Some(spec))
}

/// Reports whether an object has this spec.
pub fn has_spec(object: &DynamicObject, spec: &RateLimitStoreSpec) -> bool {
    let present = object.data.get("spec").cloned().map(serde_json::from_value::<RateLimitStoreSpec>);
    matches!(present, Some(Ok(present)) if present == *spec)
}

/// Creates the store.
pub async fn create(client: kube::Client, key: &StoreKey, spec: &RateLimitStoreSpec) -> anyhow::Result<()> {
    let params = PatchParams::apply("sluice-operator").force();
    let api = api::<RateLimitStore>(client, Some(&key.namespace));
    api.patch(&key.name, &params, &Patch::Apply(&manifest(key, spec)))
        .await
        .with_context(|| format!("the RateLimitStore {key} could not be created"))?;
    Ok(())
}

/// Replaces the spec of the store, with everything that others have added.
pub async fn replace(
    client: kube::Client,
    key: &StoreKey,
    present: &DynamicObject,
    spec: &RateLimitStoreSpec,
) -> anyhow::Result<()> {
    let mut object = present.clone();
    object.data["spec"] = serde_json::to_value(spec)?;
    let api = api::<RateLimitStore>(client, Some(&key.namespace));
    api.replace(&key.name, &PostParams::default(), &object)
        .await
        .with_context(|| format!("the RateLimitStore {key} could not be changed"))?;
    Ok(())
}

fn manifest(key: &StoreKey, spec: &RateLimitStoreSpec) -> Value {
    json!({
        "apiVersion": "sluice.dev/v1alpha1",
        "kind": "RateLimitStore",
        "metadata": {"name": key.name, "namespace": key.namespace},
        "spec": spec,
    })
}

/// Name of the Secret that holds the secret for hashing keys, in the field `key`.
pub const KEY_SECRET: &str = "sluice-store-key";
/// Field of that Secret from which the passwords of managed stores are derived.
pub const PASSWORD_ROOT: &str = "password-root";

/// Creates the Secrets that do not exist yet.
pub async fn create_missing(
    client: kube::Client,
    args: &Args,
    certificates: &Certificates,
) -> anyhow::Result<()> {
    let api = Api::namespaced(client, &args.namespace);
    create_if_missing(&api, KEY_SECRET, "Opaque", || {
        BTreeMap::from([
            ("key".to_owned(), STANDARD.encode(rand::random::<[u8; 16]>())),
            (PASSWORD_ROOT.to_owned(), STANDARD.encode(rand::random::<[u8; 32]>())),
        ])
    })
    .await?;
    if let (true, Some(name)) = (args.store_embedded, &args.store_secret) {
        let (trusted, issued) = certificates.issue(&embedded::names(&args.namespace), None).await?;
        let certificate = ServerCertificate { trusted, issued };
        create_if_missing(&api, name, SECRET_TYPE, || {
            let password = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
            let mut data = embedded::files(&password, &[], &certificate);
            data.insert("username".to_owned(), embedded::ADMINISTRATOR.to_owned());
            data.insert("password".to_owned(), password);
            data
        })
        .await?;
    }
    Ok(())
}

async fn create_if_missing(
    api: &Api<Secret>,
    name: &str,
    kind: &str,
    data: impl Fn() -> BTreeMap<String, String>,
) -> anyhow::Result<()> {
    if api.get_opt(name).await.with_context(|| format!("the Secret {name} could not be read"))?.is_some() {
        return Ok(());
    }
    let secret = Secret {
        metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        type_: Some(kind.into()),
        data: Some(data().into_iter().map(|(name, text)| (name, ByteString(text.into_bytes()))).collect()),
        ..Secret::default()
    };
    match api.create(&PostParams::default(), &secret).await {
        Ok(_) => tracing::info!(secret = name, "created the Secret"),
        // Another replica created it first.
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => return Err(error).with_context(|| format!("the Secret {name} could not be created")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn the_object_has_what_the_arguments_say() {
        let args = [
            "operator",
            "--store-url",
            "rediss+sentinel://a,[::1]:7/main",
            "--store-secret",
            "s",
            "--store-latency-budget-ms",
            "2000",
            "--store-prefix",
            "p:",
            "--store-partitions",
            "96",
        ];
        let spec = spec(&Args::parse_from(args)).unwrap().unwrap();
        let key = StoreKey::new("n", "default");
        let object: DynamicObject = serde_json::from_value(manifest(&key, &spec)).unwrap();
        assert!(has_spec(&object, &spec));
        let compiled = sluice_crds::compile_store(&serde_json::to_value(&object).unwrap()).unwrap();
        assert_eq!(compiled.secret.as_deref(), Some("s"));
        let expected = RedisOptions {
            latency_budget: Duration::from_secs(2),
            prefix: "p:".into(),
            partitions: 96,
            ..RedisOptions::from_url("rediss+sentinel://a,[::1]:7/main").unwrap()
        };
        assert_eq!(compiled.redis, expected);
    }

    #[test]
    fn an_unusable_url_is_refused_at_startup() {
        let check = |url: &str| spec(&Args::parse_from(["operator", "--store-url", url]));
        for url in ["redis://a", "rediss+cluster://a:1,b:2", "redis+sentinel://a,b/main", "memory:"] {
            assert!(check(url).is_ok(), "{url}");
        }
        for (url, expected) in [
            ("http://:hunter2@a", "must begin with redis://"),
            ("redis://:hunter2@a:1,b:2", "redis+cluster:// or redis+sentinel://"),
            ("redis+sentinel://:hunter2@a,b", "master name"),
            ("redis+cluster://:hunter2@a,b:x", "server 2 of 2 has a port"),
            ("redis://:hunter2@a", "contains a user or a password"),
        ] {
            let error = format!("{:#}", check(url).unwrap_err());
            assert!(error.starts_with("--store-url") && error.contains(expected), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn an_unusable_number_of_partitions_is_refused_at_startup() {
        let parse = |number: &str| Args::try_parse_from(["operator", "--store-partitions", number]);
        assert_eq!(parse("1024").unwrap().store_partitions, 1024);
        for number in ["0", "1025"] {
            let error = parse(number).unwrap_err().to_string();
            assert!(error.contains("--store-partitions") && error.contains("1..=1024"), "{error}");
        }
    }
}
