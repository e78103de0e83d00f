//! The Secret of the certificates: read and written here. Its serving certificate, or the one of another Secret that
//! cert-manager maintains, is given to the servers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use rustls::ServerConfig;
use sluice_host::logging::told;
use sluice_host::serve::Tls;
use tokio::sync::watch;

use crate::certificates::bundle::Bundle;
use crate::certificates::serving::Serving;

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
    trusted: watch::Sender<String>,
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
    #[must_use]
    pub fn tls(&self) -> Tls {
        let tls = self.tls.subscribe();
        Tls { config: Arc::new(move || tls.borrow().clone()), authorities: None }
    }

    /// Returns the authorities of the serving certificate in PEM, and every change of them.
    #[must_use]
    pub fn serving_authorities(&self) -> watch::Receiver<String> {
        self.serving_authorities.subscribe()
    }

    /// Returns the operator's own authorities in PEM, and every change of them.
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
