//! What one holder has of one key: a block of quota and what it knows of the counter. Pure: instants are microseconds of
//! a clock of this process that never goes back; what the store's clock says is only ever subtracted from itself.
//!
//! How large a block is:
//!
//! - a quarter of this holder's part of what is left in the store, or all of that part when it is small: blocks shrink
//!   as the counter fills, so that little is left over anywhere at the end;
//! - no more than this holder will use before the block ends, at its pace, and of more than a few only what it will use
//!   within two seconds: a holder that dies takes no more with it;
//! - no more than twice the block before: who is new begins small.
//!
//! Where a holder's part of the whole number is below [`LEAST_PART`], nothing is taken in advance: a call a request.
//!
//! After a denial by the store nobody is asked for [`Holding::wait_after_denial`]. That may be longer than the store's
//! own retry-after, and so may deny what the store would admit: quota that comes back bit by bit is worth a call only
//! when there is some of it, and is not lost meanwhile. The wait never passes the end of a fixed window, where it would
//! be. As others give back what they do not use, one of the requests that are denied meanwhile asks all the same: one of
//! [`MANY_DENIED`], and one a minute. A block that nobody has used for much longer than was usual goes back whole.

use sluice_limiter::Decision;
use smallvec::SmallVec;

use super::pace::{Pace, Part};
use super::terms::{Terms, capacity, freed, slot, used};
use crate::check::{CheckResponse, KeyHash, LimitSpec};

/// The part of a limit's number below which a holder takes nothing in advance. Below about 50 there is little to gain;
/// an estimate may be wrong by half.
const LEAST_PART: f64 = 20.0;

/// A block this small is not cut further.
const SMALL: f64 = 25.0;

/// The least time between two questions to a counter that was found empty, in microseconds, unless the period is short.
const FLOOR: u64 = 50_000;

/// The smallest block that is worth a call where quota comes back bit by bit.
const WORTH: f64 = 5.0;

/// The same where this holder's part of the number is large: so much of it, up to a block that makes calls rare.
const WORTH_PART: f64 = 0.05;
const WORTH_MOST: f64 = 40.0;

/// For how long a block of more than [`SMALL`] is taken ahead, in microseconds.
const AHEAD: u64 = 2_000_000;

/// Of so many requests that are denied without asking one asks, but not before [`SOON`]; and one does after [`LATE`],
/// however few they are. In microseconds.
const MANY_DENIED: u32 = 64;
const SOON: u64 = 1_000_000;
const LATE: u64 = 60_000_000;

/// An unused block is looked at this often, in microseconds.
const LOOK: u64 = 1_000_000;

/// What may be needed in a time in which so much is expected: some more, and more of little, as requests come by chance.
fn at_most(expected: f64) -> f64 {
    1.1 * expected + expected.sqrt()
}

/// Decisions about the rates of one limit.
pub(crate) type Decisions = SmallVec<[Decision; 2]>;

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is admitted from the block; so much more is to be taken in the background, if it is not 0.
    Admit(u64),
    /// It is denied: the store has nothing, as far as is known.
    Deny,
    /// So much is to be taken, and the request waits for it.
    Take(u64),
    /// A taking is under way; the request waits for it.
    Wait,
    /// It is worth no block: ask the store about this request alone.
    Call,
}

/// A block to be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Return {
    /// How much.
    pub(crate) amount: u64,
    /// The instant of the store's clock that names what was charged.
    pub(crate) charged: u64,
}

