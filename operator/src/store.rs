//! Access to the store: the URL from the arguments, credentials and certificates from a Secret, and the secret that keys
//! are hashed with, which the operator makes and never changes: another one would forget every counter. The operator
//! never talks to the store itself; but what could not be used is not published.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use sha2::{Digest as _, Sha256};
use sluice_config::KeySecret;
use sluice_config::message::{ClientCertificate, StoreAccess};
use sluice_store::RedisOptions;
use sluice_store::redis::{self, OptionsError};

use crate::Args;

/// The Secret of the secret that keys are hashed with.
pub const KEY_SECRET: &str = "sluice-store-key";
/// The scheme of a store in each sidecar's own memory, for tests.
const MEMORY: &str = "memory:";
/// The user of the embedded Redis.
const USER: &str = "sluice";
/// What the user of the embedded Redis may do: the script, and what the script itself does.
const COMMANDS: &str = "+evalsha +eval +time +get +mget +set +setrange";

/// Makes the Secrets that are the operator's to make, if they are not there.
pub async fn make_secrets(client: kube::Client, args: &Args) -> anyhow::Result<()> {
    let api = Api::namespaced(client, &args.namespace);
    make(&api, KEY_SECRET, || {
        BTreeMap::from([("key".to_owned(), STANDARD.encode(rand::random::<[u8; 16]>()))])
    })
    .await?;
    if let (true, Some(name)) = (args.store_embedded, &args.store_secret) {
        make(&api, name, || {
            let password = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
            BTreeMap::from([
                ("username".to_owned(), USER.to_owned()),
                ("users.acl".to_owned(), acl(&password, &args.store_prefix)),
                ("password".to_owned(), password),
            ])
        })
        .await?;
    }
    Ok(())
}

/// The ACL file of the embedded Redis: nobody but one user, that user only its keys and the script. The file has the
/// password's hash.
fn acl(password: &str, prefix: &str) -> String {
    let mut hash = String::new();
    for byte in Sha256::digest(password) {
        let _ = write!(hash, "{byte:02x}");
    }
    format!("user default off\nuser {USER} on #{hash} ~{prefix}* resetchannels -@all {COMMANDS}\n")
}

async fn make(
    api: &Api<Secret>,
    name: &str,
    data: impl Fn() -> BTreeMap<String, String>,
) -> anyhow::Result<()> {
    if api.get_opt(name).await.with_context(|| format!("the Secret {name} cannot be read"))?.is_some() {
        return Ok(());
    }
    let secret = Secret {
        metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        type_: Some("Opaque".into()),
        data: Some(data().into_iter().map(|(name, text)| (name, ByteString(text.into_bytes()))).collect()),
        ..Secret::default()
    };
    match api.create(&PostParams::default(), &secret).await {
        Ok(_) => tracing::info!(secret = name, "made"),
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => return Err(error).with_context(|| format!("the Secret {name} cannot be made")),
    }
    Ok(())
}

/// Sees that the URL is one of a store.
pub fn check_url(args: &Args) -> anyhow::Result<()> {
    if !args.store_url.starts_with(MEMORY) {
        RedisOptions::from_url(&args.store_url).context("--store-url")?;
    }
    Ok(())
}

/// What sidecars need to reach the store.
pub async fn access(client: kube::Client, args: &Args) -> anyhow::Result<StoreAccess> {
    let api: Api<Secret> = Api::namespaced(client, &args.namespace);
    let key = Fields::read(&api, KEY_SECRET).await?;
    let store = match &args.store_secret {
        Some(name) => Fields::read(&api, name).await?,
        None => Fields::default(),
    };
    assemble(args, &key, &store)
}

