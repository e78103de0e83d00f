//! The bodies of questions and answers. The `OpenAPI` document is made from them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::checks::json::{list, named, object, objects};

/// A check: limits that it names with the keys of clients, or a request. All its limits admit it, or none is charged.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
#[schemars(rename = "Check")]
pub(crate) struct CheckBody {
    /// The policy, as NAMESPACE/NAME. With `limit`, `key` and `cost` it names one limit; beside `request` it is the policy that the
    /// request is checked by.
    pub(crate) policy: Option<String>,
    /// Name of the limit. It may be left out if the policy has one alone.
    pub(crate) limit: Option<String>,
    /// The client: the value of each part of the limit's key, in their order. A value may be written as requests have it.
    #[serde(default, deserialize_with = "list::<_, _, 16>")]
    #[schemars(length(max = 16))]
    pub(crate) key: Option<Vec<String>>,
    /// The cost. Default: 1; with `reserve` what the policy reserves (`cost.response.reserve`), if it does. A cost of 0 is allowed if 1
    /// is left.
    #[schemars(range(min = 0, max = 1_099_511_627_776_u64))]
    pub(crate) cost: Option<u64>,
    /// Several limits, in place of one: all are charged, or none.
    #[serde(default, deserialize_with = "objects::<_, _, 32>")]
    #[schemars(length(min = 1, max = 32))]
    pub(crate) limits: Option<Vec<NamedLimitBody>>,
    /// A request, as a proxy would see it, in place of limits: those that match it are checked.
    #[serde(default, deserialize_with = "object")]
    pub(crate) request: Option<RequestBody>,
    /// The namespace whose policies a `request` is checked by, in place of one policy.
    pub(crate) namespace: Option<String>,
    /// Whether the limits are only looked at. Nothing is charged.
    pub(crate) peek: Option<bool>,
    /// The cost is charged in advance, and settled by the id in the answer.
    #[serde(default, deserialize_with = "object")]
    pub(crate) reserve: Option<ReserveBody>,
    /// Many checks, in place of one. Each is answered for itself, in their order.
    #[serde(default, deserialize_with = "objects::<_, _, 100>")]
    #[schemars(length(min = 1, max = 100))]
    pub(crate) checks: Option<Vec<CheckBody>>,
}

/// A limit, a client and a cost.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
#[schemars(rename = "NamedLimit")]
pub(crate) struct NamedLimitBody {
    /// The policy, as NAMESPACE/NAME. Default: that of the check.
    pub(crate) policy: Option<String>,
    /// Name of the limit. It may be left out if the policy has one alone.
    pub(crate) limit: Option<String>,
    /// The client: the value of each part of the limit's key, in their order. Default: that of the check.
    #[serde(default, deserialize_with = "list::<_, _, 16>")]
    #[schemars(length(max = 16))]
    pub(crate) key: Option<Vec<String>>,
    /// The cost. Default: that of the check.
    #[schemars(range(min = 0, max = 1_099_511_627_776_u64))]
    pub(crate) cost: Option<u64>,
}

/// A request of HTTP.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
#[schemars(rename = "Request")]
pub(crate) struct RequestBody {
    /// The method. Default: GET.
    pub(crate) method: Option<String>,
    /// The target: a URL such as `https://shop.example/orders?page=2`, or a path.
    pub(crate) url: String,
    /// The headers. Names are not case-sensitive. `content-length` is the length of the body, where a cost is.
    #[serde(default, deserialize_with = "named")]
    pub(crate) headers: BTreeMap<String, HeaderBody>,
    /// Address of the peer that has sent the request. Default: 127.0.0.1. Whether a header names the client instead is up to the policy.
    pub(crate) client_address: Option<IpAddr>,
}

/// The value of a header, or several.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a string or an array of strings")]
#[schemars(rename = "HeaderValue")]
pub(crate) enum HeaderBody {
    /// One value.
    One(String),
    /// The values of a header that is repeated.
    Several(Vec<String>),
}

/// How long a reservation can be settled.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
#[schemars(rename = "Reserve")]
pub(crate) struct ReserveBody {
    /// Time for which it can be settled, in seconds. Then the cost stays charged, and a slot of a limit on concurrent requests is free
    /// again. Default: 3600; for a limit on concurrent requests the `abandonedFor` of the policy.
    #[schemars(range(min = 1, max = 86400))]
    pub(crate) expires_after_seconds: Option<u64>,
}

