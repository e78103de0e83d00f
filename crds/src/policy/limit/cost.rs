//! The cost of requests, and the outcomes that count.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::policy::{self as compiled, GrpcStatus, StatusCodes};
use sluice_limiter as limiter;

use super::algorithm::Algorithm;
use crate::checks::field::{Field, number};
use crate::expression::compile_cost;

/// The warning of a cost that a client can choose.
const CHOSEN: &str = "a client can send these values too, and so choose its cost: let a proxy in front of the pods set them, or \
                      remove them from what clients send";

/// The cost of a request: how much of the limit it uses. Default: 1. At least one of request and response is required; the sum
/// is charged. Costs are integers from 0 to 1099511627776 (2^40).
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.request) || has(self.response)").message("at least one of request, response must be set"))]
pub struct Cost {
    /// Cost that the request itself has. Default: 1, or 0 beside `response`. A request that costs 0 is admitted if 1 is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestCost>,
    /// Cost that the response adds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<ResponseCost>,
}

/// The cost that a request itself has. Exactly one field is required.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum RequestCost {
    /// One cost for all requests.
    Number(#[schemars(range(min = 0, max = 1_099_511_627_776i64))] i64),
    /// Name of a header with the cost. If it is repeated, the largest number counts. A header that is absent or no integer
    /// from 0 is a cost of 1. A client can send the header too: a proxy in front of the pods has to set or remove it.
    Header(#[schemars(length(min = 1, max = 128), regex(pattern = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"))] String),
    /// The length of the body in bytes. The Content-Length is charged first, and corrected if less has passed. Without one, 1 is
    /// charged first, and the length when the body has passed.
    BodyBytes(BodyBytes),
    /// Expression in CEL whose value is an int. Put it in single quotes. After an error, or if the value is negative, the cost
    /// is the largest value that the numbers in the expression can give, and at least 1: a client can cause an error. Numbers in
    /// conditions do not count. If applications understand a path in different ways, the largest value counts.
    Cel(#[schemars(length(min = 1, max = 1024))] String),
}

/// The cost that a response adds. Exactly one of header, jsonField, grpcTrailer, bodyBytes and reported is required.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResponseCost {
    /// Cost that is charged when the request is admitted, and corrected when the response has the real one, or when whoever has
    /// asked the service reports it. Requests at the same time cannot use more than the limit if none costs more than its
    /// reserve. A response that ends early costs at least the reserve; so does one without a cost. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_099_511_627_776i64))]
    pub reserve: Option<i64>,
    /// Where the cost is found.
    #[serde(flatten)]
    pub source: ResponseCostSource,
}

/// The place of a cost in a response.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum ResponseCostSource {
    /// Name of a header of the response with the cost.
    Header(#[schemars(length(min = 1, max = 128), regex(pattern = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"))] String),
    /// Field in the JSON of the body whose number is the cost, such as usage.total_tokens: up to 8 names with dots between
    /// them. In a stream of events (text/event-stream), of lines or of the objects of a list, the last such number counts. The
    /// body is not delayed. The application is asked to send it without compression, and as a whole.
    JsonField(
        #[schemars(
            length(min = 1, max = 256),
            regex(pattern = "^[A-Za-z0-9_$-]+([.][A-Za-z0-9_$-]+){0,7}$")
        )]
        String,
    ),
    /// Name of a trailer with the cost, at the end of a gRPC call.
    GrpcTrailer(
        #[schemars(length(min = 1, max = 128), regex(pattern = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"))] String,
    ),
    /// The length of the body in bytes.
    BodyBytes(BodyBytes),
    /// Whoever has asked the service reports it: a gateway by hits at the end of the request, an application when it settles the
    /// reservation. Only with Service alone in enforcedBy: a sidecar would not learn it.
    Reported(BodyBytes),
}

/// Has no fields: write {}.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct BodyBytes {}

/// The outcomes of requests that count. All others are refunded when they are known. At least one field is required; a request
/// counts if its outcome is in either. A request whose outcome stays unknown counts: if the client leaves, or the application
/// ends the connection. If the application cannot be reached, the outcome is the status code 502.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.statusCodes) || has(self.grpcStatuses)").message("at least one of statusCodes, grpcStatuses must be set"))]
pub struct CountWhen {
    /// Status codes of HTTP that count, such as "401" or "5xx".
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(min = 1, max = 32),
        inner(length(min = 3, max = 3), regex(pattern = "^[1-5]([0-9][0-9]|xx)$"))
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub status_codes: Vec<String>,
    /// Statuses of gRPC calls that count, such as UNAUTHENTICATED. They apply to responses with the content type application/grpc.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 17))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub grpc_statuses: Vec<GrpcStatus>,
}

impl Cost {
    pub(crate) fn compile(&self, at: &Field<'_>) -> Option<compiled::Cost> {
        if self.request.is_none() && self.response.is_none() {
            at.violation("needs at least one of request and response");
        }
        let request = match &self.request {
            Some(request) => Some(request.compile(&at.at("request"))?),
            None => None,
        };
        let response = self.response.as_ref().map(|response| response.compile(&at.at("response")));
        Some(compiled::Cost { request, response })
    }
}