/// The same from what was read; refuses what no sidecar could use.
fn assemble(args: &Args, key: &Fields, store: &Fields) -> anyhow::Result<StoreAccess> {
    let key = key.get("key")?.with_context(|| format!("the Secret {KEY_SECRET} has no key"))?;
    let key_secret =
        KeySecret::try_from(key).map_err(|error| anyhow::anyhow!("the Secret {KEY_SECRET}: {error}"))?;
    let client = match (store.get("tls.crt")?, store.get("tls.key")?) {
        (Some(certificate), Some(key)) => Some(ClientCertificate { certificate, key }),
        (None, None) => None,
        (Some(_), None) => anyhow::bail!("{store} has `tls.crt` but no `tls.key`: give both or neither"),
        (None, Some(_)) => anyhow::bail!("{store} has `tls.key` but no `tls.crt`: give both or neither"),
    };
    let access = StoreAccess {
        url: args.store_url.clone(),
        username: store.get("username")?,
        password: store.get("password")?,
        sentinel_username: store.get("sentinel-username")?,
        sentinel_password: store.get("sentinel-password")?,
        ca: store.get("ca.crt")?,
        client,
        latency_budget_millis: args.store_latency_budget_ms,
        key_secret,
        prefix: args.store_prefix.clone(),
    };
    anyhow::ensure!(
        args.store_secret.is_none() || access.password.is_some() || access.client.is_some(),
        "{store} has no password: add the field `password`, or `tls.crt` and `tls.key`"
    );
    check(&access).with_context(|| match &args.store_secret {
        Some(_) => format!("--store-url with {store}"),
        None => "--store-url".to_owned(),
    })?;
    Ok(access)
}

/// Sees that a sidecar could use it.
fn check(access: &StoreAccess) -> Result<(), OptionsError> {
    // Nothing may be left out.
    let StoreAccess {
        url,
        username,
        password,
        sentinel_username,
        sentinel_password,
        ca,
        client,
        latency_budget_millis,
        key_secret: _,
        prefix,
    } = access.clone();
    if url.starts_with(MEMORY) {
        return Ok(());
    }
    let options = RedisOptions::from_url(&url)?
        .with_user(username, password.map(redis::Secret::new))?
        .with_sentinel_user(sentinel_username, sentinel_password.map(redis::Secret::new))?;
    let options = RedisOptions {
        ca_pem: ca.map(String::into_bytes),
        client_certificate: client.map(|client| redis::ClientCertificate {
            certificate_pem: client.certificate.into_bytes(),
            key_pem: client.key.into_bytes(),
        }),
        latency_budget: Duration::from_millis(latency_budget_millis),
        prefix,
        ..options
    };
    options.check()
}

/// What a Secret says.
#[derive(Default)]
struct Fields {
    name: String,
    data: BTreeMap<String, ByteString>,
}

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the Secret {}", self.name)
    }
}

impl Fields {
    async fn read(api: &Api<Secret>, name: &str) -> anyhow::Result<Self> {
        let secret = api.get_opt(name).await?.with_context(|| format!("there is no Secret {name}"))?;
        Ok(Self { name: name.to_owned(), data: secret.data.unwrap_or_default() })
    }

