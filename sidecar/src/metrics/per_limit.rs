//! Values that limits keep themselves, and that are read with the metrics: the part of `maxKeys` that is in use, which
//! falls without a further request, and the number of requests for which a condition in CEL had no value.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use sluice_config::prepared::key_usage::KeyUsageMeter;

use crate::metrics::labels::LimitLabels;

/// A value of each limit that has one. Those of removed limits are dropped.
#[derive(Debug)]
struct PerLimit<T>(Mutex<BTreeMap<LimitLabels, Weak<T>>>);

impl<T> Default for PerLimit<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> PerLimit<T> {
    /// Sets the value of a limit, or removes it.
    fn set(&self, labels: &LimitLabels, value: Option<&Arc<T>>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, value| value.strong_count() > 0);
        match value {
            Some(value) => all.insert(labels.clone(), Arc::downgrade(value)),
            None => all.remove(labels),
        };
    }

    /// Encodes each value as a metric of a family.
    fn encode<M: EncodeMetric>(
        &self,
        mut encoder: DescriptorEncoder<'_>,
        (name, help, kind): (&str, &str, MetricType),
        read: impl Fn(&T) -> M,
    ) -> Result<(), Error> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in &*all {
            let Some(value) = value.upgrade() else { continue };
            read(&value).encode(family.encode_family(labels)?)?;
        }
        Ok(())
    }
}

/// The part of `maxKeys` that is in use.
#[derive(Debug, Clone, Default)]
pub(super) struct KeyUsages(Arc<PerLimit<KeyUsageMeter>>);

/// The number of requests for which a condition in CEL had no value.
#[derive(Debug, Clone, Default)]
pub(super) struct ExpressionErrors(Arc<PerLimit<AtomicU64>>);

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

impl Collector for KeyUsages {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Part of maxKeys that is in use, from 0 to 1, as the responses of the store show it";
        let metric = ("key_usage_ratio", help, MetricType::Gauge);
        self.0.encode(encoder, metric, |meter| ConstGauge::new(meter.share(Instant::now())))
    }
}

impl Collector for ExpressionErrors {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Requests for which an expression in CEL had an error since the policy was last changed: a condition, a cost or a \
                    part of a key. After an error a limit applies, and so does a tier with deny; another tier does not";
        let metric = ("expression_errors", help, MetricType::Counter);
        self.0.encode(encoder, metric, |errors| ConstCounter::new(errors.load(Ordering::Relaxed)))
    }
}
