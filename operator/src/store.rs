//! Access to the store: the URL from the arguments, the password from a Secret, and the secret that keys are hashed
//! with, which the operator makes and never changes: another one would forget every counter.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use sha2::{Digest as _, Sha256};
use sluice_config::KeySecret;
use sluice_config::message::StoreAccess;

use crate::Args;

/// The Secret of the secret that keys are hashed with.
pub const KEY_SECRET: &str = "sluice-store-key";
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

/// What sidecars need to reach the store.
pub async fn access(client: kube::Client, args: &Args) -> anyhow::Result<StoreAccess> {
    let api: Api<Secret> = Api::namespaced(client, &args.namespace);
    let key = field(&api, KEY_SECRET, "key")
        .await?
        .with_context(|| format!("the Secret {KEY_SECRET} has no key"))?;
    let (username, password, ca) = match &args.store_secret {
        None => (None, None, None),
        Some(name) => {
            let password = field(&api, name, "password").await?;
            anyhow::ensure!(
                password.is_some(),
                "the Secret {name} has no password: add the field `password`"
            );
            (field(&api, name, "username").await?, password, field(&api, name, "ca.crt").await?)
        }
    };
    Ok(StoreAccess {
        url: args.store_url.clone(),
        username,
        password,
        ca,
        latency_budget_millis: args.store_latency_budget_ms,
        key_secret: KeySecret::try_from(key)
            .map_err(|error| anyhow::anyhow!("the Secret {KEY_SECRET}: {error}"))?,
        prefix: args.store_prefix.clone(),
    })
}

async fn field(api: &Api<Secret>, name: &str, field: &str) -> anyhow::Result<Option<String>> {
    let secret = api.get_opt(name).await?.with_context(|| format!("there is no Secret {name}"))?;
    let Some(bytes) = secret.data.and_then(|mut data| data.remove(field)) else { return Ok(None) };
    let text = String::from_utf8(bytes.0)
        .map_err(|_| anyhow::anyhow!("{field} of the Secret {name} is not UTF-8"))?;
    Ok(Some(text.trim_end_matches('\n').to_owned()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_acl_file_has_no_password_and_turns_the_default_user_off() {
        let acl = super::acl("hunter2", "sluice:");
        assert!(
            !acl.contains("hunter2") && acl.starts_with("user default off\n") && acl.contains(" ~sluice:* ")
        );
        assert!(!acl.contains("+@all") && !acl.contains("nopass"));
    }
}
