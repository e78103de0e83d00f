//! Values that policies keep themselves, and that are read with the metrics: the part of `maxKeys` that is in use, which
//! falls without a further request, and the numbers of requests for which an expression in CEL had an error, of keys and addresses that
//! are not clear, and of tokens that were refused.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use sluice_config::PreparedPolicy;
use sluice_config::jwt::{TokenRefusal, TokenRefusals};
use sluice_config::occurrences::Occurrences;
use sluice_config::prepared::key_usage::KeyUsageMeter;

use crate::metrics::labels::{JwtLabels, LimitLabels, PolicyLabels, RefusedTokenLabels};

/// A value of each limit, or another part of a policy, that has one. Those of removed parts are dropped.
#[derive(Debug)]
struct Values<L, T>(Mutex<BTreeMap<L, Weak<T>>>);

impl<L, T> Default for Values<L, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<L: Clone + Ord, T> Values<L, T> {
    /// Sets a value, or removes it.
    fn set(&self, labels: &L, value: Option<&Arc<T>>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, value| value.strong_count() > 0);
        match value {
            Some(value) => all.insert(labels.clone(), Arc::downgrade(value)),
            None => all.remove(labels),
        };
    }

    /// Encodes what `read` returns for each value as metrics of a family, with their labels.
    fn encode<A: EncodeLabelSet, M: EncodeMetric, I: IntoIterator<Item = (A, M)>>(
        &self,
        mut encoder: DescriptorEncoder<'_>,
        (name, help, kind): (&str, &str, MetricType),
        read: impl Fn(&L, &T) -> I,
    ) -> Result<(), Error> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in &*all {
            let Some(value) = value.upgrade() else { continue };
            for (labels, metric) in read(labels, &value) {
                metric.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// The part of `maxKeys` that is in use.
#[derive(Debug, Clone, Default)]
pub(super) struct KeyUsages(Arc<Values<LimitLabels, KeyUsageMeter>>);

/// The number of requests for which a condition in CEL had no value.
#[derive(Debug, Clone, Default)]
pub(super) struct ExpressionErrors(Arc<Values<LimitLabels, AtomicU64>>);

/// The number of requests whose key was not clear.
#[derive(Debug, Clone, Default)]
pub(super) struct UnclearKeys(Arc<Values<LimitLabels, Occurrences>>);

/// The number of requests of a policy for which a trusted proxy has reported no address.
#[derive(Debug, Clone, Default)]
pub(super) struct UnreadableAddresses(Arc<Values<PolicyLabels, Occurrences>>);

/// The numbers of refused tokens of each verifier.
#[derive(Debug, Clone, Default)]
pub(super) struct RefusedTokens(Arc<Values<JwtLabels, TokenRefusals>>);

impl KeyUsages {
    /// Sets the meter of a limit, or removes it.
    pub(super) fn set(&self, labels: &LimitLabels, meter: Option<&Arc<KeyUsageMeter>>) {
        self.0.set(labels, meter);
    }
}

impl ExpressionErrors {
    /// Sets the number of a limit, or removes it.
    pub(super) fn set(&self, labels: &LimitLabels, errors: Option<&Arc<AtomicU64>>) {
        self.0.set(labels, errors);
    }
}

impl UnclearKeys {
    /// Sets the number of a limit, or removes it.
    pub(super) fn set(&self, labels: &LimitLabels, keys: Option<&Arc<Occurrences>>) {
        self.0.set(labels, keys);
    }
}

impl UnreadableAddresses {
    /// Sets the number of a policy.
    pub(super) fn set(&self, policy: &PreparedPolicy) {
        let addresses = policy.trusts_headers().then_some(&policy.unreadable_addresses);
        self.0.set(&PolicyLabels::of(policy), addresses);
    }
}

impl RefusedTokens {
    /// Sets the numbers of a policy's verifiers.
    pub(super) fn set(&self, policy: &PreparedPolicy) {
        for verifier in &policy.verifiers {
            self.0.set(&JwtLabels::of(policy, verifier), Some(verifier.refusals()));
        }
    }
}

impl Collector for RefusedTokens {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "JSON Web Tokens that are refused because they are not valid, by the reason, since the policy was last \
                    changed. A token counts once in a second";
        self.0.encode(encoder, ("jwt_refused", help, MetricType::Counter), |jwt, refusals| {
            TokenRefusal::ALL.map(|reason| {
                let labels = RefusedTokenLabels { jwt: jwt.clone(), reason: reason.as_str() };
                (labels, ConstCounter::new(refusals.get(reason)))
            })
        })
    }
}

impl Collector for KeyUsages {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Part of maxKeys that is in use, from 0 to 1, as the responses of the store show it";
        let metric = ("key_usage_ratio", help, MetricType::Gauge);
        self.0.encode(encoder, metric, |labels, meter| {
            [(labels.clone(), ConstGauge::new(meter.share(Instant::now())))]
        })
    }
}

impl Collector for UnclearKeys {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Requests with a part of the key that is not clear, since the policy was last changed: repeated, not valid, or under a \
                    spelling of its name that not all applications know. They share one counter, or are denied with onMissing: Deny";
        let metric = ("unclear_keys", help, MetricType::Counter);
        self.0.encode(encoder, metric, |labels, keys| [(labels.clone(), ConstCounter::new(keys.total()))])
    }
}

impl Collector for UnreadableAddresses {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Requests for which a trusted proxy reports something else than an address, since the policy was last changed. Limits by \
                    clientIP count them for that proxy";
        let metric = ("unreadable_addresses", help, MetricType::Counter);
        self.0.encode(encoder, metric, |labels, addresses| {
            [(labels.clone(), ConstCounter::new(addresses.total()))]
        })
    }
}

impl Collector for ExpressionErrors {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Requests for which an expression in CEL had an error since the policy was last changed: a condition, a cost or a \
                    part of a key. After an error a limit applies, and so does a tier with deny; another tier does not";
        let metric = ("expression_errors", help, MetricType::Counter);
        self.0.encode(encoder, metric, |labels, errors| {
            [(labels.clone(), ConstCounter::new(errors.load(Ordering::Relaxed)))]
        })
    }
}
