//! Bounds of token reviews, so that strangers neither overload the API server nor delay known pods. Each source has
//! few reviews at once and few failed ones a minute. A token that was accepted before has the same bounds for itself,
//! and its reviews have places of their own.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use sluice_host::serve::choice::network;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::locks::lock;

/// Maximum number of concurrent reviews of tokens that have not been accepted before, and of those that have.
const MAX_REVIEWS: usize = 12;
const MAX_KNOWN_REVIEWS: usize = 8;
/// Maximum number of reviews of a source that run or wait. Pods of a node may share an address.
const MAX_PER_SOURCE: u32 = 64;
/// Failed reviews of a source in [`WINDOW`] after which it must wait.
const MAX_FAILURES: u32 = 10;
/// Maximum number of reviews of an accepted token that run or wait, and of those that begin in [`WINDOW`]. A sidecar
/// that loses its session tries again about every 2.5 s.
const MAX_PER_TOKEN: u32 = 4;
const MAX_BEGUN_PER_TOKEN: u32 = 60;
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of sources that are remembered.
const MAX_SOURCES: usize = 4_096;
/// Maximum number of accepted tokens that are remembered: one for each session.
const MAX_TOKENS: usize = 20_000;

type TokenHash = [u8; 32];

/// A source must wait before it sends another token.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMany;

/// The reviews of this replica.
#[derive(Debug)]
pub(super) struct Reviews {
    unknown: Semaphore,
    known: Semaphore,
    state: Mutex<ReviewState>,
}

#[derive(Debug, Default)]
struct ReviewState {
    sources: HashMap<IpAddr, ReviewCount>,
    accepted: HashMap<TokenHash, ReviewCount>,
}

/// The reviews of a source, or of a token that was accepted before.
#[derive(Debug)]
struct ReviewCount {
    /// Reviews that run or wait.
    reviews: u32,
    /// Reviews in the window that have failed, or of an accepted token that have begun.
    counted: u32,
    /// Start of the window.
    since: Instant,
}

impl ReviewCount {
    fn new(now: Instant) -> Self {
        Self { reviews: 0, counted: 0, since: now }
    }

    /// Begins another review, if there are not so many.
    fn begin(&mut self, now: Instant, max: u32, max_counted: u32) -> Result<&mut Self, TooMany> {
        if now.duration_since(self.since) >= WINDOW {
            (self.counted, self.since) = (0, now);
        }
        if self.reviews >= max || self.counted >= max_counted {
            return Err(TooMany);
        }
        self.reviews += 1;
        Ok(self)
    }
}

/// The right to have one token reviewed.
#[derive(Debug)]
pub(super) struct Review {
    reviews: Arc<Reviews>,
    source: IpAddr,
    token: TokenHash,
    /// Whether the token is verified, or was accepted before.
    pub(super) is_known: bool,
    is_verified: bool,
}

impl Reviews {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            unknown: Semaphore::new(MAX_REVIEWS),
            known: Semaphore::new(MAX_KNOWN_REVIEWS),
            state: Mutex::default(),
        })
    }

    /// Admits a token of this source to a review. A token that `is_verified` already does not depend on its source.
    pub(super) fn admit(
        self: &Arc<Self>,
        source: IpAddr,
        token: &str,
        is_verified: bool,
    ) -> Result<Review, TooMany> {
        let (source, token) = (network(source), Sha256::digest(token.as_bytes()).into());
        let now = Instant::now();
        let mut state = lock(&self.state);
        let is_known = is_verified || state.accepted.contains_key(&token);
        if is_known {
            state.known(token, now).begin(now, MAX_PER_TOKEN, MAX_BEGUN_PER_TOKEN)?.counted += 1;
        } else {
            state.source(source, now).begin(now, MAX_PER_SOURCE, MAX_FAILURES)?;
        }
        drop(state);
        Ok(Review { reviews: self.clone(), source, token, is_known, is_verified })
    }
}

impl ReviewState {
    /// Returns the reviews of a token that is known from now on.
    fn known(&mut self, token: TokenHash, now: Instant) -> &mut ReviewCount {
        if self.accepted.len() >= MAX_TOKENS && !self.accepted.contains_key(&token) {
            // Tokens expire, so the current ones come back soon.
            self.accepted.clear();
        }
        self.accepted.entry(token).or_insert_with(|| ReviewCount::new(now))
    }

    /// Returns the reviews of a source.
    fn source(&mut self, source: IpAddr, now: Instant) -> &mut ReviewCount {
        if self.sources.len() >= MAX_SOURCES && !self.sources.contains_key(&source) {
            self.forget_oldest();
        }
        self.sources.entry(source).or_insert_with(|| ReviewCount::new(now))
    }

    /// Forgets the source without reviews whose window began first.
    fn forget_oldest(&mut self) {
        let idle = self.sources.iter().filter(|(_, source)| source.reviews == 0);
        if let Some(oldest) = idle.min_by_key(|(_, source)| source.since).map(|(address, _)| *address) {
            self.sources.remove(&oldest);
        }
    }
}

impl Review {
    /// Waits for a place.
    pub(super) async fn place(&self) -> Option<SemaphorePermit<'_>> {
        let places = if self.is_known { &self.reviews.known } else { &self.reviews.unknown };
        places.acquire().await.ok()
    }

    /// Notes that the token was accepted.
    pub(super) fn accepted(self) {
        lock(&self.reviews.state).known(self.token, Instant::now());
    }

    /// Notes that the token was not accepted.
    pub(super) fn refused(self) {
        // The bounds of the token itself suffice for one that is genuine.
        if self.is_verified {
            return;
        }
        let mut state = lock(&self.reviews.state);
        state.accepted.remove(&self.token);
        if let Some(source) = state.sources.get_mut(&self.source) {
            source.counted += 1;
        }
    }
}

