//! The clients that a limit denies most, and those that need most.

use jiff::Timestamp;
use serde::Serialize;
use sluice_limiter::Rate;

use crate::output::grouped;
use crate::simulate::tally::{ClientTally, Demand, Followed, LimitTally};

/// A client that a limit denies.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClientReport {
    pub(super) client: String,
    /// At least so many, if the client is not told apart from the beginning.
    requests: u64,
    /// At most so many.
    denied: u64,
    /// How much `denied` may be too high: 0 for a client that is told apart.
    error: u64,
    pub(super) first: String,
    pub(super) last: String,
    #[serde(skip)]
    is_exact: bool,
}

/// Needs of a client.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NeedReport {
    pub(super) client: String,
    pub(super) requests: u64,
    pub(super) denied: u64,
    /// The most that it sends within the period of each rate.
    needs: Vec<Need>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Need {
    per: String,
    requests: u64,
}

impl NeedReport {
    pub(super) fn new(client: &ClientTally, rates: &[Rate]) -> Self {
        let need =
            |(rate, demand): (&Rate, &Demand)| Need { per: rate.period.to_string(), requests: demand.peak() };
        let needs = rates.iter().zip(&client.demands).map(need).collect();
        Self { client: client.name.clone(), requests: client.requests, denied: client.denied, needs }
    }

    /// Writes the needs: `14 per 1m, 420 per 1h`.
    pub(super) fn words(&self) -> String {
        let needs =
            self.needs.iter().map(|Need { per, requests }| format!("{} per {per}", grouped(*requests)));
        needs.collect::<Vec<_>>().join(", ")
    }
}

impl ClientReport {
    /// Returns the clients that a limit denies most.
    pub(super) fn most_denied(tally: &LimitTally, most: usize) -> Vec<Self> {
        let mut limited: Vec<_> = tally.clients.values().filter(|client| client.denied > 0).collect();
        limited.sort_by(|a, b| b.denied.cmp(&a.denied).then_with(|| a.name.cmp(&b.name)));
        let mut clients: Vec<_> = limited.into_iter().take(most).map(Self::new).collect();
        clients.extend(tally.heavy.certain().map(Self::of_many));
        clients.sort_by(|a, b| b.denied.cmp(&a.denied).then_with(|| a.client.cmp(&b.client)));
        clients.truncate(most);
        clients
    }

    fn new(client: &ClientTally) -> Self {
        let ClientTally { name, requests, denied, between: (first, last), .. } = client;
        let (first, last) = (time(*first), time(*last));
        Self {
            client: name.clone(),
            requests: *requests,
            denied: *denied,
            error: 0,
            first,
            last,
            is_exact: true,
        }
    }

    fn of_many(client: &Followed) -> Self {
        let Followed { name, requests, denied, error, between: (first, last) } = client;
        let (first, last) = (time(*first), time(*last));
        let (client, requests, denied, error) = (name.clone(), *requests, *denied, *error);
        Self { client, requests, denied, error, first, last, is_exact: false }
    }

    /// Writes requests and denials.
    pub(super) fn numbers(&self) -> [String; 2] {
        let (requests, denied) = (grouped(self.requests), grouped(self.denied));
        match (self.is_exact, self.error) {
            (true, _) => [requests, denied],
            (false, 0) => [format!("at least {requests}"), denied],
            (false, error) => {
                [format!("at least {requests}"), format!("at most {denied}, error {}", grouped(error))]
            }
        }
    }
}

/// Writes a time in UTC, without fractions of a second.
pub(super) fn time(micros: u64) -> String {
    let seconds = i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map_or_else(|_| "unknown".to_owned(), |time| time.to_string())
}
