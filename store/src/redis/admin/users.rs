//! The rights of a namespace's user.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use super::report::Role;
use crate::redis::options::{Calls, RedisOptions, Secret, Topology};

/// A user that may touch the keys of one namespace only, or those of [all](Self::ALL_NAMESPACES).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagedUser {
    /// The namespace.
    pub namespace: String,
    /// Passwords that are accepted; the first is the one in use. At least one.
    pub passwords: Vec<Secret>,
}

impl ManagedUser {
    /// The namespace of a user that may touch the keys of all namespaces: a pattern that matches each.
    pub const ALL_NAMESPACES: &str = "*";

    /// Returns the beginning of the names of all users of an installation. Its end keeps apart installations of which one's
    /// prefix begins with the other's.
    pub(super) fn name_prefix(options: &RedisOptions) -> String {
        format!("{}@", options.prefix)
    }

    /// Returns the name of the user.
    #[must_use]
    pub fn name(&self, options: &RedisOptions) -> String {
        format!("{}{}", Self::name_prefix(options), self.namespace)
    }

    /// Returns the options with which the user connects, given those of the administrator.
    #[must_use]
    pub fn options(&self, admin: &RedisOptions) -> RedisOptions {
        let (username, password) = (Some(self.name(admin)), self.passwords.first().cloned());
        let topology = match &admin.topology {
            Topology::Sentinel { master, .. } if admin.has_sentinel_password() => Topology::Sentinel {
                master: master.clone(),
                username: username.clone(),
                password: password.clone(),
            },
            other => other.clone(),
        };
        RedisOptions { topology, username, password, calls: Calls::Functions, ..admin.clone() }
    }

    /// Returns the rules of the user on a server of this role, where it may call these functions.
    pub(super) fn rules(&self, options: &RedisOptions, role: Role, functions: &[String]) -> Vec<String> {
        let mut rules: Vec<String> = vec!["reset".into(), "on".into()];
        rules.extend(self.passwords.iter().map(|password| format!("#{}", sha256(password.expose()))));
        rules.extend(["resetchannels", "-@all"].map(str::to_owned));
        if role == Role::Sentinel {
            rules.extend(["+sentinel|get-master-addr-by-name", "+sentinel|master"].map(str::to_owned));
            return rules;
        }
        rules.push(format!("~{}{}/*", options.prefix, self.namespace));
        rules.extend(functions.iter().map(|function| format!("+fcall|{function}")));
        // What the functions use, and SETRANGE, by which a connection is probed.
        rules.extend(["+time", "+get", "+mget", "+set", "+setrange"].map(str::to_owned));
        match &options.topology {
            Topology::Standalone { database: 0 } => {}
            Topology::Standalone { .. } => rules.push("+select".into()),
            Topology::Sentinel { .. } => rules.push("+role".into()),
            Topology::Cluster => rules.extend(["+cluster|slots", "+asking"].map(str::to_owned)),
        }
        rules
    }

    /// Returns the line of the user in an ACL file of a standalone server.
    #[must_use]
    pub fn acl_line(&self, options: &RedisOptions, functions: &[String]) -> String {
        let rules = self.rules(options, Role::Master, functions);
        format!("user {} {}", self.name(options), rules.join(" "))
    }
}

/// Returns the hash of a password, as an ACL holds it.
#[must_use]
pub(crate) fn sha256(password: &str) -> String {
    Sha256::digest(password).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