/// The settlement of a reservation.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
#[schemars(rename = "Settlement")]
pub(crate) struct SettleBody {
    /// The id of the reservation.
    pub(crate) id: String,
    /// The cost in the end, which each limit of the reservation is charged instead of what was reserved. More is charged even if there
    /// is no room. Default: what was reserved.
    #[schemars(range(min = 0, max = 1_099_511_627_776_u64))]
    pub(crate) cost: Option<u64>,
}

/// The answer to a check.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "CheckResult")]
pub(crate) struct CheckAnswerBody {
    /// Whether the limits were only looked at, and nothing was charged.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) peek: bool,
    /// Whether no limit denies it.
    pub(crate) allowed: bool,
    /// The limits that it is about, in their order. A request that no limit matches has none.
    pub(crate) limits: Vec<LimitBody>,
    /// The reserved cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reservation: Option<ReservationBody>,
    /// The reason why the store did not decide, so that `onStoreFailure` of the policies has, in a
    /// word such as timeout, slow or unreachable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) store_failure: Option<&'static str>,
}

/// A limit, with its decision.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "LimitResult")]
pub(crate) struct LimitBody {
    /// The policy, as NAMESPACE/NAME.
    pub(crate) policy: String,
    /// Name of the limit.
    pub(crate) limit: String,
    /// Whether the limit allows it.
    pub(crate) allowed: bool,
    /// Whether the limit has no room, but is in Shadow or only marks requests, so that it allows it nevertheless.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) shadow_denied: bool,
    /// The number that the rate admits in each period; of a limit on concurrent requests their number. Absent if an override admits
    /// everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) quota: Option<u64>,
    /// Length of the period, in seconds. Absent for a limit on concurrent requests.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
    pub(crate) period_seconds: Option<f64>,
    /// The number that is left. Absent if an override admits everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remaining: Option<u64>,
    /// Time until the whole quota is free again if nothing else is charged, in seconds, rounded up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reset_seconds: Option<u64>,
    /// Whether the limit never has room for the cost.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) never_fits: bool,
    /// Time after which the same check may be allowed, in seconds, rounded up. Absent if the limit has room, or never has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after_seconds: Option<u64>,
}

/// Writes whole seconds without a fraction.
fn seconds<S: serde::Serializer>(seconds: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    match seconds {
        Some(whole) if whole.fract() == 0.0 => serializer.serialize_u64(*whole as u64),
        other => other.serialize(serializer),
    }
}

/// A reservation.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Reservation")]
pub(crate) struct ReservationBody {
    /// The id by which it is settled, at any replica. Whoever has it can settle the reservation.
    pub(crate) id: String,
    /// The number of limits in which something was reserved.
    #[serde(skip)]
    #[schemars(skip)]
    pub(crate) limits: usize,
    /// Time for which it can be settled, in seconds; of several limits the shortest.
    pub(crate) expires_in_seconds: u64,
}

/// The answers to many checks.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "CheckResults")]
pub(crate) struct BatchAnswerBody {
    /// The answers, in the order of the checks.
    pub(crate) results: Vec<CheckAnswerBody>,
}

/// The answer to a settlement.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "SettlementResult")]
pub(crate) struct SettleAnswerBody {
    /// Whether this call has settled the reservation of at least one limit. It is false if all were settled before or have expired,
    /// so the same settlement can be sent again.
    pub(crate) settled: bool,
    /// The limits of the reservation.
    pub(crate) limits: Vec<SettledLimitBody>,
}

/// A limit of a settled reservation.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "SettledLimit")]
pub(crate) struct SettledLimitBody {
    /// The policy, as NAMESPACE/NAME.
    pub(crate) policy: String,
    /// Name of the limit.
    pub(crate) limit: String,
    /// Whether this call has settled it.
    pub(crate) settled: bool,
    /// The cost that was reserved. Absent for a slot, and for what was settled before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reserved: Option<u64>,
}

/// Problem details (RFC 9457).
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Problem")]
pub(crate) struct ProblemBody {
    /// Always about:blank: the status and `title` say what kind of problem it is.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// The kind of the problem.
    pub(crate) title: &'static str,
    /// The status code.
    pub(crate) status: u16,
    /// The problem, and what to do.
    pub(crate) detail: String,
    /// The field of the body that it is due to, as a JSON pointer, such as /checks/3/key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) field: Option<String>,
}
