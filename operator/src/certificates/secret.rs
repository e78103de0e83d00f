//! The Secrets with certificates. The operator's own is read and written here, and its serving certificate, or the one of another
//! Secret that cert-manager maintains, is given to the servers. The certificate of the service that gateways ask has a Secret of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::NoServerSessionStorage;
use rustls::{CipherSuite, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use sluice_host::logging::told;
use sluice_host::serve::Tls;
use tokio::sync::watch;

use crate::certificates::bundle::Bundle;

/// Name of the Secret.
pub const SECRET: &str = "sluice-certificates";
/// Interval between reads of a serving certificate that cert-manager has not issued yet.
const AWAIT_EVERY: Duration = Duration::from_secs(2);

/// The certificates of this replica, as the Secret has them.
#[derive(Clone)]
pub struct Certificates {
    api: Api<Secret>,
    names: Arc<[String]>,
    /// Secret with a serving certificate that cert-manager maintains.
    external: Option<String>,
    tls: watch::Sender<Arc<ServerConfig>>,
    /// The operator's own authorities in PEM.
    pub trusted: watch::Sender<String>,
    serving_authorities: watch::Sender<String>,
}

impl Certificates {
    /// Reads the Secret, or creates it. If several replicas create it at the same time, all use the first
    /// one's. If `external` names a Secret that cert-manager maintains, waits until it has a serving certificate.
    pub async fn load(
        client: kube::Client,
        namespace: &str,
        names: Vec<String>,
        external: Option<String>,
    ) -> anyhow::Result<Self> {
        let api = Api::namespaced(client, namespace);
        let bundle = match read(&api).await? {
            Some((bundle, _)) => bundle,
            None => {
                let bundle = Bundle::new(&names, Timestamp::now())?;
                match api.create(&PostParams::default(), &secret(&bundle, None)).await {
                    Ok(_) => bundle,
                    Err(kube::Error::Api(status)) if status.code == 409 => {
                        let (bundle, _) = read(&api).await?.with_context(|| {
                            format!("the Secret {SECRET} was created by another replica and then deleted")
                        })?;
                        bundle
                    }
                    Err(error) => {
                        return Err(error).context(format!("the Secret {SECRET} could not be created"));
                    }
                }
            }
        };
        let serving = match &external {
            None => Serving::from(&bundle),
            Some(secret) => await_external(&api, secret).await,
        };
        Ok(Self {
            api,
            names: names.into(),
            external,
            tls: watch::Sender::new(serving.tls()?),
            trusted: watch::Sender::new(bundle.trusted),
            serving_authorities: watch::Sender::new(serving.authorities),
        })
    }

    /// Returns the serving certificate of ports, which [`Certificates::refresh`] renews.
    pub fn tls(&self) -> Tls {
        let tls = self.tls.subscribe();
        Tls { config: Arc::new(move || tls.borrow().clone()), authorities: None }
    }

    /// Returns the authorities of the serving certificate in PEM, and every change of them.
    pub fn serving_authorities(&self) -> watch::Receiver<String> {
        self.serving_authorities.subscribe()
    }

    /// Issues a serving certificate for another server, unless its present one is still good. Returns the trusted
    /// authorities, and the new certificate with its key.
    pub async fn issue(
        &self,
        names: &[String],
        present: Option<&str>,
    ) -> anyhow::Result<(String, Option<(String, String)>)> {
        let (bundle, _) = read(&self.api)
            .await?
            .with_context(|| format!("the Secret {SECRET} is gone: restart the operator"))?;
        let issued = bundle.issue(names, present, Timestamp::now())?;
        Ok((bundle.trusted, issued))
    }

    /// Reads the Secret again and uses its certificate. If this replica is the leader, renews what is due
    /// first.
    pub async fn refresh(&self, is_leader: bool) -> anyhow::Result<()> {
        let (mut bundle, version) = read(&self.api).await?.with_context(|| {
            format!("the Secret {SECRET} is gone: restart the operator to create it again")
        })?;
        if is_leader && let Some(next) = bundle.renewed(&self.names, Timestamp::now())? {
            self.api.replace(SECRET, &PostParams::default(), &secret(&next, version)).await.with_context(
                || format!("the renewed certificates could not be written to the Secret {SECRET}"),
            )?;
            tracing::info!("renewed the certificates");
            bundle = next;
        }
        send_change(&self.trusted, &bundle.trusted);
        let serving = match &self.external {
            None => Serving::from(&bundle),
            Some(secret) => read_external(&self.api, secret).await?,
        };
        self.tls.send_replace(serving.tls()?);
        send_change(&self.serving_authorities, &serving.authorities);
        Ok(())
    }
}

fn send_change(sender: &watch::Sender<String>, new: &str) {
    sender.send_if_modified(|old| {
        let changed = old != new;
        if changed {
            new.clone_into(old);
        }
        changed
    });
}

/// Reads a Secret that cert-manager maintains until its certificate can be used.
async fn await_external(api: &Api<Secret>, name: &str) -> Serving {
    loop {
        match read_external(api, name).await {
            Ok(serving) => return serving,
            Err(error) => tracing::warn!("waiting for the serving certificate: {}", told(error.as_ref())),
        }
        tokio::time::sleep(AWAIT_EVERY).await;
    }
}

async fn read_external(api: &Api<Secret>, name: &str) -> anyhow::Result<Serving> {
    let secret = api.get_opt(name).await.with_context(|| format!("the Secret {name} could not be read"))?;
    let secret = secret.with_context(|| {
        format!("the Secret {name} does not exist: see the Certificate that should create it")
    })?;
    let serving = Serving::from_data(&texts(secret)).with_context(|| format!("the Secret {name}"))?;
    serving.tls().with_context(|| format!("the Secret {name} cannot be used"))?;
    Ok(serving)
}

fn texts(secret: Secret) -> BTreeMap<String, String> {
    let data = secret.data.unwrap_or_default().into_iter();
    data.map(|(name, bytes)| (name, String::from_utf8_lossy(&bytes.0).into_owned())).collect()
}

/// Reads the Secret and returns its contents with its resource version.
async fn read(api: &Api<Secret>) -> anyhow::Result<Option<(Bundle, Option<String>)>> {
    let secret =
        api.get_opt(SECRET).await.with_context(|| format!("the Secret {SECRET} could not be read"))?;
    let Some(secret) = secret else { return Ok(None) };
    let version = secret.metadata.resource_version.clone();
    let bundle = Bundle::from_data(&texts(secret)).with_context(|| {
        format!("the Secret {SECRET} is damaged: delete it and restart the operator to create it again")
    })?;
    Ok(Some((bundle, version)))
}

fn secret(bundle: &Bundle, version: Option<String>) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(SECRET.into()),
            resource_version: version,
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".into()),
        data: Some(
            bundle.to_data().into_iter().map(|(name, text)| (name, ByteString(text.into_bytes()))).collect(),
        ),
        ..Secret::default()
    }
}

