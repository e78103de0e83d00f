//! Checks the cost of requests.

use sluice_config::policy::{Cost, Rates, RequestCost, ResponseCost, ResponseCostSource};
use sluice_limiter as limiter;

use super::algorithm::Algorithm;
use crate::checks::field::Field;
use crate::expression::compile_cost;

/// The warning of a cost that a client can choose.
const CHOSEN: &str = "a client can send these values too, and so choose its cost: let a proxy in front of the pods set them, or \
                      remove them from what clients send";

/// Checks the cost of a request on its own.
pub(crate) fn check(at: &Field<'_>, cost: &Cost) {
    if *cost == Cost::default() {
        at.violation("needs at least one of request and response");
    }
    match &cost.request {
        Some(RequestCost::Header(_)) => at.at("request.header").warning(CHOSEN),
        Some(RequestCost::Cel(text)) => {
            let at = at.at("request.cel");
            if let Some(expression) = at.expression(text, compile_cost) {
                if expression.is_constant() {
                    at.warning("is the same for all requests: write `number`");
                } else if expression.reads_fields() {
                    at.warning(CHOSEN);
                }
            }
        }
        Some(RequestCost::Number(_) | RequestCost::BodyBytes(_)) | None => {}
    }
    let Some(ResponseCost { reserve, source }) = &cost.response else { return };
    let at = at.at("response");
    if let ResponseCostSource::JsonField(path) = source
        && let Some(rest) = path.strip_prefix("$.")
    {
        at.at("jsonField").violation(format_args!("begins with `$.`: write {rest}"));
    }
    match reserve {
        Some(0) => at.at("reserve").warning(
            "admits any number of requests at the same time while 1 is left: set it to what a request usually costs",
        ),
        Some(_) => {}
        None => at.at("reserve").warning(
            "is 1 if it is not set, so requests at the same time can use far more than the limit: set it to what a \
             request usually costs",
        ),
    }
}

/// Checks that the rates of a limit fit its cost and outcomes. `at_rates` has each list of rates with its place.
pub(crate) fn check_rates(
    at: &Field<'_>,
    algorithm: &Algorithm,
    rates: &Rates,
    at_rates: &[(Field<'_>, &[limiter::Rate])],
) {
    let settles = rates.count_when.is_some()
        || rates.cost.as_ref().is_some_and(|cost| {
            cost.response.is_some() || matches!(cost.request, Some(RequestCost::BodyBytes(_)))
        });
    if let Some(reason) = algorithm.irreversible().filter(|_| settles) {
        let field = match &rates.cost {
            _ if rates.count_when.is_some() => "countWhen",
            Some(Cost { response: Some(_), .. }) => "cost.response",
            Some(_) | None => "cost.request.bodyBytes",
        };
        at.at(field).violation(format_args!(
            "corrects a charge after the response, and {reason}: use another algorithm"
        ));
    }
    // More cost of a response is charged even if there is no room.
    let varies = rates.cost.as_ref().is_some_and(|cost| cost.constant().is_none() && cost.response.is_none());
    if rates.cost.as_ref().and_then(Cost::constant) == Some(0)
        && rates.cost.as_ref().is_some_and(|cost| cost.response.is_none())
    {
        at.at("cost.request.number").warning("counts no request, so the limit never denies one");
    }
    let constant = rates.cost.as_ref().and_then(Cost::constant).unwrap_or(0);
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
