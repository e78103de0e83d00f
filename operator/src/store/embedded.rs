//! The files that the embedded Redis starts with: the ACL file with all users, and the function library. They are in its
//! Secret, so that a restart needs no operator.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Context as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use sluice_store::redis::library::Library;

/// User of the operator and of the probes at the embedded Redis.
pub const ADMINISTRATOR: &str = "sluice-admin";
/// Rights of that user: to maintain users and the library, and to read how much memory is in use. It has no right to any
/// key.
const RIGHTS: &str = "resetkeys resetchannels -@all +acl|setuser +acl|deluser +acl|list +function|load +function|list \
                      +info +time";
/// Field of the Secret with the ACL file.
const USERS: &str = "users.acl";
/// Field of the Secret with the function library.
const LIBRARY: &str = "library.lua";

/// Returns the files. `users` are the lines of the namespaces' users. No file contains a password, but only hashes.
#[must_use]
pub fn files(password: &str, users: &[String]) -> BTreeMap<String, String> {
    let mut hash = String::new();
    for byte in Sha256::digest(password) {
        let _ = write!(hash, "{byte:02x}");
    }
    let mut acl = format!("user default off\nuser {ADMINISTRATOR} on #{hash} {RIGHTS}\n");
    for user in users {
        let _ = writeln!(acl, "{user}");
    }
    BTreeMap::from([(USERS.to_owned(), acl), (LIBRARY.to_owned(), Library::current().source().to_owned())])
}

/// Updates the files in the Secret if they differ.
pub async fn update(
    client: kube::Client,
    namespace: &str,
    secret: &Secret,
    users: &[String],
) -> anyhow::Result<()> {
    let name = secret.metadata.name.as_deref().unwrap_or_default();
    let text = |field: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(field));
        bytes.map(|ByteString(bytes)| String::from_utf8_lossy(bytes).into_owned())
    };
    let password = text("password").with_context(|| format!("the Secret {name} has no field `password`"))?;
    let files = files(&password, users);
    if files.iter().all(|(field, content)| text(field).as_ref() == Some(content)) {
        return Ok(());
    }
    let api: Api<Secret> = Api::namespaced(client, namespace);
    let patch = json!({"stringData": files});
    api.patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .with_context(|| format!("the Secret {name} could not be updated"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_hold_no_password_and_disable_the_default_user() {
        let files = files("hunter2", &["user sluice:@shop on".to_owned()]);
        let acl = &files[USERS];
        assert!(!acl.contains("hunter2") && acl.starts_with("user default off\n"), "{acl}");
        assert!(acl.ends_with("\nuser sluice:@shop on\n"), "{acl}");
        assert!(!acl.contains("+@all") && !acl.contains("nopass") && !acl.contains("~"), "{acl}");
        assert!(files[LIBRARY].starts_with("#!lua name=sluice_"));
    }
}
