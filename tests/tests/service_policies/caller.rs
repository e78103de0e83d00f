//! A gateway that asks the service, over TLS.

use std::path::Path;

use rcgen::string::Ia5String;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use sluice_service::messages::{Entry, OVER_LIMIT, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use tonic::client::Grpc;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

/// An authority of certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap())
    }

    fn issue(&self, name: SanType) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut certificate = CertificateParams::default();
        certificate.subject_alt_names = vec![name];
        (certificate.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    /// Writes the certificate of the service, its key, and the authority.
    pub(crate) fn write_server(&self, folder: &Path) {
        let (certificate, key) = self.issue(SanType::DnsName(Ia5String::try_from("sluice-service").unwrap()));
        for (name, text) in [("tls.crt", certificate), ("tls.key", key), ("ca.crt", self.0.pem())] {
            std::fs::write(folder.join(name), text).unwrap();
        }
    }
}

/// A gateway.
#[derive(Clone)]
pub(crate) struct Caller {
    grpc: Grpc<Channel>,
    token: Option<String>,
}

impl Caller {
    /// Connects, with a certificate for a URI if there is one.
    pub(crate) async fn connect(port: u16, authority: &Authority, uri: Option<&str>) -> Self {
        let mut tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(authority.0.pem()))
            .domain_name("sluice-service");
        if let Some(uri) = uri {
            let (certificate, key) = authority.issue(SanType::URI(Ia5String::try_from(uri).unwrap()));
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        let endpoint = Channel::from_shared(format!("https://127.0.0.1:{port}")).unwrap();
        let channel = endpoint.tls_config(tls).unwrap().connect().await.unwrap();
        Self { grpc: Grpc::new(channel), token: None }
    }

    /// Returns the same caller with a token.
    pub(crate) fn with_token(&self, token: &str) -> Self {
        Self { token: Some(format!("Bearer {token}")), ..self.clone() }
    }

    /// Asks about one descriptor. Returns whether the request may pass.
    pub(crate) async fn ask(&mut self, domain: &str, entries: &[(&str, &str)]) -> Result<bool, Status> {
        Ok(self.answer(domain, entries).await?.overall_code != OVER_LIMIT)
    }

    /// Asks about one descriptor.
    pub(crate) async fn answer(
        &mut self,
        domain: &str,
        entries: &[(&str, &str)],
    ) -> Result<RateLimitResponse, Status> {
        let entry = |(key, value): &(&str, &str)| Entry {
            key: key.as_bytes().to_vec().into(),
            value: value.as_bytes().to_vec().into(),
        };
        let descriptor =
            RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() };
        let question = RateLimitRequest {
            domain: domain.as_bytes().to_vec().into(),
            descriptors: vec![descriptor],
            ..Default::default()
        };
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit".parse().unwrap();
        self.grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut request = Request::new(question);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.parse().unwrap());
        }
        let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
        Ok(self.grpc.unary(request, path, codec).await?.into_inner())
    }
}
