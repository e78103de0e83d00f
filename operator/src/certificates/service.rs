//! The certificate of the service that gateways ask, in a Secret of its own.

use std::collections::BTreeMap;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::certificates::secret::Certificates;

/// Name of the Secret.
const SECRET: &str = "sluice-service-tls";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITY: &str = "ca.crt";

/// Issues the certificate for a Service, or renews it if it is due, and writes it into the Secret with the authority by which
/// gateways verify it.
pub async fn keep(
    client: kube::Client,
    certificates: &Certificates,
    namespace: &str,
    service: &str,
) -> anyhow::Result<()> {
    let api: Api<Secret> = Api::namespaced(client, namespace);
    let found =
        api.get_opt(SECRET).await.with_context(|| format!("the Secret {SECRET} could not be read"))?;
    let text = |field: &str| {
        let bytes = found.as_ref()?.data.as_ref()?.get(field)?;
        Some(String::from_utf8_lossy(&bytes.0).into_owned())
    };
    let base = format!("{service}.{namespace}");
    let names =
        [service.to_owned(), base.clone(), format!("{base}.svc"), format!("{base}.svc.cluster.local")];
    let present = text(CERTIFICATE).filter(|_| text(KEY).is_some());
    let (trusted, issued) = certificates.issue(&names, present.as_deref()).await?;
    let mut fields = BTreeMap::new();
    if text(AUTHORITY).as_ref() != Some(&trusted) {
        fields.insert(AUTHORITY.to_owned(), trusted);
    }
    if let Some((certificate, key)) = issued {
        fields.extend([(CERTIFICATE.to_owned(), certificate), (KEY.to_owned(), key)]);
    }
    if fields.is_empty() {
        return Ok(());
    }
    let written = if found.is_some() {
        let patch = json!({"stringData": fields});
        api.patch(SECRET, &PatchParams::default(), &Patch::Merge(&patch)).await
    } else {
        let secret = Secret {
            metadata: ObjectMeta { name: Some(SECRET.to_owned()), ..ObjectMeta::default() },
            type_: Some("kubernetes.io/tls".to_owned()),
            string_data: Some(fields),
            ..Secret::default()
        };
        api.create(&PostParams::default(), &secret).await
    };
    written.with_context(|| format!("the Secret {SECRET} could not be written"))?;
    tracing::info!("wrote the certificate of the service into the Secret {SECRET}");
    Ok(())
}