    /// A field's text; none if it is empty.
    fn get(&self, field: &str) -> anyhow::Result<Option<String>> {
        let Some(ByteString(bytes)) = self.data.get(field) else { return Ok(None) };
        let text =
            std::str::from_utf8(bytes).map_err(|_| anyhow::anyhow!("{field} of {self} is not UTF-8"))?;
        let text = text.trim_end_matches('\n');
        Ok((!text.is_empty()).then(|| text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    #[test]
    fn the_acl_file_has_no_password_and_turns_the_default_user_off() {
        let acl = acl("hunter2", "sluice:");
        assert!(
            !acl.contains("hunter2") && acl.starts_with("user default off\n") && acl.contains(" ~sluice:* ")
        );
        assert!(!acl.contains("+@all") && !acl.contains("nopass"));
    }

    fn fields(data: &[(&str, &str)]) -> Fields {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let data = data.iter().map(|&(field, text)| (field.to_owned(), bytes(text))).collect();
        Fields { name: "my-redis".into(), data }
    }

    fn read(url: &str, data: &[(&str, &str)]) -> anyhow::Result<StoreAccess> {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let args = Args::parse_from(["operator", "--store-url", url, "--store-secret", "my-redis"]);
        assemble(&args, &fields(&[("key", "AAAAAAAAAAAAAAAAAAAAAA==\n")]), &fields(data))
    }

    fn certificate() -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec!["sluice".to_owned()]).unwrap().self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    #[test]
    fn every_field_of_the_secret_reaches_the_sidecars() {
        let (certificate, key) = certificate();
        let access = read(
            "rediss+sentinel://a,b,c/main",
            &[
                ("username", "me"),
                ("password", "one\n"),
                ("sentinel-username", "watcher"),
                ("sentinel-password", "two"),
                ("ca.crt", &certificate),
                ("tls.crt", &certificate),
                ("tls.key", &key),
            ],
        )
        .unwrap();
        let text = |text: &str| Some(text.trim_end().to_owned());
        assert_eq!((access.username, access.password), (text("me"), text("one")));
        assert_eq!((access.sentinel_username, access.sentinel_password), (text("watcher"), text("two")));
        assert_eq!(access.ca, text(&certificate));
        let client = access.client.unwrap();
        assert_eq!((Some(client.certificate), Some(client.key)), (text(&certificate), text(&key)));

        // As some issuers write it; and a certificate may be all that a store asks for.
        let data = [("tls.crt", certificate.as_str()), ("tls.key", &key), ("ca.crt", ""), ("password", "")];
        let access = read("rediss+cluster://a:1,b:2", &data).unwrap();
        assert!(access.ca.is_none() && access.password.is_none() && access.client.is_some());
    }

    #[test]
    fn a_secret_that_cannot_be_used_is_named_without_its_content() {
        let (certificate, key) = certificate();
        let (_, other) = self::certificate();
        let password = ("password", "hunter2");
        for (url, data, says) in [
            ("redis://a", &[("pasword", "hunter2")][..], "add the field `password`"),
            ("rediss://a", &[password, ("tls.crt", &certificate)], "has `tls.crt` but no `tls.key`"),
            ("rediss://a", &[password, ("tls.key", "hunter2")], "has `tls.key` but no `tls.crt`"),
            ("rediss://a", &[password, ("tls.key", "hunter2"), ("tls.crt", "hunter2")], "client certificate"),
            (
                "rediss://a",
                &[("tls.crt", &certificate), ("tls.key", &other)],
                "belongs to another certificate",
            ),
            ("redis://a", &[("tls.crt", &certificate), ("tls.key", &key)], "does not begin with rediss"),
            ("rediss://a", &[password, ("ca.crt", "hunter2")], "certificate authority"),
            ("redis://a", &[password, ("sentinel-password", "hunter2")], "for sentinels"),
            ("redis+sentinel://a/m", &[password, ("sentinel-username", "hunter2")], "without a password"),
            ("redis+cluster://:hunter2@a", &[password], "both in its url and beside it"),
        ] {
            let error = format!("{:#}", read(url, data).unwrap_err());
            assert!(error.contains("the Secret my-redis") && error.contains(says), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_url_that_cannot_be_used_is_refused_at_the_start() {
        let check = |url: &str| check_url(&Args::parse_from(["operator", "--store-url", url]));
        for url in ["redis://a", "rediss+cluster://a:1,b:2", "redis+sentinel://a,b/main", "memory:"] {
            assert!(check(url).is_ok(), "{url}");
        }
        for (url, says) in [
            ("http://:hunter2@a", "must begin with redis://"),
            ("redis://:hunter2@a:1,b:2", "redis+cluster:// or redis+sentinel://"),
            ("redis+sentinel://:hunter2@a,b", "master name"),
            ("redis+cluster://:hunter2@a,b:x", "server 2 of 2 has a port"),
        ] {
            let error = format!("{:#}", check(url).unwrap_err());
            assert!(error.starts_with("--store-url: ") && error.contains(says), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
