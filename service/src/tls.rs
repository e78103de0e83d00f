//! The certificates of the ports of callers, from files that are read again when they change.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use sluice_engine::FollowedFiles;
use sluice_host::serve::Tls;
use tokio::sync::watch;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

/// Interval at which the files are read.
const READ_EVERY: Duration = Duration::from_secs(5);

/// The files of a server's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate with those that lead to its authority, in PEM.
    pub certificate: PathBuf,
    /// Its private key, in PEM.
    pub key: PathBuf,
    /// The authorities of clients, in PEM. With it, a client without a certificate is refused.
    pub client_ca: Option<PathBuf>,
    /// Whether a client without a certificate is let in, because it may have a token.
    pub is_client_optional: bool,
    /// The name that the certificate of a client must have: a DNS name, for which it may have a wildcard, an address or a URI.
    pub client_name: Option<String>,
}

/// A certificate that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {reason}")]
pub struct TlsError {
    file: String,
    reason: String,
}

/// The contents of the files, and the configuration that was made of them.
type InUse = (Vec<Vec<u8>>, Arc<ServerConfig>);

/// The certificate in use. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Certificates {
    files: TlsFiles,
    current: Arc<ArcSwap<InUse>>,
    /// The number of changes of the clients' authorities.
    authorities: watch::Sender<u64>,
}

impl Certificates {
    /// Reads the files.
    pub(crate) fn read(files: TlsFiles) -> Result<Self, TlsError> {
        if let (Some(name), None) = (&files.client_name, &files.client_ca) {
            let reason = "callers need certificates to have a name: give the authorities that sign them too"
                .to_owned();
            return Err(TlsError { file: format!("the name {name}"), reason });
        }
        let bytes = files.bytes()?;
        let config = files.config(&bytes)?;
        let (current, authorities) = (ArcSwap::from_pointee((bytes, config)), watch::Sender::new(0));
        Ok(Self { files, current: Arc::new(current), authorities })
    }

    /// Reports whether a caller with this certificate may ask.
    pub(crate) fn accepts(&self, certificate: Option<&CertificateDer<'_>>) -> bool {
        let Some(name) = &self.files.client_name else { return true };
        certificate.is_some_and(|certificate| has_name(certificate, name))
    }

    /// Returns the certificates as a port takes them.
    pub(crate) fn tls(&self) -> Tls {
        let current = self.current.clone();
        Tls {
            config: Arc::new(move || current.load().1.clone()),
            authorities: Some(self.authorities.subscribe()),
        }
    }

    /// Takes changes of the files over. Never returns.
    pub(crate) async fn follow(self, files: FollowedFiles) {
        let name = self.files.certificate.display().to_string();
        let read = || self.files.bytes().map_err(|error| error.to_string());
        let apply = |bytes: &Vec<Vec<u8>>| {
            let config = self.files.config(bytes).map_err(|error| error.to_string())?;
            let is_same = self.current.load().0.get(2) == bytes.get(2);
            self.current.store(Arc::new((bytes.clone(), config)));
            if !is_same {
                self.authorities.send_modify(|changes| *changes += 1);
            }
            tracing::info!(file = name, "the certificate is in force");
            Ok(())
        };
        let bytes = self.current.load().0.clone();
        files.follow(&name, READ_EVERY, bytes, read, apply).await;
    }
}

impl TlsFiles {
    fn bytes(&self) -> Result<Vec<Vec<u8>>, TlsError> {
        let files = [&self.certificate, &self.key].into_iter().chain(&self.client_ca);
        files.map(|file| std::fs::read(file).map_err(|error: io::Error| failed(file, &error))).collect()
    }

    /// `bytes` has the contents in the order of the fields.
    fn config(&self, bytes: &[Vec<u8>]) -> Result<Arc<ServerConfig>, TlsError> {
        let certificates = pem_certificates(&self.certificate, &bytes[0])?;
        let key = PrivateKeyDer::from_pem_slice(&bytes[1]).map_err(|error| failed(&self.key, &error))?;
        let builder = ServerConfig::builder();
        let builder = match (&self.client_ca, bytes.get(2)) {
            (Some(file), Some(bytes)) => {
                let mut roots = RootCertStore::empty();
                for authority in pem_certificates(file, bytes)? {
                    roots.add(authority).map_err(|error| failed(file, &error))?;
                }
                let verifier = WebPkiClientVerifier::builder(Arc::new(roots));
                let verifier =
                    if self.is_client_optional { verifier.allow_unauthenticated() } else { verifier }.build();
                builder.with_client_cert_verifier(verifier.map_err(|error| failed(file, &error))?)
            }
            _ => builder.with_no_client_auth(),
        };
        let config = builder.with_single_cert(certificates, key);
        Ok(Arc::new(config.map_err(|error| failed(&self.certificate, &error))?))
    }
}

/// Reports whether a certificate is for a DNS name, an address or a URI.
fn has_name(certificate: &CertificateDer<'_>, name: &str) -> bool {
    if let (Ok(parsed), Ok(name)) = (ParsedCertificate::try_from(certificate), ServerName::try_from(name))
        && verify_server_name(&parsed, &name).is_ok()
    {
        return true;
    }
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return false };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return false };
    names.value.general_names.iter().any(|known| matches!(known, GeneralName::URI(known) if *known == name))
}

/// Reads all certificates of a file.
fn pem_certificates(file: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_slice_iter(bytes).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| failed(file, &error))?;
    if certificates.is_empty() {
        return Err(failed(file, &"no certificate in PEM"));
    }
    Ok(certificates)
}

fn failed(file: &Path, reason: &dyn ToString) -> TlsError {
    TlsError { file: file.display().to_string(), reason: reason.to_string() }
}
