//! The part of `maxKeys` that is in use, by limit. It falls without a further request, so it is computed when the
//! metrics are read.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use sluice_config::prepared::key_usage::KeyUsageMeter;

/// The meters by policy, as `NAMESPACE/NAME`, and limit.
type Meters = BTreeMap<(String, String), Weak<KeyUsageMeter>>;

/// The meters of all limits. Those of removed limits are dropped.
#[derive(Debug, Clone, Default)]
pub(super) struct KeyUsages(Arc<Mutex<Meters>>);

impl KeyUsages {
    /// Sets the meter of a limit, or removes it.
    pub(super) fn set(&self, policy: &str, limit: &str, meter: Option<&Arc<KeyUsageMeter>>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, meter| meter.strong_count() > 0);
        let labels = (policy.to_owned(), limit.to_owned());
        match meter {
            Some(meter) => all.insert(labels, Arc::downgrade(meter)),
            None => all.remove(&labels),
        };
    }
}

impl Collector for KeyUsages {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let help = "Part of maxKeys that is in use, from 0 to 1, as the responses of the store show it";
        let mut family = encoder.encode_descriptor("key_usage_ratio", help, None, MetricType::Gauge)?;
        for ((policy, limit), meter) in &*all {
            let Some(meter) = meter.upgrade() else { continue };
            let labels = [("policy", policy.as_str()), ("limit", limit.as_str())];
            ConstGauge::new(meter.share(Instant::now())).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