impl RequestCost {
    fn compile(&self, at: &Field<'_>) -> Option<compiled::RequestCost> {
        Some(match self {
            Self::Number(cost) => compiled::RequestCost::Number(number(*cost)),
            Self::Header(name) => {
                at.at("header").warning(CHOSEN);
                compiled::RequestCost::Header(name.to_ascii_lowercase())
            }
            Self::BodyBytes(BodyBytes {}) => compiled::RequestCost::BodyBytes,
            Self::Cel(text) => {
                let at = at.at("cel");
                let expression = at.expression(text, compile_cost)?;
                if expression.is_constant() {
                    at.warning("is the same for all requests: write `number`");
                } else if expression.reads_fields() {
                    at.warning(CHOSEN);
                }
                compiled::RequestCost::Expression(expression)
            }
        })
    }
}

impl ResponseCost {
    fn compile(&self, at: &Field<'_>) -> compiled::ResponseCost {
        let source = match &self.source {
            ResponseCostSource::Header(name) => {
                compiled::ResponseCostSource::Header(name.to_ascii_lowercase())
            }
            ResponseCostSource::JsonField(path) => {
                compiled::ResponseCostSource::JsonField(path.split('.').map(str::to_owned).collect())
            }
            ResponseCostSource::GrpcTrailer(name) => {
                compiled::ResponseCostSource::GrpcTrailer(name.to_ascii_lowercase())
            }
            ResponseCostSource::BodyBytes(BodyBytes {}) => compiled::ResponseCostSource::BodyBytes,
            ResponseCostSource::Reported(BodyBytes {}) => compiled::ResponseCostSource::Reported,
        };
        if let ResponseCostSource::JsonField(path) = &self.source
            && let Some(rest) = path.strip_prefix("$.")
        {
            at.at("jsonField").violation(format_args!("begins with `$.`: write {rest}"));
        }
        let reserve = number(self.reserve.unwrap_or(1));
        if reserve == 0 {
            at.at("reserve").warning(
                "admits any number of requests at the same time while 1 is left: set it to what a request usually costs",
            );
        } else if self.reserve.is_none() {
            at.at("reserve").warning(
                "is 1 if it is not set, so requests at the same time can use far more than the limit: set it to what a \
                 request usually costs",
            );
        }
        compiled::ResponseCost { source, reserve }
    }
}

impl CountWhen {
    pub(crate) fn compile(&self, at: &Field<'_>) -> compiled::Outcomes {
        if self.status_codes.is_empty() && self.grpc_statuses.is_empty() {
            at.violation("needs at least one of statusCodes and grpcStatuses");
        }
        let mut status_codes: Vec<_> = self.status_codes.iter().filter_map(|text| codes(text)).collect();
        status_codes.sort_unstable_by_key(|range| (range.first, range.last));
        let mut grpc_statuses = self.grpc_statuses.clone();
        grpc_statuses.sort_unstable_by_key(|status| *status as u8);
        compiled::Outcomes { status_codes, grpc_statuses }
    }
}

/// Returns the codes of a text like 404 or 5xx.
fn codes(text: &str) -> Option<StatusCodes> {
    if let Some(class) = text.strip_suffix("xx") {
        let class = class.parse::<u16>().ok()?;
        return Some(StatusCodes { first: class * 100, last: class * 100 + 99 });
    }
    let code = text.parse().ok()?;
    Some(StatusCodes { first: code, last: code })
}

/// Checks that the rates of a limit fit its cost and outcomes. `at_rates` has each list of rates with its place.
pub(crate) fn check(
    at: &Field<'_>,
    algorithm: &Algorithm,
    rates: &compiled::Rates,
    at_rates: &[(Field<'_>, &[limiter::Rate])],
) {
    let settles = rates.count_when.is_some()
        || rates.cost.as_ref().is_some_and(|cost| {
            cost.response.is_some() || cost.request == Some(compiled::RequestCost::BodyBytes)
        });
    if let Some(reason) = algorithm.irreversible().filter(|_| settles) {
        let field = match &rates.cost {
            _ if rates.count_when.is_some() => "countWhen",
            Some(compiled::Cost { response: Some(_), .. }) => "cost.response",
            Some(_) | None => "cost.request.bodyBytes",
        };
        at.at(field).violation(format_args!(
            "corrects a charge after the response, and {reason}: use another algorithm"
        ));
    }
    // More cost of a response is charged even if there is no room.
    let varies = rates.cost.as_ref().is_some_and(|cost| cost.constant().is_none() && cost.response.is_none());
    if rates.cost.as_ref().and_then(compiled::Cost::constant) == Some(0)
        && rates.cost.as_ref().is_some_and(|cost| cost.response.is_none())
    {
        at.at("cost.request.number").warning("counts no request, so the limit never denies one");
    }
    let constant = rates.cost.as_ref().and_then(compiled::Cost::constant).unwrap_or(0);
    for (at_list, rates) in at_rates {
        for (n, rate) in rates.iter().enumerate() {
            let capacity = rate.capacity();
            if rate.requests.get() > 0 && constant > capacity {
                at_list.entry(n).warning(format_args!(
                    "denies every request: each costs {constant}, and there is room for {capacity}"
                ));
            } else if varies && capacity == 1 && rate.requests.get() > 1 {
                at_list.entry(n).warning(
                    "denies every request that costs more than 1, because its burst is 1: set `burst` to the largest cost \
                     of a request",
                );
            }
        }
    }
}
