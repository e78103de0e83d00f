//! A whole policy, ready to be applied to requests. It notices those that arrive through a proxy that it does not trust: all clients of
//! such a proxy are one client for it.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::Value;

use super::rate_set::Choice;
use super::{Blobs, Explained, Identified, NotApplied, PreparedLimit, Refusal};
use crate::client_address::{self, AddressHeader, ClientAddress, Resolved};
use crate::descriptor::DescriptorRules;
use crate::jwt::JwtVerifier;
use crate::key::{Identity, KeySource};
use crate::key_secret::KeySecret;
use crate::message::{PolicyFindings, UntrustedProxy};
use crate::nack::Nack;
use crate::occurrences::Occurrences;
use crate::path::Readings;
use crate::policy::{
    AmbiguousPaths, CompiledPolicy, Consistency, Mode, OnStoreFailure, PolicyHash, StatusHeaders,
};
use crate::request::RequestAttributes;

/// A policy, ready to be applied to requests.
#[derive(Debug)]
pub struct PreparedPolicy {
    /// Hash of the compiled policy.
    pub hash: PolicyHash,
    /// Namespace of the policy object.
    pub namespace: String,
    /// Name of the policy object.
    pub name: String,
    /// Decision about requests while the store does not respond.
    pub on_store_failure: OnStoreFailure,
    /// Location of the counters.
    pub consistency: Consistency,
    /// Name of the store.
    pub store: String,
    /// Whether sidecars and the service enforce it.
    pub is_shared: bool,
    /// Treatment of requests whose path can be read in several ways.
    pub ambiguous_paths: AmbiguousPaths,
    /// Headers that report the state of the limits.
    pub status_headers: Vec<StatusHeaders>,
    /// Limits of the policy.
    pub limits: Vec<PreparedLimit>,
    /// Verifiers of the tokens that identify clients.
    pub verifiers: Vec<Arc<JwtVerifier>>,
    /// The domain whose descriptors the limits are for. They then apply to no request of HTTP.
    pub domain: Option<Domain>,
    client_address: Option<ClientAddress>,
    untrusted_proxy: UntrustedProxyDetector,
    /// Number of requests for which a trusted proxy has reported something else than an address.
    pub unreadable_addresses: Arc<Occurrences>,
    /// Whether gateways have asked about a descriptor that a limit counts.
    asked: AtomicBool,
}

/// A domain, whose rules refer to the limits of a policy.
#[derive(Debug)]
pub struct Domain {
    /// The name, as gateways say it.
    pub name: String,
    /// The rules.
    pub rules: DescriptorRules,
    /// The number of the limit that counts descriptors which bring their own rate and have no rule.
    pub override_limit: u16,
}

impl PreparedPolicy {
    /// Prepares the policy of a domain. A nack names the limit that cannot be enforced.
    pub fn of_domain(policy: CompiledPolicy, domain: Domain) -> Result<Self, Nack> {
        let hash = PolicyHash::of(&policy.to_json());
        Ok(Self { domain: Some(domain), ..Self::new(policy, hash, &Blobs::default())? })
    }

    /// Prepares a policy that refers to no content from its JSON. A nack names the field, or the limit, that cannot be
    /// enforced.
    pub fn from_json(json: &str) -> Result<Self, Nack> {
        Self::with_blobs(json, &Blobs::default())
    }

    /// Prepares a policy from its JSON and the content that it refers to. A nack names the field, or the limit, that
    /// cannot be enforced.
    pub fn with_blobs(json: &str, blobs: &Blobs) -> Result<Self, Nack> {
        let unreadable = |path: &str, error: String| {
            let path = if path == "." { String::new() } else { format!("{path}: ") };
            Nack(format!(
                "{path}{error}: if the operator is newer than this sidecar, restart the pod to update it"
            ))
        };
        let mut written: Value =
            serde_json::from_str(json).map_err(|error| unreadable(".", error.to_string()))?;
        let policy: CompiledPolicy = serde_path_to_error::deserialize(&written)
            .map_err(|error| unreadable(&error.path().to_string(), error.inner().to_string()))?;
        let known = serde_json::to_value(&policy).map_err(Nack::new)?;
        if let Some(fields) = written.as_object_mut() {
            fields.remove("hints");
        }
        if let Some((path, name)) = unknown_field(&written, &known, "") {
            return Err(unreadable(&path, format!("unknown field `{name}`")));
        }
        Self::new(policy, PolicyHash::of(json), blobs)
    }

