//! The charges of an admitted request that its outcome corrects.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::Frame;
use sluice_config::prepared::charge::SettlementTerms;
use sluice_store::{PlannedCounter, Reservation};

use super::observation::{NoResponse, Observation, Observed};
use super::upload::{Upload, UploadMeter};
use crate::limit::correction::{self, Correction};
use crate::limit::index::LimitIndex;
use crate::limit::snapshot::Snapshot;
use crate::metrics::limit::SettlementMetrics;
use crate::stores::limiter_handle::LimiterHandle;

/// The charges of an admitted request that its outcome corrects. Dropping them settles them as they are: refunded before
/// the request is forwarded, and of an unknown outcome after that.
#[derive(Debug, Default)]
pub struct Charges(Option<Box<Open>>);

/// Charges that are not settled. Few requests have any.
#[derive(Debug, Default)]
struct Open {
    all: Vec<Charge>,
    /// Counts the body of the request, until it is forwarded.
    meter: Option<UploadMeter>,
    is_forwarded: bool,
}

#[derive(Debug)]
struct Charge {
    /// Taken when it is settled.
    charged: Option<Charged>,
    terms: Arc<SettlementTerms>,
    observation: Observation,
}

/// How far a request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Admitted,
    Forwarded,
    /// Its response has ended.
    Ended,
}

/// A charge in its store.
#[derive(Debug)]
struct Charged {
    limiter: LimiterHandle,
    counter: PlannedCounter,
    reservation: Reservation,
    /// The body of the request, if its length is a part of the cost and was not known.
    upload: Option<Upload>,
    metrics: SettlementMetrics,
}

impl Charges {
    /// Reports whether there is nothing to settle.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Adds other charges of the request.
    pub(crate) fn extend(&mut self, others: Self) {
        if let Some(mut others) = others.0 {
            self.open().all.append(&mut others.all);
        }
    }

    /// Adds the meter of the request's body.
    pub(crate) fn meter(&mut self, meter: UploadMeter) {
        self.open().meter = Some(meter);
    }

    fn open(&mut self) -> &mut Open {
        self.0.get_or_insert_default()
    }

    /// Adds a charge of a request, if its outcome corrects it. `upload` counts a body of unknown length.
    pub(crate) fn add(
        &mut self,
        snapshot: &Snapshot,
        index: LimitIndex,
        counter: &PlannedCounter,
        reservation: Reservation,
        upload: Option<&Upload>,
    ) {
        let limit = snapshot.limit(index);
        let Some((terms, metrics)) = limit.settlement.as_ref().zip(limit.metrics.settlements.as_ref()) else {
            return;
        };
        let upload = upload.filter(|_| terms.counts_request_body).cloned();
        let depends_on_outcome = terms.response.is_some() || terms.count_when.is_some();
        if reservation == Reservation::Nothing || !(depends_on_outcome || upload.is_some()) {
            return;
        }
        let charged = Charged {
            limiter: snapshot.limiter(index).clone(),
            counter: counter.clone(),
            reservation,
            upload,
            metrics: metrics.clone(),
        };
        let observation = Observation::new(terms);
        self.open().all.push(Charge { charged: Some(charged), terms: terms.clone(), observation });
    }

    /// Reports whether the body of the response is read as JSON.
    #[must_use]
    pub fn read_json(&self) -> bool {
        self.0.iter().flat_map(|open| &open.all).any(|charge| charge.terms.reads_json())
    }

    /// Notes that the request is being forwarded, and returns the meter of its body.
    pub(crate) fn forwarding(&mut self) -> Option<UploadMeter> {
        let open = self.0.as_mut()?;
        open.is_forwarded = true;
        open.meter.take()
    }

    /// Reads the head of the response.
    pub fn head(&mut self, status: StatusCode, headers: &HeaderMap) {
        let Some(open) = &mut self.0 else { return };
        open.all.retain_mut(|charge| {
            charge.observation.head(&charge.terms, status, headers);
            let is_complete = charge.observation.is_complete();
            if is_complete {
                charge.settle(Progress::Ended);
            }
            !is_complete
        });
        if open.all.is_empty() {
            self.0 = None;
        }
    }

    /// Notes that no response comes.
    pub fn no_response(&mut self, reason: NoResponse) {
        for charge in self.0.iter_mut().flat_map(|open| &mut open.all) {
            charge.observation.no_response(&charge.terms, reason);
        }
        self.0 = None;
    }

    /// Reads a part of the body, or the trailers.
    #[inline]
    pub fn frame(&mut self, frame: &Frame<Bytes>) {
        for charge in self.0.iter_mut().flat_map(|open| &mut open.all) {
            charge.observation.frame(&charge.terms, frame);
        }
    }

    /// Settles all charges at the end of the response.
    pub fn end(&mut self) {
        if let Some(mut open) = self.0.take() {
            open.all.iter_mut().for_each(|charge| charge.settle(Progress::Ended));
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let progress = if self.is_forwarded { Progress::Forwarded } else { Progress::Admitted };
        self.all.iter_mut().for_each(|charge| charge.settle(progress));
    }
}

impl Charge {
    fn settle(&mut self, progress: Progress) {
        let Some(charged) = self.charged.take() else { return };
        let observed = match progress {
            Progress::Admitted => Observed { counts: false, cost: 0, is_missing: false },
            Progress::Forwarded => self.observation.result(&self.terms, false),
            Progress::Ended => self.observation.result(&self.terms, true),
        };
        if observed.is_missing {
            charged.metrics.missing.inc();
        }
        let reserve = self.terms.response.as_ref().map_or(0, |response| response.reserve);
        correction::spawn(charged.settle(observed, reserve));
    }
}

impl Charged {
    /// Corrects the charge in the store.
    async fn settle(self, observed: Observed, reserve: u64) {
        let Self { limiter, counter, reservation, upload, metrics } = self;
        let cost = match upload {
            _ if !observed.counts => 0,
            Some(upload) => upload.bytes().await.saturating_add(observed.cost),
            None => counter.cost.saturating_sub(reserve).saturating_add(observed.cost),
        };
        let metric = if !observed.counts { &metrics.uncounted } else { &metrics.counted };
        metric.inc();
        let correction = Correction::to(cost, limiter, counter, reservation);
        if !correction.is_nothing() && correction.apply().await.is_err() {
            metrics.lost.inc();
        }
    }
}
