//! The passwords of a managed store's users. They are derived, so that no replica has to remember them: whoever knows one
//! learns nothing about another.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use sluice_store::redis::Secret;
use sluice_store::redis::admin::ManagedUser;

use crate::object_key::StoreKey;

/// Derives the passwords of one store.
#[derive(Clone, PartialEq, Eq)]
pub struct Passwords {
    root: Vec<u8>,
    store: StoreKey,
    epoch: i64,
    /// Whether the passwords of the epoch before are still accepted.
    pub accepts_previous: bool,
}

impl Passwords {
    /// Derives passwords from the root secret.
    #[must_use]
    pub fn new(root: &[u8], store: &StoreKey, epoch: i64, accepts_previous: bool) -> Self {
        Self { root: root.to_vec(), store: store.clone(), epoch, accepts_previous }
    }

    /// Returns the user of a namespace.
    #[must_use]
    pub fn user(&self, namespace: &str) -> ManagedUser {
        let previous = self.accepts_previous && self.epoch > 0;
        let epochs = std::iter::once(self.epoch).chain(previous.then_some(self.epoch - 1));
        ManagedUser {
            namespace: namespace.to_owned(),
            passwords: epochs.map(|epoch| self.password(namespace, epoch)).collect(),
        }
    }

    fn password(&self, namespace: &str, epoch: i64) -> Secret {
        // No name of an object contains a slash. The outer hash covers a fixed length, so it cannot be extended.
        let inner =
            Sha256::digest(format!("{}/{}/{namespace}/{epoch}", self.store.namespace, self.store.name));
        let outer = Sha256::new().chain_update(Sha256::digest(&self.root)).chain_update(inner).finalize();
        Secret::new(URL_SAFE_NO_PAD.encode(outer))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_namespace_store_and_epoch_has_its_own_password() {
        let mut seen = BTreeSet::new();
        for (root, store, epoch, namespace) in
            [(1, "a", 0, "n"), (2, "a", 0, "n"), (1, "b", 0, "n"), (1, "a", 1, "n"), (1, "a", 0, "m")]
        {
            let passwords = Passwords::new(&[root; 32], &StoreKey::new("s", store), epoch, false);
            let user = passwords.user(namespace);
            assert_eq!(user.passwords.len(), 1);
            seen.insert(user.passwords[0].expose().to_owned());
            assert_eq!(passwords.user(namespace), user);
        }
        assert_eq!(seen.len(), 5);
    }

    #[test]
    fn the_password_before_is_accepted_for_a_while_and_no_other() {
        let at = |epoch, accepts| {
            Passwords::new(&[1; 32], &StoreKey::new("s", "a"), epoch, accepts).user("n").passwords
        };
        assert_eq!(at(3, true), [at(3, false), at(2, false)].concat());
        assert_eq!(at(0, true), at(0, false));
    }
}
