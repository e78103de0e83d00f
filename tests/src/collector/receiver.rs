//! Receives spans by OTLP over HTTP, as a collector does.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::Read as _;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use flate2::read::GzDecoder;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::{span::SpanKind, status::StatusCode as SpanStatus};
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::span::Span;

/// A receiver in this process. Dropping it closes its connections.
#[derive(Debug)]
pub(super) struct Receiver {
    spans: Arc<Mutex<Vec<Span>>>,
    _tasks: JoinSet<()>,
}

impl Receiver {
    /// Listens on this address.
    pub(super) async fn start(address: &str) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let spans = Arc::<Mutex<Vec<Span>>>::default();
        let (received, mut tasks) = (spans.clone(), JoinSet::new());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let received = received.clone();
                let answer = service_fn(move |request| answer(request, received.clone()));
                connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        Self { spans, _tasks: tasks }
    }

    pub(super) fn spans(&self) -> Vec<Span> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn answer(
    request: Request<Incoming>,
    received: Arc<Mutex<Vec<Span>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let status = match (request.method(), request.uri().path()) {
        (&Method::POST, "/v1/traces") => match read(request).await {
            Some(spans) => {
                received.lock().unwrap_or_else(PoisonError::into_inner).extend(spans);
                StatusCode::OK
            }
            None => StatusCode::BAD_REQUEST,
        },
        _ => StatusCode::METHOD_NOT_ALLOWED,
    };
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    Ok(response)
}

async fn read(request: Request<Incoming>) -> Option<Vec<Span>> {
    let is_compressed = request.headers().get(header::CONTENT_ENCODING).is_some_and(|value| value == "gzip");
    let mut body = request.into_body().collect().await.ok()?.to_bytes().to_vec();
    if is_compressed {
        let mut plain = Vec::new();
        GzDecoder::new(&*body).read_to_end(&mut plain).ok()?;
        body = plain;
    }
    let export = ExportTraceServiceRequest::decode(&*body).ok()?;
    let mut spans = Vec::new();
    for of_resource in export.resource_spans {
        let resource = attributes(of_resource.resource.unwrap_or_default().attributes);
        for span in of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            let kind = SpanKind::try_from(span.kind).ok()?;
            let status = SpanStatus::try_from(span.status.unwrap_or_default().code).ok()?;
            let fields = [
                ("Trace ID", hex(&span.trace_id)),
                ("Parent ID", hex(&span.parent_span_id)),
                ("ID", hex(&span.span_id)),
                ("Name", span.name),
                ("Kind", format!("{kind:?}")),
                ("Status code", format!("{status:?}")),
            ];
            spans.push(Span {
                fields: fields.map(|(name, value)| (name.to_owned(), value)).into(),
                attributes: attributes(span.attributes),
                resource: resource.clone(),
            });
        }
    }
    Some(spans)
}

/// Returns attributes as a collector prints them: `Str(GET)`.
fn attributes(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let value = |attribute: &KeyValue| match attribute.value.as_ref()?.value.as_ref()? {
        any_value::Value::StringValue(text) => Some(format!("Str({text})")),
        any_value::Value::IntValue(number) => Some(format!("Int({number})")),
        other => Some(format!("{other:?}")),
    };
    let text = |attribute: KeyValue| (attribute.key.clone(), value(&attribute).unwrap_or_default());
    attributes.into_iter().map(text).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
