//! Resolves a store: compiles it, and reads the credentials and certificates in the Secret that it refers to. An access that no sidecar
//! could use is an error, so it is never distributed.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Context as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use sluice_config::KeySecret;
use sluice_config::policy::DEFAULT_STORE;
use sluice_config::store_access::{StoreAccess, Tls};
use sluice_crds::conditions::reasons;
use sluice_crds::store::Access;
use sluice_crds::{CompiledStore, Violation, compile_store};
use sluice_store::RedisOptions;
use sluice_store::redis::{self, ClientCertificate, StoreCredentials};
use tokio::sync::watch;

use crate::cluster::references::{Content, Reference};
use crate::names::{ObjectKey, StoreKey};

#[cfg(test)]
mod tests;

/// Type of the Secrets that the stores of tenants may refer to. Nobody can have the sidecars send another Secret to a
/// server. The Secret of the installation's store may be of any type, because only its administrators name it.
pub const SECRET_TYPE: &str = "sluice.dev/store";

/// A store, as far as it can be used.
#[derive(Debug, Clone, PartialEq)]
pub enum Resolved {
    /// Sidecars can use it.
    Usable(Box<Usable>),
    /// Its Secret has not been read yet.
    Pending,
    /// It is not valid.
    Invalid(Vec<Violation>),
    /// Its namespace may not have stores.
    NotAllowed,
    /// Its Secret cannot be used.
    Unusable(SecretProblem),
}

/// A store that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usable {
    /// The servers, and the credentials of the Secret.
    pub access: StoreAccess,
    /// How far namespaces are kept apart.
    pub kind: Access,
    /// Number of the passwords of a managed store.
    pub password_epoch: i64,
}

/// The resolutions of all stores, for the policies that refer to them. `None` until they are known.
pub type Resolutions = watch::Sender<Option<BTreeMap<StoreKey, Resolved>>>;

/// The reason why a Secret cannot be used.
#[derive(Debug, Clone, PartialEq)]
pub enum SecretProblem {
    /// It does not exist.
    NotFound(ObjectKey),
    /// The operator has no right to read it.
    NotPermitted(ObjectKey),
    /// It is of another type.
    Type(ObjectKey, String),
    /// A field is missing or cannot be used. The text contains nothing of the Secret.
    Content(String),
    /// The API server does not return it.
    Unreadable(ObjectKey, String),
}

impl SecretProblem {
    /// Returns the reason in the condition ResolvedRefs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotFound(_) => reasons::REF_NOT_FOUND,
            Self::NotPermitted(_) => reasons::REF_NOT_PERMITTED,
            Self::Type(..) | Self::Content(_) => reasons::INVALID_CONTENT,
            Self::Unreadable(..) => reasons::WAITING,
        }
    }
}

/// Which stores an installation has.
#[derive(Debug, Clone)]
pub struct StoreRules {
    /// Key of the installation's store.
    pub default: StoreKey,
    /// Whether namespaces may have stores of their own.
    pub tenant_stores: bool,
}

impl StoreRules {
    /// Returns a valid store, or why it is not one.
    pub fn compile(&self, key: &StoreKey, object: &serde_json::Value) -> Result<CompiledStore, Resolved> {
        if key.namespace != self.default.namespace && !self.tenant_stores {
            return Err(Resolved::NotAllowed);
        }
        if self.is_ignored(key) {
            let message = "is the name of the installation's store: choose another";
            return Err(Resolved::Invalid(vec![Violation::new("metadata.name", message)]));
        }
        let store = compile_store(object).map_err(Resolved::Invalid)?;
        if store.access == Access::Managed && key.namespace != self.default.namespace {
            // The operator connects to managed stores. It must not do that for everyone.
            let message = "Managed is for stores in the operator's namespace: use Shared, because a store of one namespace \
                           has nobody to keep apart";
            return Err(Resolved::Invalid(vec![Violation::new("spec.access", message)]));
        }
        Ok(store)
    }

    /// Reports whether no policy can refer to a store, because it has the name of the installation's.
    pub fn is_ignored(&self, key: &StoreKey) -> bool {
        key.name == DEFAULT_STORE && *key != self.default
    }
}

/// Returns the key of the Secret that a store refers to.
pub fn secret_of(key: &StoreKey, store: &CompiledStore) -> Option<ObjectKey> {
    store.secret.as_ref().map(|name| ObjectKey::new(&key.namespace, name))
}

