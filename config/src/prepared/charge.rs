//! The charge of a limit for a request: what is known before the response, and what settles it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use http::{HeaderMap, HeaderName, HeaderValue};
use sluice_limiter::MAX_COUNT;

use crate::expression::{Expressions, PreparedExpression, Value, find};
use crate::matches::Purpose;
use crate::nack::Nack;
use crate::path::Readings;
use crate::policy::{Cost, CountWhen, GrpcStatus, LimitKind, RequestCost, ResponseCost, ResponseCostSource};
use crate::request::{HeaderField, RequestAttributes, Values};

/// The unit of a limit's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CostUnit {
    /// Each request counts one.
    Requests,
    /// Each request whose outcome counts is one.
    CountedRequests,
    /// Requests count as many bytes as their bodies have.
    Bytes,
    /// Requests have any costs.
    Units,
}

/// Charge for a request whose cost is not in the header that should have it, or is unknown before its body has passed.
const UNKNOWN: u64 = 1;

/// The charge of a limit for a request.
#[derive(Debug)]
pub struct PreparedCharge {
    request: RequestCharge,
    reserve: u64,
    settlement: Option<Arc<SettlementTerms>>,
    is_one: bool,
}

#[derive(Debug)]
enum RequestCharge {
    Number(u64),
    Header(Box<HeaderField>),
    BodyBytes,
    Expression {
        expression: PreparedExpression,
        /// The charge after an error: the largest value that its numbers can give. A client can cause errors, and must not pay
        /// less by that.
        after_error: u64,
    },
}

/// How the outcome of a request corrects its charge.
#[derive(Debug)]
pub struct SettlementTerms {
    /// Whether the length of the request's body is a part of the cost.
    pub counts_request_body: bool,
    /// The cost that the response adds.
    pub response: Option<ResponseCharge>,
    /// The outcomes that count; `None` for all.
    pub count_when: Option<CountWhen>,
}

/// The cost that a response adds.
#[derive(Debug)]
pub struct ResponseCharge {
    /// Where it is found.
    pub source: ResponseSource,
    /// The cost that was charged for it.
    pub reserve: u64,
}

/// The place of a cost in a response.
#[derive(Debug)]
pub enum ResponseSource {
    /// A header.
    Header(HeaderName),
    /// A trailer.
    GrpcTrailer(HeaderName),
    /// A number in the JSON of the body.
    JsonField(Arc<[Box<[u8]>]>),
    /// The length of the body in bytes.
    BodyBytes,
    /// Whoever has asked the service reports it. A response does not show it.
    Reported,
}

impl PreparedCharge {
    /// Prepares the charge of a limit.
    pub(super) fn new(kind: &LimitKind, expressions: &Expressions) -> Result<Self, Nack> {
        match kind {
            LimitKind::Rates(rates) => {
                Self::of(&rates.cost.clone().unwrap_or_default(), rates.count_when.as_ref(), expressions)
            }
            LimitKind::Slots(_) | LimitKind::Adaptive(_) => Self::of(&Cost::default(), None, expressions),
        }
    }

    fn of(cost: &Cost, count_when: Option<&CountWhen>, expressions: &Expressions) -> Result<Self, Nack> {
        let response = cost.response.as_ref().map(ResponseCharge::new).transpose()?;
        let reserve = response.as_ref().map_or(0, |response| response.reserve);
        let request = match &cost.request {
            None => RequestCharge::Number(u64::from(response.is_none())),
            Some(RequestCost::Number(number)) => RequestCharge::Number(*number),
            Some(RequestCost::Header(name)) => {
                RequestCharge::Header(Box::new(HeaderField::new(header(name)?)))
            }
            Some(RequestCost::BodyBytes(_)) => RequestCharge::BodyBytes,
            Some(RequestCost::Cel(text)) => {
                let expression = find(text, expressions)?;
                let after_error = u64::try_from(expression.largest_value()).unwrap_or(0).max(UNKNOWN);
                RequestCharge::Expression { expression: PreparedExpression::new(expression)?, after_error }
            }
        };
        let counts_request_body = matches!(request, RequestCharge::BodyBytes);
        let is_one = matches!(request, RequestCharge::Number(1)) && reserve == 0;
        let settles = counts_request_body || response.is_some() || count_when.is_some();
        let terms = || SettlementTerms { counts_request_body, response, count_when: count_when.cloned() };
        Ok(Self { request, reserve, is_one, settlement: settles.then(|| Arc::new(terms())) })
    }

    /// Reports whether every request is charged 1.
    #[must_use]
    pub fn is_one(&self) -> bool {
        self.is_one
    }

    /// Returns the unit of the limit's numbers.
    #[must_use]
    pub fn unit(&self) -> CostUnit {
        let response = self.settlement.as_ref().and_then(|terms| terms.response.as_ref());
        let counts_response = response.map(|response| matches!(response.source, ResponseSource::BodyBytes));
        match (&self.request, counts_response) {
            _ if self.is_one && self.settlement.is_some() => CostUnit::CountedRequests,
            _ if self.is_one => CostUnit::Requests,
            (RequestCharge::BodyBytes, None | Some(true)) | (RequestCharge::Number(0), Some(true)) => {
                CostUnit::Bytes
            }
            _ => CostUnit::Units,
        }
    }

