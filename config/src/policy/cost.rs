//! The cost of a request under a limit, and the outcomes that count.

use std::fmt;

use serde::{Deserialize, Serialize};
use sluice_limiter::MAX_COUNT;

use crate::policy::Empty;
#[cfg(feature = "schema")]
use crate::schema::{FIELD, HEADER, STATUS_CODES};

/// The cost of a request: how much of the limit it uses. Default: 1. At least one of request and response is required; the sum
/// is charged. Costs are integers from 0 to 1099511627776 (2^40).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("x-kubernetes-validations" = [{"rule": "has(self.request) || has(self.response)", "message": "at least one of request, response must be set"}])))]
#[serde(rename_all = "camelCase")]
pub struct Cost {
    /// Cost that the request itself has. Default: 1, or 0 beside `response`. A request that costs 0 is admitted if 1 is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestCost>,
    /// Cost that the response adds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<ResponseCost>,
}

/// The cost that a request itself has. Exactly one field is required.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum RequestCost {
    /// One cost for all requests.
    Number(#[cfg_attr(feature = "schema", schemars(with = "i64", range(min = 0, max = MAX_COUNT)))] u64),
    /// Name of a header with the cost. If it is repeated, the largest number counts. A header that is absent or no integer
    /// from 0 is a cost of 1. A client can send the header too: a proxy in front of the pods has to set or remove it.
    Header(
        #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128), regex(pattern = HEADER)))] String,
    ),
    /// The length of the body in bytes. The Content-Length is charged first, and corrected if less has passed. Without one, 1 is
    /// charged first, and the length when the body has passed.
    BodyBytes(Empty),
    /// Expression in CEL whose value is an int. Put it in single quotes. After an error, or if the value is negative, the cost
    /// is the largest value that the numbers in the expression can give, and at least 1: a client can cause an error. Numbers in
    /// conditions do not count. If applications understand a path in different ways, the largest value counts.
    Cel(#[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024)))] String),
}

/// The cost that a response adds. Exactly one of header, jsonField, grpcTrailer, bodyBytes and reported is required.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResponseCost {
    /// Cost that is charged when the request is admitted, and corrected when the response has the real one, or when whoever has
    /// asked the service reports it. Requests at the same time cannot use more than the limit if none costs more than its
    /// reserve. A response that ends early costs at least the reserve; so does one without a cost. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "i64", range(min = 0, max = MAX_COUNT)))]
    pub reserve: Option<u64>,
    /// Where the cost is found.
    #[serde(flatten)]
    pub source: ResponseCostSource,
}

/// The place of a cost in a response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ResponseCostSource {
    /// Name of a header of the response with the cost.
    Header(
        #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128), regex(pattern = HEADER)))] String,
    ),
    /// Field in the JSON of the body whose number is the cost, such as usage.total_tokens: up to 8 names with dots between
    /// them. In a stream of events (text/event-stream), of lines or of the objects of a list, the last such number counts. The
    /// body is not delayed. The application is asked to send it without compression, and as a whole.
    JsonField(
        #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 256), regex(pattern = FIELD)))] String,
    ),
    /// Name of a trailer with the cost, at the end of a gRPC call.
    GrpcTrailer(
        #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128), regex(pattern = HEADER)))] String,
    ),
    /// The length of the body in bytes.
    BodyBytes(Empty),
    /// Whoever has asked the service reports it: a gateway by hits at the end of the request, an application when it settles the
    /// reservation. Only with Service alone in enforcedBy: a sidecar would not learn it.
    Reported(Empty),
}

/// The outcomes of requests that count. All others are refunded when they are known. At least one field is required; a request
/// counts if its outcome is in either. A request whose outcome stays unknown counts: if the client leaves, or the application
/// ends the connection. If the application cannot be reached, the outcome is the status code 502.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("x-kubernetes-validations" = [{"rule": "has(self.statusCodes) || has(self.grpcStatuses)", "message": "at least one of statusCodes, grpcStatuses must be set"}])))]
#[serde(rename_all = "camelCase")]
pub struct CountWhen {
    /// Status codes of HTTP that count, such as "401" or "5xx".
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 32), extend("x-kubernetes-list-type" = "set")))]
    pub status_codes: Vec<StatusCodes>,
    /// Statuses of gRPC calls that count, such as UNAUTHENTICATED. They apply to responses with the content type application/grpc.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 17), extend("x-kubernetes-list-type" = "set")))]
    pub grpc_statuses: Vec<GrpcStatus>,
}

/// A status code of HTTP such as 401, or a class of them such as 5xx.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("minLength" = 3, "maxLength" = 3, "pattern" = STATUS_CODES)))]
#[serde(try_from = "String", into = "String")]
pub struct StatusCodes {
    /// The first code.
    first: u16,
    /// The last code.
    last: u16,
}

/// The status of a gRPC call, by its name in the specification of gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs)]
pub enum GrpcStatus {
    Ok = 0,
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Cost {
    /// Returns the cost that is charged before the response is known, if it is the same for all requests.
    #[must_use]
    pub fn constant(&self) -> Option<u64> {
        let reserve = self.response.as_ref().map_or(0, ResponseCost::reserve);
        let request = match &self.request {
            None => u64::from(self.response.is_none()),
            Some(RequestCost::Number(number)) => *number,
            Some(RequestCost::Header(_) | RequestCost::BodyBytes(_) | RequestCost::Cel(_)) => {
                return None;
            }
        };
        Some(request.saturating_add(reserve).min(MAX_COUNT))
    }
}

impl ResponseCost {
    /// Returns the cost that is charged before the response is known.
    #[must_use]
    pub fn reserve(&self) -> u64 {
        self.reserve.unwrap_or(1).min(MAX_COUNT)
    }
}

impl CountWhen {
    /// Reports whether a response with this HTTP status counts by its status alone.
    #[must_use]
    pub fn has_status_code(&self, code: u16) -> bool {
        self.status_codes.iter().any(|range| (range.first..=range.last).contains(&code))
    }

    /// Reports whether a gRPC call with this status counts by it.
    #[must_use]
    pub fn has_grpc_status(&self, status: u64) -> bool {
        self.grpc_statuses.iter().any(|counted| *counted as u64 == status)
    }
}

impl fmt::Display for StatusCodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}xx", self.first / 100)
        }
    }
}

impl From<StatusCodes> for String {
    fn from(codes: StatusCodes) -> Self {
        codes.to_string()
    }
}

impl TryFrom<String> for StatusCodes {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let class = text
            .strip_suffix("xx")
            .and_then(|class| class.parse().ok())
            .filter(|class| (1..6).contains(class));
        let code = text.parse().ok().map(|code| Self { first: code, last: code });
        let class = class.map(|class: u16| Self { first: class * 100, last: class * 100 + 99 });
        class
            .or(code)
            .ok_or_else(|| format!("{text:?} is neither a status such as 401 nor a class such as 5xx"))
    }
}
