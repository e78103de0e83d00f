//! The result as tables for a terminal.

use std::fmt::Write as _;

use super::{FileReport, LimitReport, Report, RouteReport, UnreadableReport, share};
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
    for file in &report.incomplete {
        let _ = writeln!(text, "{file}");
    }
    if report.out_of_order > 0 {
        let late = count(report.out_of_order, "line");
        let _ = writeln!(
            text,
            "{late} more than 5 minutes late, decided at the latest time before{}",
            if report.out_of_order * 10 > report.requests { ". Many are: sort the log by time" } else { "" }
        );
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
        clients(&mut text, file);
        needs(&mut text, file);
        suggestions(&mut text, file);
        routes(&mut text, file);
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
pub(in crate::simulate) fn unreadable(reasons: &[UnreadableReport]) -> String {
    let header = ["LINES", "REASON", "FIRST", "LINE"].map(str::to_owned);
    let row = |row: &UnreadableReport| {
        [grouped(row.lines), row.reason.to_owned(), row.at.clone(), row.line.clone()]
    };
    table(std::iter::once(header).chain(reasons.iter().map(row)))
}

fn limits(text: &mut String, file: &FileReport) {
    let header = ["POLICY", "LIMIT", "EFFECT", "REQUESTS", "DENIED", "", "CLIENTS", "LIMITED", "WORST"];
    let row = |limit: &LimitReport| {
        let worst = limit.worst.as_ref().map(|worst| {
            format!(
                "{} in {} from {}",
                grouped(worst.denied),
                crate::clients::seconds(worst.seconds),
                worst.at
            )
        });
        [
            limit.policy.clone(),
            limit.limit.clone(),
            limit.effect.to_owned(),
            grouped(limit.requests),
            grouped(limit.denied),
            share(limit.denied, limit.requests),
            grouped(limit.clients as u64),
            grouped(limit.limited_clients as u64),
            worst.unwrap_or_default(),
        ]
    };
    text.push_str(&table(std::iter::once(header.map(str::to_owned)).chain(file.limits.iter().map(row))));
    for limit in &file.limits {
        for note in limit.notes() {
            let _ = writeln!(text, "{}: {note}", limit.limit);
        }
    }
}

fn clients(text: &mut String, file: &FileReport) {
    let rows = file.limits.iter().flat_map(|limit| {
        limit.most_denied.iter().map(|client| {
            let [requests, denied] = client.numbers();
            [
                limit.limit.clone(),
                client.client.clone(),
                requests,
                denied,
                client.first.clone(),
                client.last.clone(),
            ]
        })
    });
    let rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        let header = ["LIMIT", "CLIENT", "REQUESTS", "DENIED", "FIRST", "LAST"].map(str::to_owned);
        text.push('\n');
        text.push_str(&table(std::iter::once(header).chain(rows)));
    }
}

fn needs(text: &mut String, file: &FileReport) {
    let rows = file.limits.iter().flat_map(|limit| {
        limit.most_needing.iter().map(|client| {
            [
                limit.limit.clone(),
                client.client.clone(),
                grouped(client.requests),
                grouped(client.denied),
                client.words(),
            ]
        })
    });
    let rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        let header = ["LIMIT", "CLIENT", "REQUESTS", "DENIED", "NEEDS"].map(str::to_owned);
        text.push('\n');
        text.push_str(&table(std::iter::once(header).chain(rows)));
    }
}

fn routes(text: &mut String, file: &FileReport) {
    let row = |route: &RouteReport| {
        [
            route.method.clone(),
            route.path.clone(),
            grouped(route.requests),
            grouped(route.denied),
            share(route.denied, route.requests),
        ]
    };
    if !file.routes.is_empty() {
        let header = ["METHOD", "PATH", "REQUESTS", "DENIED", "OF ALL"].map(str::to_owned);
        text.push('\n');
        text.push_str(&table(std::iter::once(header).chain(file.routes.iter().map(row))));
    }
    if let Some(note) = file.note_of_paths() {
        let _ = writeln!(text, "{note}");
    }
}

fn suggestions(text: &mut String, file: &FileReport) {
    let rows = file.limits.iter().flat_map(|limit| {
        limit.suggestions.iter().map(|suggestion| {
            let numbers = suggestion.numbers.iter().map(|number| grouped(number.requests));
            let mut cells = vec![
                limit.limit.clone(),
                format!("{} per {}", grouped(suggestion.requests), suggestion.per),
                format!("{:.2} %", suggestion.spares_percent),
            ];
            cells.extend(numbers);
            cells.resize(6, String::new());
            std::array::from_fn(|n| cells[n].clone())
        })
    });
    let rows: Vec<[String; 6]> = rows.collect();
    if !rows.is_empty() {
        let header = ["LIMIT", "NUMBER", "SPARES", "99 % NEED", "99.9 % NEED", "ALL NEED"].map(str::to_owned);
        text.push('\n');
        text.push_str(&table(std::iter::once(header).chain(rows)));
    }
}
