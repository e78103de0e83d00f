//! A gateway that asks the service, over TLS.

use std::path::Path;
use std::time::Duration;

use sluice_service::messages::{
    AttributeContext, CheckRequest, CheckResponse, ContextExtensionsEntry, Entry, HttpRequest, HttpResponse,
    OVER_LIMIT, RateLimitDescriptor, RateLimitRequest, RateLimitResponse, Request as ShownRequest,
};
use sluice_tests::authority::Authority;
use tonic::client::Grpc;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

/// Writes the certificate of the service, its key, and the authority of its callers.
pub(crate) fn write_server(authority: &Authority, folder: &Path) {
    let (certificate, key) = authority.issue_dns("sluice-service");
    for (name, text) in [("tls.crt", certificate), ("tls.key", key), ("ca.crt", authority.pem())] {
        std::fs::write(folder.join(name), text).unwrap();
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
            .ca_certificate(Certificate::from_pem(authority.pem()))
            .domain_name("sluice-service");
        if let Some(uri) = uri {
            let (certificate, key) = authority.issue_uri(uri);
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
        // Without a deadline, 15 ms are left for Redis, which is not enough on a busy machine.
        request.set_timeout(Duration::from_secs(10));
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.parse().unwrap());
        }
        let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
        Ok(self.grpc.unary(request, path, codec).await?.into_inner())
    }

    /// Shows the head of a request. Returns the status of a denial, or 200.
    pub(crate) async fn shows(&mut self, target: &str, namespace: Option<&str>) -> Result<i32, Status> {
        let bytes = |text: &str| text.as_bytes().to_vec().into();
        let (method, path, host) = (bytes("GET"), bytes(target), bytes("shop.example"));
        let http = HttpRequest { method, path, host, ..HttpRequest::default() };
        let named = namespace.map(|namespace| ContextExtensionsEntry {
            key: "sluice.dev/namespace".to_owned(),
            value: namespace.to_owned(),
        });
        let attributes = AttributeContext {
            request: Some(ShownRequest { http: Some(http) }),
            context_extensions: named.into_iter().collect(),
            ..AttributeContext::default()
        };
        let path = "/envoy.service.auth.v3.Authorization/Check".parse().unwrap();
        self.grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut request = Request::new(CheckRequest { attributes: Some(attributes) });
        request.set_timeout(Duration::from_secs(10));
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.parse().unwrap());
        }
        let codec = ProstCodec::<CheckRequest, CheckResponse>::default();
        Ok(match self.grpc.unary(request, path, codec).await?.into_inner().http_response {
            Some(HttpResponse::DeniedResponse(denied)) => denied.status.map_or(0, |status| status.code),
            Some(HttpResponse::OkResponse(_)) => 200,
            None => 0,
        })
    }
}
