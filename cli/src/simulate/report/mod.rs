//! The result of a simulation.
//!
//! - [`client`]: the clients that are denied most, and those that need most.
//! - [`proposal`]: a policy with numbers that spare clients, and what its replay says.
//! - [`text`]: tables for a terminal; [`html`]: a page with charts.

mod client;
pub(super) mod html;
pub(super) mod proposal;
pub(super) mod text;

use std::net::IpAddr;

use serde::Serialize;
use sluice_limiter::Rate;

use self::proposal::Suggestion;
use super::log::Reason;
use super::log::files::{Incomplete, Unreadable, UnreadableLines};
use super::replay::Replayed;
use super::routes::{MAX_ROUTES, RouteCounts, Routes};
use super::tally::{LimitTally, MAX_CLIENTS, Series};
use crate::output::{count, grouped};
use client::{ClientReport, NeedReport, time};
use proposal::Proposal;

/// Number of requests from which on it is odd that all are of one client.
const MANY: u64 = 20;

/// The result.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// Version of the program.
    version: &'static str,
    logs: Vec<String>,
    requests: u64,
    /// The address of the client of all requests, if there is one alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    only_client: Option<IpAddr>,
    /// Requests that the log has more than five minutes after later ones. They are decided at the time of those.
    out_of_order: u64,
    unreadable_lines: u64,
    /// The lines that could not be read, by the reason.
    unreadable: Vec<UnreadableReport>,
    /// Compressed files that end in the middle or are corrupt.
    incomplete: Vec<Incomplete>,
    begin: String,
    end: String,
    seconds: f64,
    files: Vec<FileReport>,
    /// Requests that only one of two candidates denied, and that both did.
    #[serde(skip_serializing_if = "Option::is_none")]
    comparison: Option<Comparison>,
    /// The policy with other numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) suggested: Option<Proposal>,
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
    /// Its text.
    #[serde(skip)]
    policy: String,
    admitted: u64,
    denied: u64,
    /// Warnings of `sluice check`.
    warnings: Vec<String>,
    /// Limits that cannot be simulated.
    left_out: Vec<String>,
    limits: Vec<LimitReport>,
    /// Methods and paths with most denials, and then with most requests.
    routes: Vec<RouteReport>,
    /// Requests of methods and paths that are not told apart.
    other_paths: u64,
}

/// The requests of a method and a path.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RouteReport {
    method: String,
    /// The path, with `{id}` in place of segments that name a single thing.
    path: String,
    requests: u64,
    /// Those that a limit denies, or would deny if it did not only mark or observe.
    denied: u64,
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
    /// The clients that need most of the rates, also where nothing is denied.
    most_needing: Vec<NeedReport>,
    suggestions: Vec<Suggestion>,
    series: Series,
    /// The first rate of a limit without a key: the number, and the period in microseconds.
    #[serde(skip)]
    of_all: Option<(u64, u64)>,
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
struct Comparison {
    only_first: u64,
    only_second: u64,
    both: u64,
}

impl Report {
    /// Describes a replay of some logs, with so many clients of each limit, and paths.
    pub(super) fn new(
        logs: Vec<String>,
        replayed: Replayed,
        suggested: Option<Proposal>,
        most: usize,
    ) -> Self {
        let Replayed {
            requests,
            only_client,
            late,
            unreadable,
            incomplete,
            begin,
            end,
            denied,
            routes,
            candidates,
        } = replayed;
        let [_, only_first, only_second, both] = denied;
        let files = candidates.iter().enumerate().map(|(n, candidate)| FileReport {
            file: candidate.source.name.clone(),
            policy: candidate.source.text.clone(),
            admitted: candidate.admitted,
            denied: candidate.denied,
            warnings: candidate.warnings.clone(),
            left_out: candidate.left_out.clone(),
            limits: candidate.limits.iter().flatten().map(|limit| LimitReport::new(limit, most)).collect(),
            routes: RouteReport::most(&routes, n, most),
            other_paths: routes.others.requests,
        });
        Self {
            version: env!("CARGO_PKG_VERSION"),
            logs,
            requests,
            only_client: only_client.filter(|_| requests >= MANY),
            out_of_order: late,
            unreadable_lines: unreadable.lines,
            unreadable: UnreadableReport::all(unreadable),
            incomplete,
            begin: time(begin),
            end: time(end),
            seconds: (end - begin) as f64 / 1e6,
            files: files.collect(),
            comparison: (candidates.len() == 2).then_some(Comparison { only_first, only_second, both }),
            suggested,
        }
    }
}

impl RouteReport {
    /// Returns the methods and paths of which a candidate denies most requests.
    fn most(routes: &Routes, candidate: usize, most: usize) -> Vec<Self> {
        let route = |(method, path, counts): (&str, &str, RouteCounts)| Self {
            method: method.to_owned(),
            path: path.to_owned(),
            requests: counts.requests,
            denied: counts.denied[candidate],
        };
        let mut rows: Vec<_> = routes.iter().map(route).collect();
        let order = |row: &Self| {
            (std::cmp::Reverse((row.denied, row.requests)), row.path.clone(), row.method.clone())
        };
        rows.sort_by_cached_key(order);
        rows.truncate(most);
        rows
    }
}

impl FileReport {
    /// Says what the table of paths lacks.
    fn note_of_paths(&self) -> Option<String> {
        let others = count(self.other_paths, "request");
        let most = grouped(MAX_ROUTES as u64);
        (self.other_paths > 0)
            .then(|| format!("more than {most} methods and paths: {others} of further ones"))
    }
}

impl Report {
    /// Says in sentences what the numbers do not show.
    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<_> = self.incomplete.iter().map(Incomplete::to_string).collect();
        if self.out_of_order > 0 {
            let many =
                if self.out_of_order * 10 > self.requests { ". Many are: sort the log by time" } else { "" };
            let late = count(self.out_of_order, "line");
            notes.push(format!("{late} more than 5 minutes late, decided at the latest time before{many}"));
        }
        if let Some(client) = self.only_client {
            notes.push(format!(
                "All requests are of one address, {client}. If it is that of a load balancer, limits by address count all clients as \
                 one: say where the log has the client, with --format for text or --field client=FIELD for JSON"
            ));
        }
        notes
    }

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
    fn new(tally: &LimitTally, most: usize) -> Self {
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
            limited_clients: tally.clients.values().filter(|client| client.denied > 0).count(),
            denied_without_client: tally.refused,
            without_key_part: tally.lacking,
            other_requests: tally.others,
            worst,
            most_denied: ClientReport::most_denied(tally, most),
            most_needing: tally.most_needing().map(|client| NeedReport::new(client, &tally.rates)).collect(),
            suggestions: proposal::suggest(tally),
            series: tally.series.clone(),
            of_all: tally
                .rates
                .first()
                .filter(|_| tally.is_of_all)
                .map(|rate| (rate.requests.get(), rate.period.millis().saturating_mul(1_000))),
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
                "; these are all: if the log has the part, say where, with --format for text or --field for JSON"
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
