//! The span of a request: from its arrival to the end of its response.

use std::borrow::Cow;
use std::time::SystemTime;

use http::{Method, Request, StatusCode, Version};
use opentelemetry::trace::{Span as _, SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};

use crate::answer::{LimitName, Summary};
use crate::trace::context::propagate;

/// The span of a request. It ends when it is dropped.
#[derive(Debug)]
pub struct RequestSpan {
    tracer: SdkTracer,
    span: Span,
    arrived: SystemTime,
    is_decided: bool,
    /// The value of `error.type`, if there is one. Without a response there is.
    error: Option<Cow<'static, str>>,
}

impl RequestSpan {
    /// Starts the span of an HTTP request, and makes it the parent of the application's.
    pub(super) fn of_request<B>(
        tracer: &SdkTracer,
        parent: Option<SpanContext>,
        request: &mut Request<B>,
    ) -> Self {
        let has_parent = parent.is_some();
        let method = known(request.method());
        // Paths have the ids of customers, and queries their secrets: neither is in spans.
        let version = match request.version() {
            Version::HTTP_10 => "1.0",
            Version::HTTP_2 => "2",
            _ => "1.1",
        };
        let attributes = [
            KeyValue::new("http.request.method", method.unwrap_or("_OTHER")),
            KeyValue::new("network.protocol.version", version),
        ];
        let started = Self::start(tracer, parent, method.unwrap_or("HTTP"), attributes);
        propagate(started.span.span_context(), has_parent, request.headers_mut());
        started
    }

    /// Starts the span of a call of a gRPC method, `SERVICE/METHOD`.
    pub(super) fn of_call(
        tracer: &SdkTracer,
        parent: Option<SpanContext>,
        full_method: &'static str,
    ) -> Self {
        let (service, method) = full_method.split_once('/').unwrap_or(("", full_method));
        let attributes = [("rpc.system", "grpc"), ("rpc.service", service), ("rpc.method", method)];
        Self::start(tracer, parent, full_method, attributes.map(|(key, value)| KeyValue::new(key, value)))
    }

    fn start(
        tracer: &SdkTracer,
        parent: Option<SpanContext>,
        name: &'static str,
        attributes: impl IntoIterator<Item = KeyValue>,
    ) -> Self {
        let (arrived, mut context) = (SystemTime::now(), Context::new());
        if let Some(parent) = parent {
            context = context.with_remote_span_context(parent);
        }
        let span = tracer
            .span_builder(name)
            .with_kind(SpanKind::Server)
            .with_start_time(arrived)
            .with_attributes(attributes)
            .start_with_context(tracer, &context);
        Self { tracer: tracer.clone(), span, arrived, is_decided: false, error: Some("no_response".into()) }
    }

    /// Records what the limits have decided, and how long that took.
    pub fn decided(&mut self, decision: &Summary<'_>) {
        let mut attributes = vec![KeyValue::new("sluice.decision", decision.outcome)];
        if let Some(LimitName { policy_namespace, policy, limit }) = decision.limit {
            attributes.extend([
                KeyValue::new("sluice.policy_namespace", policy_namespace.to_owned()),
                KeyValue::new("sluice.policy", policy.to_owned()),
                KeyValue::new("sluice.limit", limit.to_owned()),
            ]);
        }
        attributes
            .extend(decision.store_failure.map(|failure| KeyValue::new("sluice.store_failure", failure)));
        self.span.set_attributes(attributes);
        self.is_decided = true;
        drop(self.part_since("sluice.decide", self.arrived));
    }

    /// Records the answer to a question about a domain, if that is known, and its gRPC status.
    pub fn answered(
        &mut self,
        decision: &'static str,
        domain: Option<&str>,
        store_failure: Option<&'static str>,
        status: i64,
    ) {
        let attributes = [
            Some(KeyValue::new("sluice.decision", decision)),
            domain.map(|domain| KeyValue::new("sluice.domain", domain.to_owned())),
            store_failure.map(|failure| KeyValue::new("sluice.store_failure", failure)),
            Some(KeyValue::new("rpc.grpc.status_code", status)),
        ];
        self.span.set_attributes(attributes.into_iter().flatten());
        self.is_decided = true;
        self.error = (status != 0).then(|| status.to_string().into());
    }

    /// Starts a part of the request, which ends when it is dropped.
    #[must_use]
    pub fn part(&self, name: &'static str) -> Span {
        self.part_since(name, SystemTime::now())
    }

    fn part_since(&self, name: &'static str, since: SystemTime) -> Span {
        let context = Context::new().with_remote_span_context(self.span.span_context().clone());
        self.tracer.span_builder(name).with_start_time(since).start_with_context(&self.tracer, &context)
    }

    /// Records the head of the response.
    pub fn responded(&mut self, status: StatusCode) {
        self.span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        self.error = status.is_server_error().then(|| status.as_str().to_owned().into());
    }

    /// Records that the response was cut: the client left, or the application did.
    pub fn cut(&mut self) {
        self.error = Some("response_cut".into());
    }
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        if let Some(error) = self.error.take() {
            self.span.set_attribute(KeyValue::new("error.type", error));
            self.span.set_status(Status::error(""));
            if !self.is_decided {
                // The client has left, perhaps a queue, or the request was refused before its limits were asked.
                drop(self.part_since("sluice.decide", self.arrived));
            }
        }
    }
}

/// Returns a method that the semantic conventions know, so that clients cannot invent names of spans.
fn known(method: &Method) -> Option<&'static str> {
    let known = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "CONNECT", "TRACE"].into_iter();
    known.into_iter().find(|known| *known == method.as_str())
}