    /// Reports whether the charge is an expression.
    #[must_use]
    pub fn has_expression(&self) -> bool {
        matches!(self.request, RequestCharge::Expression { .. })
    }

    /// Returns what is charged in advance for the cost that the response adds.
    #[must_use]
    pub fn reserve(&self) -> u64 {
        self.reserve
    }

    /// Returns how the outcome of a request corrects its charge, if it does.
    #[must_use]
    pub fn settlement(&self) -> Option<&Arc<SettlementTerms>> {
        self.settlement.as_ref()
    }

    /// Returns what a request is charged before its response is known. `address` returns the client's address. Adds one to
    /// `errors` if an expression has no value.
    #[inline]
    pub(super) fn before_response(
        &self,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        address: impl FnMut() -> IpAddr,
        errors: &AtomicU64,
    ) -> u64 {
        let charge = match &self.request {
            RequestCharge::Number(number) => *number,
            RequestCharge::Header(field) => largest(&request.header(field)).unwrap_or(UNKNOWN),
            // A body of unknown length is counted as it passes.
            RequestCharge::BodyBytes => request.body_bytes.unwrap_or(UNKNOWN),
            RequestCharge::Expression { expression, after_error } => {
                evaluate(expression, *after_error, request, path, address, errors)
            }
        };
        charge.saturating_add(self.reserve).min(MAX_COUNT)
    }
}

/// Returns the largest value of an expression for any reading of the path, so that no spelling is cheaper than another.
fn evaluate(
    expression: &PreparedExpression,
    after_error: u64,
    request: &RequestAttributes<'_>,
    path: &Readings<'_>,
    mut address: impl FnMut() -> IpAddr,
    errors: &AtomicU64,
) -> u64 {
    let (mut largest, mut has_error, mut is_first) = (0, false, true);
    let mut add = |reading: &str| {
        let value = match expression.evaluate_reading(request, reading, &mut address, &mut is_first) {
            Ok(Value::Int(value)) => u64::try_from(value).ok(),
            Ok(Value::Bool(_) | Value::Text(_)) | Err(_) => None,
        };
        has_error |= value.is_none();
        largest = largest.max(value.unwrap_or(after_error));
    };
    if expression.reads_path() {
        path.any(|reading| {
            add(reading.text());
            false
        });
    } else {
        add("");
    }
    if has_error {
        request.count_error(errors);
    }
    largest
}

impl ResponseCharge {
    fn new(cost: &ResponseCost) -> Result<Self, Nack> {
        let source = match &cost.source {
            ResponseCostSource::Header(name) => ResponseSource::Header(header(name)?),
            ResponseCostSource::GrpcTrailer(name) => ResponseSource::GrpcTrailer(header(name)?),
            ResponseCostSource::JsonField(path) => {
                ResponseSource::JsonField(path.split('.').map(|name| name.as_bytes().into()).collect())
            }
            ResponseCostSource::BodyBytes(_) => ResponseSource::BodyBytes,
            ResponseCostSource::Reported(_) => ResponseSource::Reported,
        };
        Ok(Self { source, reserve: cost.reserve() })
    }
}

impl SettlementTerms {
    /// Reports whether the body of the response has to be read as JSON.
    #[must_use]
    pub fn reads_json(&self) -> bool {
        self.response.as_ref().is_some_and(|response| matches!(response.source, ResponseSource::JsonField(_)))
    }

    /// Reports whether a gRPC status may decide whether a request counts.
    #[must_use]
    pub fn reads_grpc_status(&self) -> bool {
        self.count_when.as_ref().is_some_and(|outcomes| !outcomes.grpc_statuses.is_empty())
    }
}

fn header(name: &str) -> Result<HeaderName, Nack> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|_| Nack(format!("{name:?} is not the name of a header")))
}

/// Returns the largest of the integers in the headers with a name, and in lists in them: a client must not pay less by sending one
/// more.
fn largest(values: &Values<'_>) -> Option<u64> {
    if !values.is_complete() {
        return Some(MAX_COUNT);
    }
    let texts =
        values.readings(None, Purpose::Limit).filter_map(|(value, _)| std::str::from_utf8(value).ok());
    texts.filter_map(digits).max()
}

/// Returns the integer in a header. A header that is repeated has none: it is unknown which of its values counts.
#[must_use]
pub fn integer(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none()).and_then(number)
}

fn number(value: &HeaderValue) -> Option<u64> {
    digits(value.to_str().ok()?)
}

fn digits(text: &str) -> Option<u64> {
    let text = text.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // A number that does not fit is larger than any limit.
    is_number.then(|| text.parse().unwrap_or(MAX_COUNT).min(MAX_COUNT))
}

