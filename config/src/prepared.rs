//! A compiled policy made ready to be asked about requests: once a snapshot, so that nothing is parsed a request.

use std::net::IpAddr;

use http::{HeaderMap, Method};
use serde::Deserialize as _;
use sluice_limiter::Rate;

use crate::client_address;
use crate::concurrency::Concurrency;
use crate::key::{Identity, KeyBuilder, KeySecret};
use crate::matcher::Matcher;
use crate::path::normalize;
use crate::policy::{
    Capacity, ClientAddress, CompiledLimit, CompiledPolicy, CompiledRate, Consistency, Elastic, Mode,
    OnStoreFailure, PolicyHash,
};
use crate::rate::InvalidRate;

/// Why a policy cannot be enforced by this sidecar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Nack(pub String);

/// What limits look at in a request.
#[derive(Debug, Clone, Copy)]
pub struct RequestAttributes<'a> {
    /// The method.
    pub method: &'a Method,
    /// The path, as written, without the query.
    pub path: &'a str,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The address of whoever opened the connection.
    pub peer: IpAddr,
}

/// A policy, ready.
#[derive(Debug)]
pub struct PreparedPolicy {
    /// Its hash.
    pub hash: PolicyHash,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What to do when the store cannot answer.
    pub on_store_failure: OnStoreFailure,
    /// Where requests are counted.
    pub consistency: Consistency,
    /// Its limits.
    pub limits: Vec<PreparedLimit>,
    client_address: Option<ClientAddress>,
}

/// A limit, ready.
#[derive(Debug)]
pub struct PreparedLimit {
    /// Its name.
    pub name: String,
    /// `NAMESPACE/POLICY/LIMIT`: names its counters in a store.
    pub scope: String,
    /// What to do with a denial.
    pub mode: Mode,
    /// The rates; none of a limit of requests at a time.
    pub rates: Vec<Rate>,
    /// So many requests at a time, instead of rates.
    pub concurrency: Option<Concurrency>,
    /// Of an elastic limit, other numbers of the same rates.
    pub raised: Option<Raised>,
    matches: Vec<Matcher>,
    key: KeyBuilder,
}

/// What holds instead of a limit's rates while the pod has capacity to spare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raised {
    /// The rates, each with the tag of the limit's own: both count in the same records.
    pub rates: Vec<Rate>,
    /// They hold while fewer requests than this, in hundredths, are in flight on average.
    pub below: u64,
}

impl PreparedPolicy {
    /// Reads a policy as it travels.
    pub fn from_json(json: &str) -> Result<Self, Nack> {
        let mut from = serde_json::Deserializer::from_str(json);
        let policy = CompiledPolicy::deserialize(&mut from).and_then(|policy| from.end().map(|()| policy));
        let policy = policy.map_err(|error| Nack(format!("this sidecar does not know it: {error}")))?;
        Self::new(policy, PolicyHash::of(json))
    }

    fn new(policy: CompiledPolicy, hash: PolicyHash) -> Result<Self, Nack> {
        let limits = policy.limits.iter().map(|limit| {
            PreparedLimit::new(&policy.namespace, &policy.name, limit)
                .map_err(|refusal| Nack(format!("limit {}: {refusal}", limit.name)))
        });
        Ok(Self {
            limits: limits.collect::<Result<_, _>>()?,
            hash,
            namespace: policy.namespace,
            name: policy.name,
            on_store_failure: policy.on_store_failure,
            consistency: policy.consistency,
            client_address: policy.client_address,
        })
    }

    /// The limits that are about a request, with whose request it is. Those that skip it are left out.
    pub fn identify<'a>(
        &'a self,
        request: &'a RequestAttributes<'a>,
        path: &'a str,
        secret: &'a KeySecret,
    ) -> impl Iterator<Item = (usize, Identity)> + 'a {
        let mut address = None;
        self.limits.iter().enumerate().filter_map(move |(index, limit)| {
            if !limit.matches(request, path) {
                return None;
            }
            let address = if limit.key.needs_address() {
                *address.get_or_insert_with(|| {
                    client_address::resolve(self.client_address.as_ref(), request.peer, request.headers)
                })
            } else {
                request.peer
            };
            match limit.key.identify(secret, request.headers, address) {
                Identity::Skip => None,
                identity => Some((index, identity)),
            }
        })
    }
}

impl<'a> RequestAttributes<'a> {
    /// The path as limits see it; done once a request, whatever the number of limits.
    #[must_use]
    pub fn normal_path(&self) -> std::borrow::Cow<'a, str> {
        normalize(self.path)
    }
}

