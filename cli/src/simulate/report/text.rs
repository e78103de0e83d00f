//! The result as tables for a terminal.

use std::fmt::Write as _;

use super::{FileReport, LimitReport, Report, UnreadableReport, share};
use crate::output::{count, grouped, table};
use crate::simulate::log::files::Incomplete;
use crate::simulate::replay::Replayed;

/// Returns the result as text.
pub(in crate::simulate) fn text(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{} from {} to {}", count(report.requests, "request"), report.begin, report.end,);
    if !report.unreadable.is_empty() {
        let _ = writeln!(text, "{} could not be read:", count(report.unreadable_lines, "line"));
        text.push_str(&unreadable(&report.unreadable));
    }
    for note in report.notes() {
        let _ = writeln!(text, "{note}");
    }
    for file in &report.files {
        let _ = writeln!(
            text,
            "\n{}: {} denied, {}",
            file.file,
            grouped(file.denied),
            share(file.denied, report.requests)
        );
        for warning in &file.warnings {
            let _ = writeln!(text, "warning: {warning}");
        }
        for limit in &file.left_out {
            let _ = writeln!(text, "{limit} is left out: it depends on how long requests take");
        }
        limits(&mut text, file);
        details(&mut text, file);
    }
    if let (Some(comparison), [first, second]) = (&report.comparison, &report.files[..]) {
        let _ = writeln!(
            text,
            "\nOnly {} denies {}, only {} denies {}, and both deny {}.",
            first.file,
            count(comparison.only_first, "request"),
            second.file,
            grouped(comparison.only_second),
            grouped(comparison.both)
        );
    }
    text
}

/// Says why there is no request.
pub(in crate::simulate) fn nothing(replayed: Replayed) -> String {
    let mut lines: Vec<_> = replayed.incomplete.iter().map(Incomplete::to_string).collect();
    if replayed.unreadable.lines > 0 {
        lines.push(unreadable(&UnreadableReport::all(replayed.unreadable)).trim_end().to_owned());
    }
    if lines.is_empty() { ": the logs are empty".to_owned() } else { format!(":\n{}", lines.join("\n")) }
}

/// Returns the lines that could not be read as a table by the reason.
fn unreadable(reasons: &[UnreadableReport]) -> String {
    let row = |row: &UnreadableReport| {
        vec![grouped(row.lines), row.reason.to_owned(), row.at.clone(), row.line.clone()]
    };
    rows(&["LINES", "REASON", "FIRST", "LINE"], reasons.iter().map(row))
}

/// Returns rows with their header, unless there are none.
fn rows(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return String::new();
    }
    table(std::iter::once(header.iter().map(ToString::to_string).collect()).chain(rows))
}

fn limits(text: &mut String, file: &FileReport) {
    let row = |limit: &LimitReport| {
        let worst = limit.worst.as_ref().map(|worst| {
            format!(
                "{} in {} from {}",
                grouped(worst.denied),
                crate::clients::seconds(worst.seconds),
                worst.at
            )
        });
        let (policy, name, effect) = (limit.policy.clone(), limit.limit.clone(), limit.effect.to_owned());
        let (requests, denied) = (grouped(limit.requests), grouped(limit.denied));
        let (clients, limited) = (grouped(limit.clients as u64), grouped(limit.limited_clients as u64));
        let share = share(limit.denied, limit.requests);
        vec![policy, name, effect, requests, denied, share, clients, limited, worst.unwrap_or_default()]
    };
    let header = ["POLICY", "LIMIT", "EFFECT", "REQUESTS", "DENIED", "", "CLIENTS", "LIMITED", "WORST"];
    text.push_str(&rows(&header, file.limits.iter().map(row)));
    for limit in &file.limits {
        for note in limit.notes() {
            let _ = writeln!(text, "{}: {note}", limit.limit);
        }
    }
}

/// Adds tables about single clients, numbers and paths.
fn details(text: &mut String, file: &FileReport) {
    let limits = || file.limits.iter();
    let clients = limits().flat_map(|limit| {
        limit.most_denied.iter().map(|client| {
            let [requests, denied] = client.numbers();
            let (first, last) = (client.first.clone(), client.last.clone());
            vec![limit.limit.clone(), client.client.clone(), requests, denied, first, last]
        })
    });
    let needs = limits().flat_map(|limit| {
        limit.most_needing.iter().map(|client| {
            let (requests, denied) = (grouped(client.requests), grouped(client.denied));
            vec![limit.limit.clone(), client.client.clone(), requests, denied, client.words()]
        })
    });
    let suggestions = limits().flat_map(|limit| {
        limit.suggestions.iter().map(|suggestion| {
            let number = format!("{} per {}", grouped(suggestion.requests), suggestion.per);
            let spares = format!("{:.2} %", suggestion.spares_percent);
            let numbers = suggestion.numbers.iter().map(|number| grouped(number.requests));
            [limit.limit.clone(), number, spares].into_iter().chain(numbers).collect()
        })
    });
    let routes = file.routes.iter().map(|route| {
        let (requests, denied) = (grouped(route.requests), grouped(route.denied));
        let share = share(route.denied, route.requests);
        vec![route.method.clone(), route.path.clone(), requests, denied, share]
    });
    for table in [
        rows(&["LIMIT", "CLIENT", "REQUESTS", "DENIED", "FIRST", "LAST"], clients),
        rows(&["LIMIT", "CLIENT", "REQUESTS", "DENIED", "NEEDS"], needs),
        rows(&["LIMIT", "NUMBER", "SPARES", "99 % NEED", "99.9 % NEED", "ALL NEED"], suggestions),
        rows(&["METHOD", "PATH", "REQUESTS", "DENIED", "OF ALL"], routes),
    ] {
        if !table.is_empty() {
            text.push('\n');
            text.push_str(&table);
        }
    }
    if let Some(note) = file.note_of_paths() {
        let _ = writeln!(text, "{note}");
    }
}
