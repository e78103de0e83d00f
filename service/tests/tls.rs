//! The certificates of the gRPC port.

use std::path::Path;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use sluice_service::tls::TlsFiles;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};

use crate::support::{Caller, RULES, Running, of, question, start_with};

const RULE: &str =
    "{domain: d, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1000000}}]}";

/// An authority of certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap())
    }

    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (certificate.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    fn write_server(&self, folder: &Path) {
        let (certificate, key) = self.issue("sluice-service");
        std::fs::write(folder.join("tls.crt"), certificate).unwrap();
        std::fs::write(folder.join("tls.key"), key).unwrap();
        std::fs::write(folder.join("ca.crt"), self.0.pem()).unwrap();
    }
}

fn files(folder: &Path, client_name: Option<&str>) -> TlsFiles {
    TlsFiles {
        certificate: folder.join("tls.crt"),
        key: folder.join("tls.key"),
        client_ca: Some(folder.join("ca.crt")),
        is_client_optional: false,
        client_name: client_name.map(str::to_owned),
    }
}

/// Asks over a new connection. Returns whether there was an answer.
async fn asks(running: &Running, authority: &Authority, client: Option<&str>) -> bool {
    let mut tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(authority.0.pem()))
        .domain_name("sluice-service");
    if let Some(name) = client {
        let (certificate, key) = authority.issue(name);
        tls = tls.identity(Identity::from_pem(certificate, key));
    }
    let endpoint = Channel::from_shared(format!("https://{}", running.service.grpc())).unwrap();
    let Ok(channel) = endpoint.tls_config(tls).unwrap().connect().await else { return false };
    Caller::over(channel).ask(question("d", &[of(&[("k", "v")])])).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_need_a_certificate_of_the_authority_with_the_name_and_files_are_read_again() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (Authority::new(), Authority::new());
    old.write_server(folder.path());
    let tls = files(folder.path(), Some("envoy"));
    let running = start_with(|options| options.tls = Some(tls), RULES, &[RULE]).await;
    assert!(asks(&running, &old, Some("envoy")).await);
    assert!(!asks(&running, &old, None).await, "no certificate");
    assert!(!asks(&running, &old, Some("mallory")).await, "another name");
    assert!(!asks(&running, &old, Some("*.envoy")).await, "a wildcard for others");
    assert!(!asks(&running, &new, Some("envoy")).await, "another authority");

    // A file that cannot be used leaves the certificate as it is.
    std::fs::write(folder.path().join("tls.crt"), "no certificate").unwrap();
    assert!(asks(&running, &old, Some("envoy")).await);
    new.write_server(folder.path());
    let began = Instant::now();
    while !asks(&running, &new, Some("envoy")).await {
        assert!(began.elapsed() < Duration::from_secs(120), "the new certificates are used");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!asks(&running, &old, Some("envoy")).await, "the old authority is not trusted any more");
    // Later connections have nothing to do with the change.
    for _ in 0..20 {
        assert!(asks(&running, &new, Some("envoy")).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_with_a_certificate_that_cannot_be_used_does_not_start() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let start = |tls| async {
        let mut options = sluice_service::Options::new("127.0.0.1:0".parse().unwrap());
        options.tls = Some(tls);
        sluice_service::Service::start(options).await.unwrap_err().to_string()
    };
    let error = start(files(folder.path(), None)).await;
    assert!(error.contains("tls.crt: No such file"), "{error}");
    Authority::new().write_server(folder.path());
    std::fs::write(folder.path().join("ca.crt"), "").unwrap();
    let error = start(files(folder.path(), None)).await;
    assert!(error.ends_with("ca.crt: no certificate in PEM"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_may_be_covered_by_a_wildcard() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    authority.write_server(folder.path());
    let tls = files(folder.path(), Some("envoy.gateway.svc"));
    let running = start_with(|options| options.tls = Some(tls), RULES, &[RULE]).await;
    assert!(asks(&running, &authority, Some("*.gateway.svc")).await);
    assert!(!asks(&running, &authority, Some("*.svc")).await);
    let without_ca = TlsFiles { client_ca: None, ..files(folder.path(), Some("envoy")) };
    let mut options = sluice_service::Options::new("127.0.0.1:0".parse().unwrap());
    options.tls = Some(without_ca);
    let error = sluice_service::Service::start(options).await.unwrap_err().to_string();
    assert!(error.starts_with("the name envoy: "), "{error}");
}
