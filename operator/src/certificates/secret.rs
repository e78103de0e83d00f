//! The Secret of the certificates: read and written here, and its serving certificate given to the servers.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use axum_server::tls_rustls::RustlsConfig;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::watch;

use crate::certificates::bundle::Bundle;

/// Name of the Secret.
pub const SECRET: &str = "sluice-certificates";

/// The certificates of this replica, as the Secret has them.
#[derive(Clone)]
pub struct Certificates {
    api: Api<Secret>,
    names: Arc<[String]>,
    /// TLS configuration of the servers. [`Certificates::refresh`] updates it.
    pub tls: RustlsConfig,
    trusted: watch::Sender<String>,
}

impl Certificates {
    /// Reads the Secret, or creates it. If several replicas create it at the same time, all use the first
    /// one's.
    pub async fn load(client: kube::Client, namespace: &str, names: Vec<String>) -> anyhow::Result<Self> {
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
        let tls = RustlsConfig::from_config(server_config(&bundle)?);
        Ok(Self { api, names: names.into(), tls, trusted: watch::Sender::new(bundle.trusted) })
    }

    /// Returns the trusted authorities in PEM, and every change of them.
    #[must_use]
    pub fn trusted(&self) -> watch::Receiver<String> {
        self.trusted.subscribe()
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
        self.tls.reload_from_config(server_config(&bundle)?);
        self.trusted.send_if_modified(|old| {
            let changed = *old != bundle.trusted;
            if changed {
                old.clone_from(&bundle.trusted);
            }
            changed
        });
        Ok(())
    }
}

/// Reads the Secret and returns its contents with its resource version.
async fn read(api: &Api<Secret>) -> anyhow::Result<Option<(Bundle, Option<String>)>> {
    let secret =
        api.get_opt(SECRET).await.with_context(|| format!("the Secret {SECRET} could not be read"))?;
    let Some(secret) = secret else { return Ok(None) };
    let data: BTreeMap<String, String> = secret
        .data
        .unwrap_or_default()
        .into_iter()
        .map(|(name, bytes)| (name, String::from_utf8_lossy(&bytes.0).into_owned()))
        .collect();
    let bundle = Bundle::from_data(&data).with_context(|| {
        format!("the Secret {SECRET} is damaged: delete it and restart the operator to create it again")
    })?;
    Ok(Some((bundle, secret.metadata.resource_version)))
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

fn server_config(bundle: &Bundle) -> anyhow::Result<Arc<ServerConfig>> {
    let chain =
        CertificateDer::pem_slice_iter(bundle.certificate.as_bytes()).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(bundle.key.as_bytes())?;
    let mut config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