/// What the store said last.
#[derive(Debug, Clone)]
struct Last {
    decisions: Decisions,
    /// When, by this process's clock.
    received: u64,
    /// When, by the store's.
    at: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Holding {
    left: u64,
    /// When the block ends, by this process's clock: before its slot does by the store's.
    ends: u64,
    /// The slot's end by the store's clock: blocks with the same one may be put together.
    slot: u64,
    /// What names the charge.
    charged: u64,
    /// The size of the last block taken.
    block: u64,
    /// The most that is taken next.
    most: u64,
    /// Whether a taking is under way.
    taking: bool,
    pace: Pace,
    part: Part,
    last: Option<Last>,
    /// Until when whoever asks for `denied_cost` or more is denied without asking.
    denied_until: u64,
    denied_cost: u64,
    /// Since when nobody has asked, and how many were denied since then.
    denied_since: u64,
    denied: u32,
    /// When the store would admit again, by its own word.
    retry_at: u64,
    /// How many times in a row the store had nothing.
    denials: u32,
    /// What ended unused.
    pub(crate) lost: u64,
}

impl Holding {
    /// Nothing yet. `holders`: how many there are supposed to be.
    pub(crate) fn new(now: u64, holders: u64) -> Self {
        Self {
            left: 0,
            ends: 0,
            slot: 0,
            charged: 0,
            block: 0,
            most: 1,
            taking: false,
            pace: Pace::new(now),
            part: Part::of(holders),
            last: None,
            denied_until: 0,
            denied_cost: 0,
            denied_since: 0,
            denied: 0,
            retry_at: 0,
            denials: 0,
            lost: 0,
        }
    }

    /// Whether nothing is lost if it is forgotten but what was learnt.
    pub(crate) fn is_idle(&self) -> bool {
        self.left == 0 && !self.taking
    }

    /// What becomes of a request of this cost.
    pub(crate) fn ask(&mut self, spec: &LimitSpec, terms: &Terms, now: u64, cost: u64) -> Step {
        self.pace.ask(now, cost.max(1));
        self.again(spec, terms, now, cost)
    }

    /// As [`Holding::ask`], for a request that has waited.
    pub(crate) fn again(&mut self, spec: &LimitSpec, terms: &Terms, now: u64, cost: u64) -> Step {
        self.end(now);
        if self.left >= cost.max(1) {
            self.left -= cost;
            let low = self.left <= self.low_water(terms, now) && !self.taking && now >= self.denied_until;
            let more = if low { self.wanted(spec, terms, now) } else { 0 };
            let more = if more >= WORTH as u64 && now + terms.longest / 32 < self.ends { more } else { 0 };
            self.taking |= more > 0;
            return Step::Admit(more);
        }
        if now < self.denied_until && cost.max(1) >= self.denied_cost {
            let waited = now.saturating_sub(self.denied_since);
            self.denied = self.denied.saturating_add(1);
            if waited < LATE && (waited < SOON || self.denied < MANY_DENIED) {
                return Step::Deny;
            }
            // This one asks, for itself alone.
            (self.denied_since, self.denied) = (now, 0);
            return if self.taking { Step::Wait } else { Step::Call };
        }
        if self.taking {
            return Step::Wait;
        }
        let wanted = self.wanted(spec, terms, now);
        let least = if terms.flows { WORTH as u64 } else { 3 };
        if wanted < least || wanted < cost || cost == 0 {
            return Step::Call;
        }
        self.taking = true;
        Step::Take(wanted)
    }

    /// Puts back what an unsuccessful request was given, if its block has not ended.
    pub(crate) fn put_back(&mut self, now: u64, cost: u64, slot: u64) {
        self.end(now);
        if self.slot == slot && now < self.ends {
            self.left += cost;
        }
    }

    /// What is left of the block.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Which slot the block belongs to.
    pub(crate) fn slot(&self) -> u64 {
        self.slot
    }

    /// The store's answer to [`Step::Take`]: `granted` of `wanted`. `sent` is when it was asked, `now` when it answered.
    #[expect(clippy::too_many_arguments, reason = "an answer and when it came")]
    pub(crate) fn took(
        &mut self,
        spec: &LimitSpec,
        key: KeyHash,
        terms: &Terms,
        wanted: u64,
        granted: u64,
        answer: &CheckResponse,
        sent: u64,
        now: u64,
    ) {
        self.taking = false;
        self.end(now);
        self.learn(spec, terms, granted, answer, now);
        if granted > 0 {
            let (slot, lasts) = slot(spec, key, answer.at, &answer.decisions);
            // The store decided after `sent`, so its slot ends after this; clocks may differ in speed by a thousandth.
            let ends = sent + (lasts - lasts / 1024);
            if slot == self.slot && self.left > 0 {
                self.left += granted;
                self.ends = self.ends.max(ends);
            } else {
                self.lost += std::mem::replace(&mut self.left, granted);
                (self.slot, self.ends) = (slot, ends);
            }
            (self.charged, self.block) = (answer.at, granted);
            self.end(now);
        }
        if granted < wanted {
            self.denied(terms, answer, 1, granted == 0, now);
        } else {
            (self.denials, self.denied_until) = (0, 0);
        }
    }

