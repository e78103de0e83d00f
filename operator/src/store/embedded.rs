//! The files that the embedded Redis starts with: the ACL file with all users, the function library, and its certificate.
//! They are in its Secret, so that a restart needs no operator.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Context as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use sluice_store::redis::library::Library;

use crate::certificates::bundle::split_pem;
use crate::cluster::references::Content;

/// User of the operator and of the probes at the embedded Redis.
pub const ADMINISTRATOR: &str = "sluice-admin";
/// Rights of that user: to maintain users and the library, and to read how much memory is in use, and to load a renewed
/// certificate. It has no right to any key.
const RIGHTS: &str = "resetkeys resetchannels -@all +acl|setuser +acl|deluser +acl|list +function|load +function|list \
                      +info +time +config|set";
/// Field of the Secret with the ACL file.
const USERS: &str = "users.acl";
/// Field of the Secret with the function library.
const LIBRARY: &str = "library.lua";
/// Field of the Secret with the trusted authorities. Sidecars verify the server with it.
const AUTHORITY: &str = "ca.crt";
/// Field of the Secret with the server's certificate, and with its key. The names differ from those of a client
/// certificate in the Secret of a store.
const CERTIFICATE: &str = "server.crt";
const KEY: &str = "server.key";
/// Folder of these files in the container.
const FOLDER: &str = "/etc/sluice-redis";

/// The certificate of the server.
pub struct ServerCertificate {
    /// The trusted authorities, in PEM.
    pub trusted: String,
    /// The certificate and its key, in PEM; `None` if those in the Secret stay.
    pub issued: Option<(String, String)>,
}

/// Returns the DNS names of the server.
pub fn names(namespace: &str) -> Vec<String> {
    let base = format!("sluice-redis.{namespace}");
    vec![base.clone(), format!("{base}.svc"), format!("{base}.svc.cluster.local")]
}

/// Returns the settings by which the server loads its certificate again.
pub fn certificate_settings() -> Vec<(&'static str, String)> {
    vec![
        ("tls-cert-file", format!("{FOLDER}/{CERTIFICATE}")),
        ("tls-key-file", format!("{FOLDER}/{KEY}")),
        ("tls-ca-cert-file", format!("{FOLDER}/{AUTHORITY}")),
    ]
}

/// Returns the certificate in the Secret.
pub fn certificate_of(secret: &Content) -> Option<String> {
    text(secret, CERTIFICATE)
}

/// Returns the authorities by which clients verify the server. While it may still have the certificate of an authority that is
/// not `trusted` any more, because all certificates were replaced, these are also the authorities that the Secret has.
pub fn authorities(trusted: &str, secret: &Content, may_have_another: bool) -> String {
    let mut all = split_pem(trusted);
    if may_have_another {
        let present = text(secret, AUTHORITY).unwrap_or_default();
        for authority in split_pem(&present) {
            if !all.contains(&authority) {
                all.push(authority);
            }
        }
    }
    all.concat()
}

fn text(secret: &Content, field: &str) -> Option<String> {
    let ByteString(bytes) = secret.data.get(field)?;
    Some(String::from_utf8_lossy(bytes).into_owned())
}

/// Returns the files. `users` are the lines of the namespaces' users. No file contains a password, but only hashes.
pub fn files(password: &str, users: &[String], certificate: &ServerCertificate) -> BTreeMap<String, String> {
    let mut hash = String::new();
    for byte in Sha256::digest(password) {
        let _ = write!(hash, "{byte:02x}");
    }
    let mut acl = format!("user default off\nuser {ADMINISTRATOR} on #{hash} {RIGHTS}\n");
    for user in users {
        let _ = writeln!(acl, "{user}");
    }
    let mut files = BTreeMap::from([
        (USERS.to_owned(), acl),
        (LIBRARY.to_owned(), Library::current().source().to_owned()),
        (AUTHORITY.to_owned(), certificate.trusted.clone()),
    ]);
    if let Some((certificate, key)) = &certificate.issued {
        files.insert(CERTIFICATE.to_owned(), certificate.clone());
        files.insert(KEY.to_owned(), key.clone());
    }
    files
}

/// Updates the files in the Secret if they differ.
pub async fn update(
    client: kube::Client,
    namespace: &str,
    secret: &Content,
    users: &[String],
    certificate: &ServerCertificate,
) -> anyhow::Result<()> {
    let name = &secret.name;
    let password =
        text(secret, "password").with_context(|| format!("the Secret {name} has no field `password`"))?;
    let files = files(&password, users, certificate);
    if files.iter().all(|(field, content)| text(secret, field).as_ref() == Some(content)) {
        return Ok(());
    }
    let api: Api<Secret> = Api::namespaced(client, namespace);
    let patch = json!({"stringData": files});
    api.patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .with_context(|| format!("the Secret {name} could not be updated"))?;
    Ok(())
}

/// Creates the Secret again, with what it had before it was deleted.
pub async fn restore(client: kube::Client, namespace: &str, secret: &Content) -> anyhow::Result<()> {
    let name = &secret.name;
    let object = Secret {
        metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
        type_: secret.type_.clone(),
        data: Some(secret.data.clone()),
        ..Secret::default()
    };
    let api: Api<Secret> = Api::namespaced(client, namespace);
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => {
            tracing::warn!(
                "the Secret {name} was deleted, and is restored: the embedded Redis has its passwords"
            );
            Ok(())
        }
        // It exists again.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error).with_context(|| format!("the Secret {name} could not be restored")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_former_authority_stays_while_the_server_may_have_its_certificate() {
        let pem = |name: &str| format!("-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----\n");
        let (old, new) = (pem("old"), pem("new"));
        let secret = |authorities: &str| Content {
            name: "sluice-redis".into(),
            type_: None,
            data: BTreeMap::from([(AUTHORITY.to_owned(), ByteString(authorities.as_bytes().to_vec()))]),
        };
        let both = new.clone() + &old;
        assert_eq!(authorities(&new, &secret(&old), true), both);
        assert_eq!(authorities(&new, &secret(&both), true), both);
        assert_eq!(authorities(&new, &secret(&both), false), new);
        assert_eq!(authorities(&both, &secret(&old), false), both);
    }

    #[test]
    fn the_files_hold_no_password_and_disable_the_default_user() {
        let certificate = ServerCertificate { trusted: "CA".into(), issued: Some(("C".into(), "K".into())) };
        let files = files("hunter2", &["user sluice:@shop on".to_owned()], &certificate);
        let acl = &files[USERS];
        assert!(!acl.contains("hunter2") && acl.starts_with("user default off\n"), "{acl}");
        assert!(acl.ends_with("\nuser sluice:@shop on\n"), "{acl}");
        assert!(!acl.contains("+@all") && !acl.contains("nopass") && !acl.contains("~"), "{acl}");
        assert!(files[LIBRARY].starts_with("#!lua name=sluice_"));
    }
}
