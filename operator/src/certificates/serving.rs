//! The serving certificate, as the servers use it: the operator's own, or one that cert-manager issues, in a Secret of
//! the type `kubernetes.io/tls`.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::NoServerSessionStorage;
use rustls::{CipherSuite, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::certificates::bundle::Bundle;

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
