//! Observes what a response shows about one charge.

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body::Frame;
use sluice_config::prepared::charge::{ResponseSource, SettlementTerms, grpc_status, integer};

use super::json_field::{EventData, JsonField};

/// The reason why there is no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoResponse {
    /// The application cannot be reached. The client receives this status.
    Unreachable(StatusCode),
    /// The request ended before a response. The application may have worked on it.
    Unknown,
}

/// The part of a response that concerns one charge, as far as it has been seen.
#[derive(Debug)]
pub(super) struct Observation {
    /// Whether the request counts; `None` while that is unknown.
    counts: Option<bool>,
    cost: ResponseCost,
}

/// The cost that a response adds.
#[derive(Debug)]
enum ResponseCost {
    /// Nothing of it has been seen, and nothing will be.
    Missing,
    /// It is known.
    Known(u64),
    /// It is in the trailers, or it is not known yet where it is.
    Later,
    /// So many bytes have passed.
    Bytes(u64),
    /// It is a number in the body.
    Json(Box<Json>),
}

#[derive(Debug)]
struct Json {
    field: JsonField,
    /// For a stream of events.
    events: Option<EventData>,
}

/// The result of an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Observed {
    /// Whether the request counts.
    pub(super) counts: bool,
    /// The cost that the response adds.
    pub(super) cost: u64,
    /// Whether the response should have had a cost, and did not.
    pub(super) is_missing: bool,
}

impl Observation {
    pub(super) fn new(terms: &SettlementTerms) -> Self {
        Self {
            counts: terms.count_when.is_none().then_some(true),
            cost: if terms.response.is_some() { ResponseCost::Later } else { ResponseCost::Known(0) },
        }
    }

    /// Reads the head of the response.
    pub(super) fn head(&mut self, terms: &SettlementTerms, status: StatusCode, headers: &HeaderMap) {
        if let Some(outcomes) = &terms.count_when {
            let by_code = outcomes.has_status_code(status.as_u16());
            // A call without a message has its status in the head. A status that cannot be read is unknown.
            self.counts = match grpc_status(headers) {
                _ if by_code => Some(true),
                _ if !terms.reads_grpc_status() || !is_grpc(headers) => Some(false),
                Some(status) => Some(outcomes.has_grpc_status(status)),
                None => None,
            };
        }
        if let Some(response) = &terms.response {
            self.cost = match &response.source {
                ResponseSource::Header(name) => known(integer(headers, name)),
                // A call without a message has its trailers in the head.
                ResponseSource::GrpcTrailer(name) => {
                    integer(headers, name).map_or(ResponseCost::Later, ResponseCost::Known)
                }
                ResponseSource::BodyBytes => ResponseCost::Bytes(0),
                ResponseSource::Reported => ResponseCost::Missing,
                ResponseSource::JsonField(_) if is_encoded(headers) => ResponseCost::Missing,
                ResponseSource::JsonField(path) => {
                    let events = has_content_type(headers, b"text/event-stream").then(EventData::default);
                    ResponseCost::Json(Box::new(Json { field: JsonField::new(path.clone()), events }))
                }
            };
        }
    }

    /// Notes that no response comes.
    pub(super) fn no_response(&mut self, terms: &SettlementTerms, reason: NoResponse) {
        match reason {
            NoResponse::Unreachable(status) => {
                let counts =
                    |outcomes: &sluice_config::policy::CountWhen| outcomes.has_status_code(status.as_u16());
                self.counts = Some(terms.count_when.as_ref().is_none_or(counts));
                // The application has done nothing.
                self.cost = ResponseCost::Known(0);
            }
            NoResponse::Unknown => {}
        }
    }

    /// Reads a part of the body, or the trailers.
    pub(super) fn frame(&mut self, terms: &SettlementTerms, frame: &Frame<Bytes>) {
        if let Some(data) = frame.data_ref() {
            match &mut self.cost {
                ResponseCost::Bytes(bytes) => *bytes = bytes.saturating_add(data.len() as u64),
                ResponseCost::Json(json) => json.read(data),
                ResponseCost::Missing | ResponseCost::Known(_) | ResponseCost::Later => {}
            }
        }
        let Some(trailers) = frame.trailers_ref() else { return };
        if self.counts.is_none()
            && let (Some(outcomes), Some(status)) = (&terms.count_when, grpc_status(trailers))
        {
            self.counts = Some(outcomes.has_grpc_status(status));
        }
        if let Some(ResponseSource::GrpcTrailer(name)) =
            terms.response.as_ref().map(|response| &response.source)
            && let Some(cost) = integer(trailers, name)
        {
            self.cost = ResponseCost::Known(cost);
        }
    }

    /// Reports whether the rest of the response changes nothing.
    pub(super) fn is_complete(&self) -> bool {
        match (self.counts, &self.cost) {
            (Some(false), _) | (Some(true), ResponseCost::Known(_) | ResponseCost::Missing) => true,
            (Some(true), ResponseCost::Later | ResponseCost::Bytes(_) | ResponseCost::Json(_))
            | (None, _) => false,
        }
    }

    /// Returns the result. `has_ended` tells that the response has come to its end.
    pub(super) fn result(&mut self, terms: &SettlementTerms, has_ended: bool) -> Observed {
        let reserve = terms.response.as_ref().map_or(0, |response| response.reserve);
        let at_least = if has_ended { 0 } else { reserve };
        let seen = match &mut self.cost {
            ResponseCost::Missing | ResponseCost::Later => None,
            ResponseCost::Known(cost) => Some(*cost),
            ResponseCost::Bytes(bytes) => Some((*bytes).max(at_least)),
            ResponseCost::Json(json) => {
                if has_ended {
                    json.field.end();
                }
                json.field.found().map(|number| number.max(at_least))
            }
        };
        Observed {
            counts: self.counts != Some(false),
            cost: seen.unwrap_or(reserve),
            is_missing: seen.is_none() && self.counts != Some(false),
        }
    }
}

impl Json {
    fn read(&mut self, data: &[u8]) {
        match &mut self.events {
            Some(events) => events.read(data, &mut self.field),
            None => self.field.read(data),
        }
    }
}

fn known(cost: Option<u64>) -> ResponseCost {
    cost.map_or(ResponseCost::Missing, ResponseCost::Known)
}

/// Reports whether a response is one of gRPC. That of gRPC-Web has its status in the body.
fn is_grpc(headers: &HeaderMap) -> bool {
    has_content_type(headers, b"application/grpc")
}

/// Reports whether the content type has this name, alone or followed by a parameter or a suffix.
fn has_content_type(headers: &HeaderMap, name: &[u8]) -> bool {
    let content = headers.get(CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
    content.split_at_checked(name.len()).is_some_and(|(start, rest)| {
        start.eq_ignore_ascii_case(name) && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
    })
}

fn is_encoded(headers: &HeaderMap) -> bool {
    headers.get_all(CONTENT_ENCODING).iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"))
}