/// Name of the header or trailer with the status of a gRPC call.
pub const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The status of a call that has none is unknown, and not [`GrpcStatus::Unknown`].
#[must_use]
pub fn grpc_status(headers: &HeaderMap) -> Option<u64> {
    integer(headers, &GRPC_STATUS).filter(|status| *status <= GrpcStatus::Unauthenticated as u64)
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::policy::Empty;

    fn charge(cost: &Cost, headers: &[(&'static str, &'static str)], body_bytes: Option<u64>) -> u64 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        let uri = "/a".parse().unwrap();
        let peer = "192.0.2.1".parse().unwrap();
        let mut request = RequestAttributes::new(&Method::POST, &uri, &map, peer);
        request.body_bytes = body_bytes;
        let prepared = PreparedCharge::of(cost, None, &Expressions::new()).unwrap();
        prepared.before_response(&request, &request.path_readings(), || peer, &AtomicU64::new(0))
    }

    fn cost(request: Option<RequestCost>, reserve: Option<u64>) -> Cost {
        let source = ResponseCostSource::BodyBytes(Empty {});
        Cost { request, response: reserve.map(|reserve| ResponseCost { source, reserve: Some(reserve) }) }
    }

    #[test]
    fn a_request_costs_one_unless_its_response_has_the_cost() {
        assert_eq!(charge(&cost(None, None), &[], None), 1);
        assert_eq!(charge(&cost(None, Some(500)), &[], None), 500);
        assert_eq!(charge(&cost(Some(RequestCost::Number(3)), Some(500)), &[], None), 503);
        let (most, number) = (Some(u64::MAX), |n| Some(RequestCost::Number(n)));
        assert_eq!(charge(&cost(number(u64::MAX), most), &[], None), MAX_COUNT);
        assert_eq!(cost(number(2), Some(1)).constant(), Some(3));
        assert_eq!(cost(Some(RequestCost::BodyBytes(Empty {})), None).constant(), None);
    }

    #[test]
    fn a_header_without_one_integer_costs_one() {
        let by_header = cost(Some(RequestCost::Header("x-cost".to_owned())), None);
        for (headers, expected) in [
            (&[("x-cost", "25")][..], 25),
            (&[("x-cost", " 25 ")], 25),
            (&[("x-cost", "0")], 0),
            (&[], 1),
            (&[("x-cost", "-5")], 1),
            (&[("x-cost", "+5")], 1),
            (&[("x-cost", "2.5")], 1),
            (&[("x-cost", "25"), ("x-cost", "0"), ("x-cost", "x")], 25),
            (&[("x-cost", "0, 25,x")], 25),
            (&[("x-cost", "99999999999999999999999999")], MAX_COUNT),
        ] {
            assert_eq!(charge(&by_header, headers, None), expected, "{headers:?}");
        }
    }

    #[test]
    fn an_expression_without_a_value_costs_the_largest_value_of_its_numbers() {
        use crate::expression::{Comparison, Expression, Field, Node, Operator};
        // Without a value if the parameter is no number.
        let is_deep = |name: &str| {
            let number = Node::ToInt(Box::new(Node::Field(Field::Query(name.to_owned()))));
            Node::Compare(Comparison::Greater, Box::new((number, Node::Int(100))))
        };
        let part = |name: &str, cost: i64| Node::If(Box::new((is_deep(name), Node::Int(cost), Node::Int(1))));
        let sum = Node::Calculate(Operator::Add, Box::new((part("page", 30), part("size", 20))));
        for (root, costs) in [(part("page", 5), [1, 5, 5]), (sum, [2, 31, 50])] {
            let expressions = [("cost".to_owned(), Expression { patterns: Vec::new(), root })].into();
            let by_cel = cost(Some(RequestCost::Cel("cost".to_owned())), None);
            let prepared = PreparedCharge::of(&by_cel, None, &expressions).unwrap();
            let charge = |target: &str| {
                let (uri, headers, peer) =
                    (target.parse().unwrap(), HeaderMap::new(), "192.0.2.1".parse().unwrap());
                let request = RequestAttributes::new(&Method::GET, &uri, &headers, peer);
                prepared.before_response(&request, &request.path_readings(), || peer, &AtomicU64::new(0))
            };
            let targets = ["/?page=1&size=1", "/?page=101&size=1", "/?page=101&page=101&size=1"];
            assert_eq!(targets.map(charge), costs);
        }
    }

    #[test]
    fn a_body_costs_its_length() {
        let by_body = cost(Some(RequestCost::BodyBytes(Empty {})), None);
        assert_eq!([Some(0), Some(70), None].map(|bytes| charge(&by_body, &[], bytes)), [0, 70, 1]);
    }

    #[test]
    fn a_status_of_grpc_is_one_of_seventeen() {
        let status = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(GRPC_STATUS, HeaderValue::from_static(text));
            grpc_status(&headers)
        };
        assert_eq!(["0", "16", "17", "x", ""].map(status), [Some(0), Some(16), None, None, None]);
    }
}
