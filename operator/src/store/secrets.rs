//! The Secrets that the operator creates if they do not exist: the secret that keys are hashed with, and the
//! password and ACL file of the embedded Redis.
//!
//! The secret for hashing keys is never changed. With another one, every counter in the store would be lost.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use sha2::{Digest as _, Sha256};

use crate::args::Args;
use crate::store::resolve::SECRET_TYPE;

/// Name of the Secret that holds the secret for hashing keys.
pub const KEY_SECRET: &str = "sluice-store-key";
/// User of the embedded Redis.
const USER: &str = "sluice";
/// Commands that the user of the embedded Redis may run: the script, and the commands inside the script.
const COMMANDS: &str = "+evalsha +eval +time +get +mget +set +setrange";

/// Creates the Secrets that do not exist yet.
pub async fn create_missing(client: kube::Client, args: &Args) -> anyhow::Result<()> {
    let api = Api::namespaced(client, &args.namespace);
    create_if_missing(&api, KEY_SECRET, "Opaque", || {
        BTreeMap::from([("key".to_owned(), STANDARD.encode(rand::random::<[u8; 16]>()))])
    })
    .await?;
    if let (true, Some(name)) = (args.store_embedded, &args.store_secret) {
        create_if_missing(&api, name, SECRET_TYPE, || {
            let password = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
            BTreeMap::from([
                ("username".to_owned(), USER.to_owned()),
                ("users.acl".to_owned(), acl_file(&password, &args.store_prefix)),
                ("password".to_owned(), password),
            ])
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

/// Returns the ACL file of the embedded Redis. It disables the default user, allows a single user to run the
/// script on keys with the prefix, and contains the hash of the password only.
fn acl_file(password: &str, prefix: &str) -> String {
    let mut hash = String::new();
    for byte in Sha256::digest(password) {
        let _ = write!(hash, "{byte:02x}");
    }
    format!("user default off\nuser {USER} on #{hash} ~{prefix}* resetchannels -@all {COMMANDS}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_acl_file_holds_no_password_and_disables_the_default_user() {
        let acl = acl_file("hunter2", "sluice:");
        assert!(
            !acl.contains("hunter2") && acl.starts_with("user default off\n") && acl.contains(" ~sluice:* ")
        );
        assert!(!acl.contains("+@all") && !acl.contains("nopass"));
    }
}