    fn new(policy: CompiledPolicy, hash: PolicyHash, blobs: &Blobs) -> Result<Self, Nack> {
        let verifiers = policy.jwt.iter().map(|jwt| {
            let parts = policy.limits.iter().flat_map(|limit| &limit.key);
            let claims = parts.filter_map(|part| match &part.source {
                KeySource::JwtClaim { jwt: name, claim } if *name == jwt.name => Some(claim.clone()),
                _ => None,
            });
            let claims: BTreeSet<_> = claims.collect();
            JwtVerifier::new(jwt, claims.into_iter().collect()).map(Arc::new)
        });
        let verifiers = verifiers.collect::<Result<Vec<_>, _>>()?;
        let limits = policy.limits.iter().map(|limit| {
            PreparedLimit::new(&policy, limit, blobs, &verifiers)
                .map_err(|nack| Nack(format!("limit {}: {nack}", limit.name)))
        });
        let limits = limits.collect::<Result<_, _>>()?;
        Ok(Self {
            limits,
            verifiers,
            hash,
            namespace: policy.namespace,
            name: policy.name,
            on_store_failure: policy.on_store_failure,
            consistency: policy.consistency,
            store: policy.store,
            is_shared: policy.is_shared,
            ambiguous_paths: match policy.mode {
                Mode::Enforce => policy.ambiguous_paths,
                Mode::Shadow => AmbiguousPaths::Match,
            },
            status_headers: policy.status_headers.unwrap_or_else(|| StatusHeaders::ALL.to_vec()),
            domain: None,
            client_address: policy.client_address.map(ClientAddress::canonical),
            unreadable_addresses: Arc::default(),
            untrusted_proxy: UntrustedProxyDetector::default(),
            asked: AtomicBool::new(false),
        })
    }

    /// Returns `NAMESPACE/NAME`.
    #[must_use]
    pub fn qualified_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Notes that a gateway has asked about a descriptor that a limit counts.
    pub fn note_asked(&self) {
        // Most questions find it noted, and must not write to what all workers read.
        if !self.is_asked() {
            self.asked.store(true, Ordering::Relaxed);
        }
    }

    /// Reports whether gateways have asked about a descriptor that a limit counts.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Returns what users should be told about the policy.
    #[must_use]
    pub fn findings(&self) -> PolicyFindings {
        let now = Instant::now();
        let names = |is_told: &dyn Fn(&PreparedLimit) -> bool| {
            self.limits.iter().filter(|limit| is_told(limit)).map(|limit| limit.name.clone()).collect()
        };
        PolicyFindings {
            untrusted_proxy: self.untrusted_proxy.proxy(),
            unreadable_addresses: self.unreadable_addresses.are_many(now),
            nearly_full: names(&|limit| limit.key_usage.is_high(now)),
            unclear_keys: names(&|limit| limit.unclear_keys().are_many(now)),
            asked: self.is_asked(),
        }
    }

    /// Reports whether connections of a peer may begin with a header of the PROXY protocol.
    #[must_use]
    pub fn accepts_proxy_protocol(&self, peer: IpAddr) -> bool {
        self.client_address.as_ref().is_some_and(|config| config.accepts_proxy_protocol(peer))
    }

    /// Reports whether it reads addresses of clients from headers.
    #[must_use]
    pub fn trusts_headers(&self) -> bool {
        let reads =
            |config: &ClientAddress| config.header.name().is_some() && !config.trusted_proxies.is_empty();
        self.client_address.as_ref().is_some_and(reads)
    }