    /// The store's answer to [`Step::Call`].
    pub(crate) fn called(
        &mut self,
        spec: &LimitSpec,
        terms: &Terms,
        cost: u64,
        answer: &CheckResponse,
        own: &[Decision],
        now: u64,
    ) {
        let answer = CheckResponse { admitted: answer.admitted, at: answer.at, decisions: own.into() };
        self.learn(spec, terms, if answer.admitted { cost } else { 0 }, &answer, now);
        if own.iter().any(|decision| !decision.admitted) {
            self.denied(terms, &answer, cost.max(1), true, now);
        } else if answer.admitted {
            (self.denials, self.denied_until) = (0, 0);
        }
    }

    /// The taking failed, or was given up: nothing is known.
    pub(crate) fn failed(&mut self) {
        self.taking = false;
    }

    /// Takes out what this holder will not use before the block ends, to be given back; and when to look again.
    pub(crate) fn review(&mut self, terms: &Terms, now: u64) -> (Option<Return>, Option<u64>) {
        self.end(now);
        if self.left == 0 {
            return (None, None);
        }
        let left = self.ends.saturating_sub(now);
        if left < 2_000 {
            // Too late for a settlement to be of use.
            return (None, Some(self.ends));
        }
        let pace = self.pace.at(now, memory(terms));
        let needed = at_most(pace * left as f64).ceil() as u64;
        let spare = self.left.saturating_sub(needed);
        let soon = left <= terms.longest / 8;
        let back = if self.pace.is_quiet() {
            self.left
        } else if spare > self.block / 4 || (soon && spare > 1) {
            spare
        } else {
            0
        };
        let next = now + if soon { left } else { (left / 2).clamp(2_000, LOOK) };
        if back == 0 {
            return (None, Some(next));
        }
        (Some(self.give_back(back)), (self.left > 0).then_some(next))
    }

    /// Takes out everything.
    pub(crate) fn return_all(&mut self, now: u64) -> Option<Return> {
        self.end(now);
        (self.left > 0).then(|| self.give_back(self.left))
    }

    fn give_back(&mut self, amount: u64) -> Return {
        self.left -= amount;
        // Next time less.
        self.most = (self.most / 2).max(1);
        if let Some(last) = &mut self.last {
            for decision in &mut last.decisions {
                decision.remaining = (decision.remaining + amount).min(decision.limit);
            }
        }
        Return { amount, charged: self.charged }
    }

    /// How the rates stand, as far as is known here: an estimate, as others take from the counter too.
    pub(crate) fn decisions(&self, spec: &LimitSpec, now: u64, admitted: bool) -> Decisions {
        let denied = |decision: &Decision| decision.remaining == 0;
        let nobody = self.last.as_ref().is_none_or(|last| !last.decisions.iter().any(denied));
        let retry = self.retry_at.max(self.denied_until).saturating_sub(now).max(1);
        let each = spec.rates.iter().enumerate().map(|(n, rate)| {
            let last = self.last.as_ref().and_then(|last| Some((last, last.decisions.get(n)?)));
            let number = capacity(rate);
            let (remaining, reset) = last.map_or((number, 0), |(last, decision)| {
                let passed = now.saturating_sub(last.received);
                (decision.remaining, decision.reset.saturating_sub(passed))
            });
            let denies = !admitted && (nobody || remaining == 0);
            Decision {
                admitted: !denies,
                limit: rate.requests.get(),
                period: rate.period.millis(),
                remaining: if denies { 0 } else { (remaining + self.left).min(number) },
                reset,
                retry_after: denies.then_some(retry),
                delay: 0,
            }
        });
        each.collect()
    }

    /// The instant of the store's clock that names a charge to the block.
    pub(crate) fn charged(&self) -> u64 {
        self.charged
    }

    fn end(&mut self, now: u64) {
        if self.left > 0 && now >= self.ends {
            self.lost += self.left;
            if self.left * 2 > self.block {
                self.most = (self.most / 2).max(1);
            }
            self.left = 0;
        }
    }