/// A serving certificate, with the authorities by which clients verify it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Serving {
    /// The authorities, in PEM.
    pub authorities: String,
    certificate: String,
    key: String,
}

impl From<&Bundle> for Serving {
    fn from(bundle: &Bundle) -> Self {
        let Bundle { trusted, certificate, key, .. } = bundle.clone();
        Self { authorities: trusted, certificate, key }
    }
}

impl Serving {
    /// Reads the data of a Secret as cert-manager writes it. The error names the missing or empty field.
    pub fn from_data(data: &BTreeMap<String, String>) -> anyhow::Result<Self> {
        let get = |name: &str| {
            let text = data.get(name).filter(|text| !text.trim().is_empty());
            text.cloned().with_context(|| format!("the field {name} is missing"))
        };
        let authorities = get("ca.crt").context(
            "sidecars and the API server need the authority that signs the certificate: use an issuer of cert-manager \
             that provides it, such as one of the type CA",
        )?;
        Ok(Self { authorities, certificate: get("tls.crt")?, key: get("tls.key")? })
    }

    /// Returns the TLS configuration of the servers.
    pub fn tls(&self) -> anyhow::Result<Arc<ServerConfig>> {
        let chain =
            CertificateDer::pem_slice_iter(self.certificate.as_bytes()).collect::<Result<Vec<_>, _>>();
        let chain = chain.context("tls.crt")?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).context("tls.key")?;
        let config = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let config = config.with_no_client_auth().with_single_cert(chain, key);
        let mut config = config.context("tls.crt and tls.key")?;
        config.ignore_client_order = true;
        // A client keeps one connection. Where all have lost theirs, no cache of sessions would have them all.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

/// Returns the cryptography of the servers. A handshake computes dozens of hashes, and processors have instructions for SHA-256 but not
/// for SHA-384, which clients would prefer.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    Arc::new(provider)
}