impl PreparedLimit {
    fn new(namespace: &str, policy: &str, limit: &CompiledLimit) -> Result<Self, Nack> {
        let bad = |error: InvalidRate| Nack(error.to_string());
        let concurrency = Concurrency::of(&limit.rates)?;
        let counted = if concurrency.is_some() { &[] } else { &limit.rates[..] };
        let rates = counted.iter().map(|rate| rate.rate().map_err(bad));
        let rates = rates.collect::<Result<Vec<_>, Nack>>()?;
        let repeated =
            rates.iter().enumerate().any(|(n, rate)| rates[..n].iter().any(|r| r.tag() == rate.tag()));
        if (rates.is_empty() && concurrency.is_none()) || rates.len() > 8 || repeated {
            return Err(Nack("1 to 8 rates of different periods are needed".into()));
        }
        Ok(Self {
            name: limit.name.clone(),
            scope: format!("{namespace}/{policy}/{}", limit.name),
            mode: limit.mode,
            raised: raised(counted)?,
            rates,
            concurrency,
            matches: limit.matches.iter().map(Matcher::new).collect::<Result<_, _>>()?,
            key: KeyBuilder::new(&limit.key, limit.on_missing)?,
        })
    }

    fn matches(&self, request: &RequestAttributes<'_>, path: &str) -> bool {
        self.matches.is_empty()
            || self.matches.iter().any(|m| m.matches(request.method, path, request.headers))
    }
}

/// The numbers of an elastic limit. It has one rate: of several, nobody could tell which is meant.
fn raised(rates: &[CompiledRate]) -> Result<Option<Raised>, Nack> {
    for rate in rates {
        let raised = rate.raised().map_err(|error| Nack(error.to_string()))?;
        if let Some((raised, &Elastic { below_percent, capacity: Capacity::InFlight(most), .. })) = raised {
            if rates.len() != 1 {
                return Err(Nack("an elastic limit has exactly one rate".into()));
            }
            return Ok(Some(Raised { rates: vec![raised], below: below_percent.saturating_mul(most) }));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(extra: &str, rates: &str) -> String {
        format!(
            r#"{{"namespace":"n","name":"p","mode":"Enforce","onStoreFailure":"Allow"{extra},
            "limits":[{{"name":"l","mode":"Enforce","onMissing":"Shared","rates":[{rates}]}}]}}"#
        )
    }

    const RATE: &str = r#"{"requests":1,"periodMillis":1000,"algorithm":"fixedWindow"}"#;

    #[test]
    fn an_unknown_field_is_ignored_and_an_unknown_kind_refused() {
        assert!(PreparedPolicy::from_json(&json(r#","later":1"#, RATE)).is_ok());
        let refusal =
            PreparedPolicy::from_json(&json("", &RATE.replace("fixedWindow", "magic"))).unwrap_err();
        assert!(refusal.0.contains("magic"), "{refusal}");
    }

    #[test]
    fn nonsense_is_refused_with_its_place() {
        for (rates, word) in [
            (RATE.replace(":1000", ":0"), "out of range"),
            (String::new(), "1 to 8 rates"),
            (format!("{RATE},{RATE}"), "different periods"),
            (RATE.replace("\"fixedWindow\"", r#"{"gcra":{"burst":0}}"#), "out of range"),
            (format!("{},{}", elastic(60_000), RATE), "exactly one rate"),
        ] {
            let refusal = PreparedPolicy::from_json(&json("", &rates)).unwrap_err();
            assert!(refusal.0.contains(word) && refusal.0.starts_with("limit l"), "{refusal}");
        }
    }

    fn elastic(period: u64) -> String {
        format!(
            r#"{{"requests":2,"periodMillis":{period},"algorithm":{{"elastic":{{"algorithm":"fixedWindow",
            "requests":20,"belowPercent":70,"capacity":{{"inFlight":40}}}}}}}}"#
        )
    }

    #[test]
    fn an_elastic_limit_has_two_numbers_for_the_same_counts() {
        let policy = PreparedPolicy::from_json(&json("", &elastic(60_000))).unwrap();
        let limit = &policy.limits[0];
        let raised = limit.raised.as_ref().unwrap();
        assert_eq!(raised.below, 2800, "28 requests in hundredths");
        assert_eq!((limit.rates[0].requests.get(), raised.rates[0].requests.get()), (2, 20));
        assert_eq!(limit.rates[0].tag(), raised.rates[0].tag());
    }
}