    fn client_address(&self, request: &RequestAttributes<'_>) -> IpAddr {
        let (config, peer) = (self.client_address.as_ref(), request.peer);
        let header = client_address::untrusted_header(config, peer, request.address_headers);
        self.untrusted_proxy.observe(peer, header);
        let resolved = self.resolve(request);
        if resolved.is_unreadable && request.counts_errors {
            self.unreadable_addresses.count();
        }
        resolved.address
    }

    fn resolve(&self, request: &RequestAttributes<'_>) -> Resolved {
        let (config, headers) = (self.client_address.as_ref(), request.address_headers);
        client_address::resolve(config, request.peer, request.proxied, headers)
    }

    /// Describes the client of a request for operators, as the limit with this index identifies it. Only the public parts of the
    /// key are shown.
    #[must_use]
    pub fn describe_client(&self, limit: usize, request: &RequestAttributes<'_>) -> Arc<str> {
        let address = || self.resolve(request).address;
        let limit = self.limits.get(limit);
        let describe =
            |limit: &PreparedLimit| limit.describe_client(request, || request.path_readings(), address);
        limit.map_or_else(|| "".into(), describe)
    }

    /// Returns the pattern of the path by which the limit with this index applies to a request: what a log may have of it.
    #[must_use]
    pub fn path_pattern(&self, limit: usize, request: &RequestAttributes<'_>) -> Option<String> {
        let address = || self.resolve(request).address;
        self.limits.get(limit)?.path_pattern(request, &request.path_readings(), address)
    }

    /// Returns those of some limits that apply to a request, by their index, each with the client and the rates that
    /// decide. Leaves out limits that skip the request because it lacks a part of the key or its tier or plan is unlimited.
    /// `path` has the readings of the request's path.
    pub fn identify<'a, 'r: 'a>(
        &'a self,
        limits: impl Iterator<Item = usize> + 'a,
        request: &'a RequestAttributes<'r>,
        path: &'a Readings<'r>,
        secret: &'a KeySecret,
    ) -> impl Iterator<Item = (usize, Identified)> + 'a {
        let mut address = None;
        limits.filter_map(move |index| {
            let resolve = || *address.get_or_insert_with(|| self.client_address(request));
            let limit = self.limits.get(index)?;
            Some((index, apply(limit, request, path, secret, resolve).ok()?))
        })
    }

    /// Applies a limit to a request for operators, with the reason if it does not count the request.
    pub fn explain(
        &self,
        limit: &PreparedLimit,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        secret: &KeySecret,
    ) -> Explained {
        let address = self.resolve(request).address;
        let chosen = || limit.exception_of(request, path, || address).map_or("its rate", |found| found.name);
        let missing = || limit.missing_part(request, path, address);
        match apply(limit, request, path, secret, || address) {
            Ok(Identified::Counted { key, rates, cost }) => {
                let nobody = limit.is_shared_key(secret, key).then(missing);
                Explained::Counts { key, rates, cost, nobody }
            }
            Ok(Identified::Refused(Refusal::KeyMissing)) => {
                Explained::Denies(format!("{}, and onMissing is Deny", missing()))
            }
            Ok(Identified::Refused(Refusal::Tier)) => {
                Explained::Denies(format!("{} admits nothing", chosen()))
            }
            Err(NotApplied::KeyMissing) => {
                Explained::DoesNotApply(format!("{}, and onMissing is Skip", missing()))
            }
            Err(NotApplied::NotMatched) => {
                let failing = limit.failing_conditions(request, path, || address);
                let why = match failing.as_str() {
                    "" => "it is for descriptors of gateways".to_owned(),
                    failing => format!("the request does not fulfil {failing}"),
                };
                Explained::DoesNotApply(format!("{}: {why}", NotApplied::NotMatched))
            }
            Err(NotApplied::Unlimited) => Explained::DoesNotApply(format!("{} admits everything", chosen())),
            Err(reason) => Explained::DoesNotApply(reason.to_string()),
        }
    }
}