/// Name of the Secret.
const SERVICE_SECRET: &str = "sluice-service-tls";
const CERTIFICATE_FIELD: &str = "tls.crt";
const KEY_FIELD: &str = "tls.key";
const AUTHORITY_FIELD: &str = "ca.crt";

/// Issues the certificate for a Service, or renews it if it is due, and writes it into the Secret with the authority by which
/// gateways verify it.
pub async fn keep_service_certificate(
    client: kube::Client,
    certificates: &Certificates,
    namespace: &str,
    service: &str,
) -> anyhow::Result<()> {
    let api: Api<Secret> = Api::namespaced(client, namespace);
    let found = api
        .get_opt(SERVICE_SECRET)
        .await
        .with_context(|| format!("the Secret {SERVICE_SECRET} could not be read"))?;
    let text = |field: &str| {
        let bytes = found.as_ref()?.data.as_ref()?.get(field)?;
        Some(String::from_utf8_lossy(&bytes.0).into_owned())
    };
    let base = format!("{service}.{namespace}");
    let names =
        [service.to_owned(), base.clone(), format!("{base}.svc"), format!("{base}.svc.cluster.local")];
    let present = text(CERTIFICATE_FIELD).filter(|_| text(KEY_FIELD).is_some());
    let (trusted, issued) = certificates.issue(&names, present.as_deref()).await?;
    let mut fields = BTreeMap::new();
    if text(AUTHORITY_FIELD).as_ref() != Some(&trusted) {
        fields.insert(AUTHORITY_FIELD.to_owned(), trusted);
    }
    if let Some((certificate, key)) = issued {
        fields.extend([(CERTIFICATE_FIELD.to_owned(), certificate), (KEY_FIELD.to_owned(), key)]);
    }
    if fields.is_empty() {
        return Ok(());
    }
    let written = if found.is_some() {
        let patch = json!({"stringData": fields});
        api.patch(SERVICE_SECRET, &PatchParams::default(), &Patch::Merge(&patch)).await
    } else {
        let secret = Secret {
            metadata: ObjectMeta { name: Some(SERVICE_SECRET.to_owned()), ..ObjectMeta::default() },
            type_: Some("kubernetes.io/tls".to_owned()),
            string_data: Some(fields),
            ..Secret::default()
        };
        api.create(&PostParams::default(), &secret).await
    };
    written.with_context(|| format!("the Secret {SERVICE_SECRET} could not be written"))?;
    tracing::info!("wrote the certificate of the service into the Secret {SERVICE_SECRET}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn a_secret_of_cert_manager_is_a_serving_certificate() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let bundle = Bundle::new(&["a".into()], Timestamp::now()).unwrap();
        let mut data = bundle.to_data();
        // cert-manager writes these three.
        data.retain(|name, _| ["ca.crt", "tls.crt", "tls.key"].contains(&name.as_str()));
        let serving = Serving::from_data(&data).unwrap();
        assert_eq!(serving, Serving::from(&bundle));
        assert!(serving.tls().is_ok());

        let other = Bundle::new(&["a".into()], Timestamp::now()).unwrap().to_data();
        let mixed = [data.clone(), [("tls.key".to_owned(), other["tls.key"].clone())].into()];
        let mixed = mixed.into_iter().flatten().collect();
        assert!(Serving::from_data(&mixed).unwrap().tls().is_err(), "the key of another certificate");
        for field in ["ca.crt", "tls.crt", "tls.key"] {
            let mut incomplete = data.clone();
            // cert-manager leaves ca.crt empty if the issuer does not provide it.
            incomplete.insert(field.into(), String::new());
            assert!(format!("{:#}", Serving::from_data(&incomplete).unwrap_err()).contains(field));
        }
    }
}
