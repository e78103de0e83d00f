//! The result of a simulation.
//!
//! - [`suggest`]: numbers that spare clients.
//! - [`text`]: tables for a terminal; [`html`]: a page with [`chart`]s.

mod chart;
pub(super) mod html;
mod suggest;
pub(super) mod text;

use jiff::Timestamp;
use serde::Serialize;
use sluice_limiter::Rate;

use super::candidate::Candidate;
use super::heavy::Followed;
use super::log::files::{Unreadable, UnreadableLines};
use super::log::reason::Reason;
use super::series::Series;
use super::tally::{ClientTally, LimitTally, MAX_CLIENTS};
use crate::output::{count, grouped};
use suggest::Suggestion;

/// Everything that a replay has found.
pub(super) struct Replayed<'a> {
    pub(super) logs: Vec<String>,
    pub(super) requests: u64,
    /// Requests that the log has after later ones.
    pub(super) late: u64,
    pub(super) unreadable: Unreadable,
    /// Names of compressed files that end in the middle.
    pub(super) incomplete: Vec<String>,
    pub(super) begin: u64,
    pub(super) end: u64,
    /// Requests that no candidate, the first, the second, or both denied.
    pub(super) denied: [u64; 4],
    pub(super) candidates: &'a [Candidate],
    /// Number of clients of each limit in the result.
    pub(super) clients: usize,
}

/// The result.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    logs: Vec<String>,
    requests: u64,
    /// Requests that the log has more than five minutes after later ones. They are decided at the time of those.
    out_of_order: u64,
    unreadable_lines: u64,
    /// The lines that could not be read, by the reason.
    unreadable: Vec<UnreadableReport>,
    /// Names of compressed files that end in the middle.
    incomplete: Vec<String>,
    begin: String,
    end: String,
    seconds: f64,
    files: Vec<FileReport>,
    /// Requests that only one of two candidates denied, and that both did.
    #[serde(skip_serializing_if = "Option::is_none")]
    comparison: Option<Comparison>,
}

/// Lines that could not be read for one reason.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UnreadableReport {
    pub(super) lines: u64,
    pub(super) reason: &'static str,
    /// Place of the first: `access.log:17`.
    pub(super) at: String,
    /// Beginning of the first.
    pub(super) line: String,
}

/// The policies of a file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FileReport {
    file: String,
    admitted: u64,
    denied: u64,
    /// Warnings of `sluice check`.
    warnings: Vec<String>,
    /// Limits that cannot be simulated.
    left_out: Vec<String>,
    limits: Vec<LimitReport>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct LimitReport {
    policy: String,
    limit: String,
    effect: &'static str,
    /// The rates in words.
    rates: Vec<String>,
    requests: u64,
    denied: u64,
    waited: u64,
    /// Number of clients, of which more than 200,000 are not told apart.
    clients: usize,
    /// Number of clients that were denied at least once.
    limited_clients: usize,
    /// Denials by a tier or plan, or because a part of the key was missing. They count for no client.
    denied_without_client: u64,
    /// Requests that lack a part of the key, and share one counter.
    without_key_part: u64,
    /// Requests of clients that are not told apart.
    other_requests: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    worst: Option<Worst>,
    most_denied: Vec<ClientReport>,
    suggestions: Vec<Suggestion>,
    series: Series,
}

/// The interval with most denials.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Worst {
    at: String,
    seconds: f64,
    denied: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ClientReport {
    client: String,
    /// At least so many, if the client is not told apart from the beginning.
    requests: u64,
    /// At most so many.
    denied: u64,
    /// How much `denied` may be too high: 0 for a client that is told apart.
    error: u64,
    first: String,
    last: String,
    #[serde(skip)]
    is_exact: bool,
}

