//! The Secrets that the operator creates if they do not exist: the secrets that keys are hashed with and passwords are
//! derived from, and what the embedded Redis starts with.
//!
//! The secret for hashing keys is never changed. With another one, every counter in the store would be lost.

use std::collections::BTreeMap;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};

use crate::args::Args;
use crate::certificates::secret::Certificates;
use crate::store::embedded::{self, ServerCertificate};
use crate::store::resolve::SECRET_TYPE;

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