/// Resolves a valid store, given the Secret that it refers to.
pub fn resolve(
    store: CompiledStore,
    key_secret: &KeySecret,
    secret: Option<(ObjectKey, Reference)>,
    is_default: bool,
) -> Resolved {
    let fields = match secret {
        None => None,
        Some((_, Reference::Pending)) => return Resolved::Pending,
        Some((key, Reference::NotFound)) => return Resolved::Unusable(SecretProblem::NotFound(key)),
        Some((key, Reference::NotPermitted)) => return Resolved::Unusable(SecretProblem::NotPermitted(key)),
        Some((key, Reference::TooMany)) => {
            let error = "the namespace refers to more Secrets and ConfigMaps than are watched";
            return Resolved::Unusable(SecretProblem::Unreadable(key, error.to_owned()));
        }
        Some((key, Reference::Unreadable(error))) => {
            return Resolved::Unusable(SecretProblem::Unreadable(key, error));
        }
        Some((key, Reference::Found(secret))) => {
            let kind = secret.type_.as_deref().unwrap_or_default();
            if kind != SECRET_TYPE && !is_default {
                return Resolved::Unusable(SecretProblem::Type(key, kind.to_owned()));
            }
            Some(secret)
        }
    };
    let CompiledStore { redis, access: kind, password_epoch, secret: _ } = store;
    match assemble(redis, key_secret.clone(), fields.as_deref()) {
        Ok(access)
            if kind == Access::Managed && access.redis.tls.as_ref().is_some_and(has_client_certificate) =>
        {
            let problem = "it has a client certificate, which a managed store may not have, because sidecars would receive \
                           the administrator's: remove `tls.crt` and `tls.key`";
            Resolved::Unusable(SecretProblem::Content(problem.to_owned()))
        }
        Ok(access) => Resolved::Usable(Box::new(Usable { access, kind, password_epoch })),
        Err(error) => Resolved::Unusable(SecretProblem::Content(format!("{error:#}"))),
    }
}

fn has_client_certificate(tls: &Tls) -> bool {
    tls.client_certificate.is_some()
}

/// Reads a Secret.
pub async fn read_secret(api: &Api<Secret>, name: &str) -> anyhow::Result<Content> {
    let secret = api.get_opt(name).await.with_context(|| format!("the Secret {name} could not be read"))?;
    Ok(secret.with_context(|| format!("the Secret {name} does not exist: create it"))?.into())
}

/// A Secret is displayed by its name and never by its content.
impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the Secret {}", self.name)
    }
}

impl Content {
    /// Returns the text of a field without its final newlines, or `None` if the field is absent or empty.
    pub fn text(&self, field: &str) -> anyhow::Result<Option<String>> {
        let Some(ByteString(bytes)) = self.data.get(field) else { return Ok(None) };
        let text =
            std::str::from_utf8(bytes).map_err(|_| anyhow::anyhow!("`{field}` in {self} is not UTF-8"))?;
        let text = text.trim_end_matches('\n');
        Ok((!text.is_empty()).then(|| text.to_owned()))
    }
}

/// Assembles the access and checks that a sidecar could use it.
pub fn assemble(
    redis: RedisOptions,
    key_secret: KeySecret,
    secret: Option<&Content>,
) -> anyhow::Result<StoreAccess> {
    let credentials = secret.map(credentials).transpose()?.unwrap_or_default();
    let redis = redis.with_credentials(credentials).and_then(|redis| redis.check().map(|()| redis));
    let redis = match secret {
        Some(secret) => redis.with_context(|| format!("the store with {secret}")),
        None => redis.context("the store"),
    };
    Ok(StoreAccess { redis: redis?, key_secret })
}

/// Reads the credentials and certificates from the Secret of the store.
fn credentials(store: &Content) -> anyhow::Result<StoreCredentials> {
    let secret = |field| anyhow::Ok(store.text(field)?.map(redis::Secret::new));
    let client_certificate = match (store.text("tls.crt")?, store.text("tls.key")?) {
        (Some(certificate), Some(key)) => Some(ClientCertificate { certificate, key }),
        (None, None) => None,
        (Some(_), None) => {
            anyhow::bail!("{store} has `tls.crt` but no `tls.key`: add it, or remove `tls.crt`")
        }
        (None, Some(_)) => {
            anyhow::bail!("{store} has `tls.key` but no `tls.crt`: add it, or remove `tls.key`")
        }
    };
    let credentials = StoreCredentials {
        username: store.text("username")?,
        password: secret("password")?,
        sentinel_username: store.text("sentinel-username")?,
        sentinel_password: secret("sentinel-password")?,
        ca: store.text("ca.crt")?,
        client_certificate,
    };
    anyhow::ensure!(
        credentials.password.is_some()
            || credentials.client_certificate.is_some()
            || credentials.ca.is_some(),
        "{store} has no password: add the field `password`, or `tls.crt` and `tls.key`"
    );
    Ok(credentials)
}