impl ClientReport {
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
    fn numbers(&self) -> [String; 2] {
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

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Comparison {
    only_first: u64,
    only_second: u64,
    both: u64,
}

impl Report {
    pub(super) fn new(replayed: Replayed<'_>) -> Self {
        let Replayed {
            logs,
            requests,
            late,
            unreadable,
            incomplete,
            begin,
            end,
            denied,
            candidates,
            clients,
        } = replayed;
        let [_, only_first, only_second, both] = denied;
        let files = candidates.iter().map(|candidate| FileReport {
            file: candidate.name.clone(),
            admitted: candidate.admitted,
            denied: candidate.denied,
            warnings: candidate.warnings.clone(),
            left_out: candidate.left_out.clone(),
            limits: candidate.limits.iter().flatten().map(|limit| LimitReport::new(limit, clients)).collect(),
        });
        Self {
            logs,
            requests,
            out_of_order: late,
            unreadable_lines: unreadable.lines,
            unreadable: UnreadableReport::all(unreadable),
            incomplete,
            begin: time(begin),
            end: time(end),
            seconds: (end - begin) as f64 / 1e6,
            files: files.collect(),
            comparison: (candidates.len() == 2).then_some(Comparison { only_first, only_second, both }),
        }
    }
}

impl Report {
    /// Returns the part of the lines that could not be read, in percent.
    pub(super) fn unreadable_percent(&self) -> f64 {
        let lines = self.requests + self.unreadable_lines;
        self.unreadable_lines as f64 * 100.0 / lines.max(1) as f64
    }
}

impl UnreadableReport {
    /// Returns the reasons of most lines first.
    pub(super) fn all(unreadable: Unreadable) -> Vec<Self> {
        let row = |(reason, UnreadableLines { lines, at, line }): (Reason, UnreadableLines)| Self {
            lines,
            reason: reason.text(),
            at,
            line,
        };
        let mut rows: Vec<_> = unreadable.reasons.into_iter().map(row).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.lines));
        rows
    }
}

impl LimitReport {
    fn new(tally: &LimitTally, clients: usize) -> Self {
        let mut limited: Vec<_> = tally.clients.values().filter(|client| client.denied > 0).collect();
        limited.sort_by(|a, b| b.denied.cmp(&a.denied).then_with(|| a.name.cmp(&b.name)));
        let mut most: Vec<_> = limited.iter().take(clients).map(|client| ClientReport::new(client)).collect();
        most.extend(tally.heavy.certain().map(ClientReport::of_many));
        most.sort_by(|a, b| b.denied.cmp(&a.denied).then_with(|| a.client.cmp(&b.client)));
        most.truncate(clients);
        let worst = tally.series.worst().map(|(at, denied)| Worst {
            at: time(at),
            seconds: tally.series.interval_micros as f64 / 1e6,
            denied,
        });
        Self {
            policy: tally.policy.clone(),
            limit: tally.limit.clone(),
            effect: tally.effect,
            rates: tally.rates.iter().map(Rate::description).collect(),
            requests: tally.matched,
            denied: tally.denied,
            waited: tally.waited,
            clients: tally.clients.len(),
            limited_clients: limited.len(),
            denied_without_client: tally.refused,
            without_key_part: tally.lacking,
            other_requests: tally.others,
            worst,
            most_denied: most,
            suggestions: suggest::suggest(tally),
            series: tally.series.clone(),
        }
    }
}

impl LimitReport {
    /// Says in sentences what the numbers do not show.
    fn notes(&self) -> Vec<String> {
        let requests = |number: u64| count(number, "request");
        let mut notes = Vec::new();
        if self.waited > 0 {
            notes.push(format!(
                "{} would wait in the queue (simulated as admitted, without a charge)",
                requests(self.waited)
            ));
        }
        if self.denied_without_client > 0 {
            let refused = requests(self.denied_without_client);
            notes.push(format!(
                "denied by a tier or plan, or because a part of the key is missing: {refused} of no client"
            ));
        }
        if self.other_requests > 0 {
            notes.push(format!(
                "more than {} clients: {} of further ones, of which only those that are denied most are told apart",
                grouped(MAX_CLIENTS as u64),
                requests(self.other_requests)
            ));
        }
        if self.without_key_part > 0 {
            let all = if self.without_key_part == self.requests {
                "; these are all: write the part to the log, or name its field with --field"
            } else {
                ""
            };
            notes.push(format!(
                "without a part of the key, in one counter: {}{all}",
                requests(self.without_key_part)
            ));
        }
        notes
    }
}

/// Writes a time in UTC, without fractions of a second.
fn time(micros: u64) -> String {
    let seconds = i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map_or_else(|_| "unknown".to_owned(), |time| time.to_string())
}

/// Writes a part of a whole: `0.3 %`.
fn share(part: u64, whole: u64) -> String {
    if part == 0 || whole == 0 {
        return "0 %".to_owned();
    }
    let percent = part as f64 * 100.0 / whole as f64;
    if percent < 0.01 {
        "< 0.01 %".to_owned()
    } else if percent < 1.0 {
        format!("{percent:.2} %")
    } else {
        format!("{percent:.1} %")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_times_are_easy_to_read() {
        assert_eq!(
            [(0, 9), (1, 0), (1, 1_000_000), (1, 300), (1, 3), (3, 3)]
                .map(|(part, whole)| share(part, whole)),
            ["0 %", "0 %", "< 0.01 %", "0.33 %", "33.3 %", "100.0 %"]
        );
        assert_eq!(time(1_795_428_000_900_000), "2026-11-23T10:00:00Z");
    }
}