    fn low_water(&mut self, terms: &Terms, now: u64) -> u64 {
        let soon = self.pace.at(now, memory(terms)) * 4_000.0;
        (self.block / 4).max(soon as u64)
    }

    /// How much to take now; below 3 it is not worth it.
    fn wanted(&mut self, spec: &LimitSpec, terms: &Terms, now: u64) -> u64 {
        let part = self.part.get();
        if terms.number as f64 * part < LEAST_PART {
            return 0;
        }
        let passed = self.last.as_ref().map_or(0, |last| now.saturating_sub(last.received));
        let remaining = spec.rates.iter().enumerate().map(|(n, rate)| {
            let decision = self.last.as_ref().and_then(|last| last.decisions.get(n));
            let number = capacity(rate) as f64;
            decision.map_or(number, |decision| {
                (decision.remaining as f64 + freed(rate, decision, passed)).min(number)
            })
        });
        let remaining = remaining.fold(f64::INFINITY, f64::min);
        let fair = remaining * part;
        let mut size = (fair / 4.0).max(fair.min(SMALL));
        if terms.flows {
            size = size.max(worth(terms, part).min(remaining));
        }
        let time = if self.ends > now { self.ends - now } else { terms.longest };
        let pace = self.pace.at(now, memory(terms));
        let soon = at_most(pace * AHEAD as f64).max(SMALL);
        let needed = at_most(pace * time as f64).min(soon) - self.left as f64;
        size.min(needed.max(0.0)).min(self.most as f64) as u64
    }

    fn learn(&mut self, spec: &LimitSpec, terms: &Terms, own: u64, answer: &CheckResponse, now: u64) {
        let rate = spec.rates.get(terms.widest);
        let decision = answer.decisions.get(terms.widest);
        if let (Some(rate), Some(decision)) = (rate, decision) {
            let used_now = used(rate, decision) as f64;
            let before = self.last.as_ref().and_then(|last| Some((last, last.decisions.get(terms.widest)?)));
            let stayed = before.map_or(0.0, |(last, before)| {
                used(rate, before) as f64 - freed(rate, before, answer.at.saturating_sub(last.at))
            });
            if before.is_some() {
                self.part.observe(own, (used_now - stayed).max(0.0), terms.number);
            }
        }
        self.last = Some(Last { decisions: answer.decisions.clone(), received: now, at: answer.at });
        self.most = self.most.saturating_mul(2).min(terms.number);
    }

    fn denied(&mut self, terms: &Terms, answer: &CheckResponse, cost: u64, nothing: bool, now: u64) {
        let denials = answer.decisions.iter().filter(|decision| !decision.admitted);
        let Some(retry) = denials.map(|decision| decision.retry_after.unwrap_or(u64::MAX)).max() else {
            return;
        };
        if retry == u64::MAX {
            // No wait helps: its cost is above the number. That says nothing about others.
            return;
        }
        self.retry_at = now + retry;
        self.denied_cost = cost;
        (self.denied_since, self.denied) = (now, 0);
        self.denied_until = now + self.wait_after_denial(terms, retry);
        self.denials = if nothing { (self.denials + 1).min(16) } else { 0 };
    }

    /// How long not to ask, given the store's own retry-after: that, or until some quota worth a call should have come
    /// back; but sooner, and then more and more rarely, as others may give back what they do not use.
    fn wait_after_denial(&self, terms: &Terms, retry: u64) -> u64 {
        let part = self.part.get();
        let worth = terms.fills as f64 * worth(terms, part) / (terms.number as f64 * part).max(1.0);
        let shortest = FLOOR.min(terms.fills / 10);
        let floor = (worth as u64).clamp(shortest, (terms.fills / 10).max(shortest));
        let rarely = floor.saturating_mul(1 << self.denials);
        if terms.flows { floor.max(retry.min(rarely)) } else { retry.min(rarely) }
    }
}

/// The smallest block worth a call, for a holder of this part.
fn worth(terms: &Terms, part: f64) -> f64 {
    (terms.number as f64 * part * WORTH_PART).clamp(WORTH, WORTH_MOST)
}

/// How long the past counts for the pace at most.
fn memory(terms: &Terms) -> u64 {
    terms.longest / 4
}
