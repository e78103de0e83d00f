//! The cost of a request under a limit, and the outcomes that count.

use serde::{Deserialize, Serialize};
use sluice_limiter::MAX_COUNT;

use crate::expression::Expression;

/// The cost of a request. Without one it is 1.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cost {
    /// Cost that the request itself has. If absent, it is 0 beside `response`, and otherwise 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestCost>,
    /// Cost that the response adds. If absent, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<ResponseCost>,
}

/// The cost that a request itself has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum RequestCost {
    /// One cost for all requests.
    Number(u64),
    /// The integer in the header with this name, in lower case.
    Header(String),
    /// The length of the body in bytes.
    BodyBytes,
    /// The value of an expression.
    Expression(Expression),
}

/// The cost that a response adds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResponseCost {
    /// Where the cost is found.
    pub source: ResponseCostSource,
    /// The cost that is charged before the response is known.
    pub reserve: u64,
}

/// The place of a cost in a response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum ResponseCostSource {
    /// The integer in the header with this name, in lower case.
    Header(String),
    /// The integer in the trailer with this name, in lower case.
    GrpcTrailer(String),
    /// The number in the JSON of the body at this path. In a stream of events or lines the last one counts.
    JsonField(Vec<String>),
    /// The length of the body in bytes.
    BodyBytes,
    /// Whoever has asked the service reports it.
    Reported,
}

/// The outcomes of requests that count.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Outcomes {
    /// Ranges of HTTP status codes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub status_codes: Vec<StatusCodes>,
    /// Statuses of gRPC calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grpc_statuses: Vec<GrpcStatus>,
}

/// A range of HTTP status codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StatusCodes {
    /// The first code.
    pub first: u16,
    /// The last code.
    pub last: u16,
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
        let reserve = self.response.as_ref().map_or(0, |response| response.reserve);
        let request = match &self.request {
            None => u64::from(self.response.is_none()),
            Some(RequestCost::Number(number)) => *number,
            Some(RequestCost::Header(_) | RequestCost::BodyBytes | RequestCost::Expression(_)) => {
                return None;
            }
        };
        Some(request.saturating_add(reserve).min(MAX_COUNT))
    }
}

impl Outcomes {
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
