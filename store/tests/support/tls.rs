//! A certificate authority for a test, and a Redis with a certificate from it.

#![allow(unreachable_pub, dead_code, reason = "shared by several tests, none of which uses all of it")]

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use crate::support::{Redis, quiet_port};

/// A certificate authority for a test.
pub struct Authority {
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Issues a certificate for a name. Returns it and its key, in PEM.
    pub fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// The certificate files of a server.
pub struct Files(pub TempDir);

impl Files {
    pub fn new(authority: &Authority, name: &str) -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        let (certificate, key) = authority.issue(name);
        for (file, text) in [("ca", &authority.pem), ("certificate", &certificate), ("key", &key)] {
            std::fs::write(files.0.path().join(file), text).unwrap();
        }
        files
    }

    pub fn arguments(&self, clients: &str) -> Vec<String> {
        let path = |file: &str| self.0.path().join(file).to_string_lossy().into_owned();
        let pairs = [
            ("--tls-cert-file", path("certificate")),
            ("--tls-key-file", path("key")),
            ("--tls-ca-cert-file", path("ca")),
            ("--tls-auth-clients", clients.to_owned()),
        ];
        pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }
}

/// Starts a server that also listens with TLS. Returns it and its TLS port.
pub fn serve(files: &Files, clients: &str) -> (Redis, u16) {
    for _ in 0..10 {
        let port = quiet_port();
        let mut arguments = files.arguments(clients);
        arguments.extend(["--tls-port".to_owned(), port.to_string()]);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return (Redis::start(&arguments), port);
        }
    }
    panic!("no free port");
}