/// Applies a limit to a request: the client, and what decides.
fn apply(
    limit: &PreparedLimit,
    request: &RequestAttributes<'_>,
    path: &Readings<'_>,
    secret: &KeySecret,
    mut address: impl FnMut() -> IpAddr,
) -> Result<Identified, NotApplied> {
    if let Some(reason) = limit.not_matched(request, path, &mut address) {
        return Err(reason);
    }
    let exception = limit.exception_of(request, path, &mut address);
    let rates = match exception.map_or(Choice::Rates(0), |found| found.choice) {
        Choice::Rates(rates) => rates,
        Choice::Unlimited => return Err(NotApplied::Unlimited),
        Choice::Deny => return Ok(Identified::Refused(Refusal::Tier)),
    };
    if request.is_preflight() && !limit.applies_to_preflights() {
        return Err(NotApplied::Preflight);
    }
    let client = if limit.needs_address() { address() } else { request.peer };
    match limit.identify(secret, request, path, client) {
        Identity::Skip => Err(NotApplied::KeyMissing),
        Identity::Key(key) => {
            Ok(Identified::Counted { key, rates, cost: limit.cost(request, path, address) })
        }
        Identity::Deny => Ok(Identified::Refused(Refusal::KeyMissing)),
    }
}

/// Returns the first field that is written and not known, with the path of its object. `known` is what is written, as it was read and
/// written again: types whose fields are flattened do not tell of fields that they do not know.
fn unknown_field<'a>(written: &'a Value, known: &Value, path: &str) -> Option<(String, &'a str)> {
    match (written, known) {
        (Value::Object(fields), Value::Object(known)) => fields.iter().find_map(|(name, value)| {
            let Some(known) = known.get(name) else {
                // An empty list is left out where it is written again.
                return (*value != Value::Array(Vec::new())).then_some((path.to_owned(), name.as_str()));
            };
            let separator = if path.is_empty() { "" } else { "." };
            unknown_field(value, known, &format!("{path}{separator}{name}"))
        }),
        (Value::Array(items), Value::Array(known)) => {
            let mut pairs = items.iter().zip(known).enumerate();
            pairs.find_map(|(n, (item, known))| unknown_field(item, known, &format!("{path}[{n}]")))
        }
        _ => None,
    }
}

/// The lead of forwarded requests over others with which a proxy is reported. A few clients that send the header
/// themselves do not reach it, because the other requests reduce it.
const REPORTED_LEAD: u32 = 100;

/// Notices requests from peers that are not trusted, and that report a client's address all the same.
#[derive(Debug, Default)]
pub(super) struct UntrustedProxyDetector {
    /// The number of forwarded requests more than others, from 0 to [`REPORTED_LEAD`]. Concurrent requests may
    /// count as one.
    lead: AtomicU32,
    proxy: Mutex<Option<UntrustedProxy>>,
}

impl UntrustedProxyDetector {
    /// Counts a request, given the header in which a peer that is not trusted reports a client. Writes nothing
    /// while all requests are alike.
    pub(super) fn observe(&self, peer: IpAddr, header: Option<AddressHeader>) {
        let lead = self.lead.load(Relaxed);
        match header {
            Some(_) if lead == REPORTED_LEAD => {}
            Some(header) => {
                self.lead.store(lead + 1, Relaxed);
                if lead + 1 == REPORTED_LEAD {
                    self.set(Some(UntrustedProxy { peer: peer.to_canonical(), header }));
                }
            }
            None if lead == 0 => {}
            None => {
                self.lead.store(lead - 1, Relaxed);
                if lead == 1 {
                    self.set(None);
                }
            }
        }
    }

    /// Returns the proxy through which most requests arrive, if it is not trusted.
    pub(super) fn proxy(&self) -> Option<UntrustedProxy> {
        self.proxy.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, proxy: Option<UntrustedProxy>) {
        *self.proxy.lock().unwrap_or_else(PoisonError::into_inner) = proxy;
    }
}