impl Drop for Review {
    fn drop(&mut self) {
        let mut state = lock(&self.reviews.state);
        if self.is_known {
            if let Some(accepted) = state.accepted.get_mut(&self.token) {
                // It may have been forgotten and accepted again.
                accepted.reviews = accepted.reviews.saturating_sub(1);
            }
            return;
        }
        if let Some(source) = state.sources.get_mut(&self.source) {
            source.reviews -= 1;
            if source.reviews == 0 && source.counted == 0 {
                state.sources.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures::FutureExt as _;

    use super::*;

    fn source(n: u32) -> IpAddr {
        Ipv4Addr::from(n).into()
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_of_bad_tokens_must_wait_and_delays_no_other() {
        let reviews = Reviews::new();
        for n in 0..MAX_FAILURES {
            reviews.admit(source(1), &format!("bad {n}"), false).unwrap().refused();
        }
        assert_eq!(reviews.admit(source(1), "another", false).err(), Some(TooMany));
        assert!(reviews.admit(source(2), "another", false).is_ok());
        tokio::time::advance(WINDOW).await;
        assert!(reviews.admit(source(1), "another", false).is_ok());
    }

    #[tokio::test]
    async fn a_source_has_few_reviews_at_once() {
        let reviews = Reviews::new();
        let all: Vec<_> =
            (0..MAX_PER_SOURCE).map(|_| reviews.admit(source(1), "token", false).unwrap()).collect();
        assert!(
            reviews.admit(source(1), "token", false).is_err()
                && reviews.admit(source(2), "token", false).is_ok()
        );
        drop(all);
        assert!(reviews.admit(source(1), "token", false).is_ok());
        assert!(lock(&reviews.state).sources.is_empty(), "nothing is left of them");
    }

    #[tokio::test]
    async fn strangers_do_not_delay_a_token_that_was_accepted_before() {
        let reviews = Reviews::new();
        reviews.admit(source(1), "good", false).unwrap().accepted();
        let strangers: Vec<_> =
            (0..100).map(|n| reviews.admit(source(n), &format!("bad {n}"), false).unwrap()).collect();
        let mut places: Vec<_> =
            strangers.iter().filter_map(|stranger| stranger.place().now_or_never().flatten()).collect();
        assert_eq!(places.len(), MAX_REVIEWS);
        for _ in 0..MAX_FAILURES {
            reviews.admit(source(1), "bad", false).unwrap().refused();
        }
        let known = reviews.admit(source(1), "good", false).unwrap();
        assert!(known.place().now_or_never().flatten().is_some());
        let unknown = reviews.admit(source(200), "new", false).unwrap();
        assert!(unknown.place().now_or_never().is_none());
        places.pop();
        assert!(unknown.place().now_or_never().flatten().is_some());
        drop(places);
    }

    #[tokio::test(start_paused = true)]
    async fn an_accepted_token_has_few_reviews_at_once_and_in_a_minute() {
        let reviews = Reviews::new();
        reviews.admit(source(1), "good", false).unwrap().accepted();
        reviews.admit(source(1), "other", false).unwrap().accepted();
        let all: Vec<_> =
            (0..MAX_PER_TOKEN).map(|_| reviews.admit(source(1), "good", false).unwrap()).collect();
        assert!(
            reviews.admit(source(2), "good", false).is_err()
                && reviews.admit(source(1), "other", false).is_ok()
        );
        drop(all);
        while let Ok(review) = reviews.admit(source(1), "good", false) {
            review.accepted();
        }
        tokio::time::advance(WINDOW).await;
        assert!(reviews.admit(source(1), "good", false).is_ok());
    }

    #[tokio::test]
    async fn a_verified_token_does_not_depend_on_what_others_of_its_source_do() {
        let reviews = Reviews::new();
        for n in 0..MAX_FAILURES {
            reviews.admit(source(1), &format!("bad {n}"), false).unwrap().refused();
        }
        for _ in 0..MAX_FAILURES {
            reviews.admit(source(1), "genuine", true).unwrap().refused();
        }
        assert!(reviews.admit(source(1), "another", true).unwrap().is_known);
        assert!(reviews.admit(source(1), "another bad", false).is_err());
    }

    #[tokio::test]
    async fn a_token_that_is_refused_is_known_no_longer() {
        let reviews = Reviews::new();
        reviews.admit(source(1), "good", false).unwrap().accepted();
        reviews.admit(source(1), "good", false).unwrap().refused();
        assert!(!reviews.admit(source(1), "good", false).unwrap().is_known);
    }

    #[tokio::test]
    async fn sources_and_tokens_that_are_remembered_are_bounded() {
        let reviews = Reviews::new();
        for n in 0..u32::try_from(MAX_SOURCES).unwrap() + 10 {
            reviews.admit(source(n), "bad", false).unwrap().refused();
        }
        for n in 0..MAX_TOKENS + 10 {
            reviews.admit(source(1), &format!("{n}"), false).unwrap().accepted();
        }
        let state = lock(&reviews.state);
        assert!(state.sources.len() <= MAX_SOURCES && state.accepted.len() <= MAX_TOKENS);
    }
}
