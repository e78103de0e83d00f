//! One page of all parts, in Markdown: rows with an aim, other rows, plots, notes, and what was verified.

use std::path::Path;

use super::row::{Aim, PartResult, Row};
use super::sample::Sample;

const TABLE_HEAD: &str = "\
| measured | unit | Sluice | peer | Sluice / peer | name of the peer | aim | |
|---|---|---|---|---|---|---|---|";

/// The plots, by part, with a caption.
const PLOTS: [(&str, &str); 3] = [
    (
        "callers",
        "Throughput and CPU time over the number of callers. Points are medians; bars reach from the lowest to \
         the highest round. A single caller leaves nothing to batch. With more callers, each call of the store \
         carries more checks, while MULTI/INCRBY only pipelines.",
    ),
    (
        "edge",
        "Requests that pass when a client sends as fast as possible around the edge of a window, computed by the \
         limiter's functions in simulated time: every run has the same result.",
    ),
    (
        "outage",
        "Redis is killed under load and started again, empty. A check that gets no response within the latency \
         budget, and every check while the circuit breaker is open, is left to the policy's `onStoreFailure`.",
    ),
];

const NOTES: &str = include_str!("notes.md");
const CONTROL_PLANE_NOTES: &str = include_str!("notes-control-plane.md");
/// The parts that measure the control plane.
const CONTROL_PLANE: [&str; 2] = ["control-plane", "faults"];

/// Prints the page of some parts. Returns `Ok(false)` if a part failed or a verification did.
pub(crate) fn print(folder: &Path, parts: &[&str]) -> anyhow::Result<bool> {
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for name in parts {
        let result = match std::fs::read_to_string(folder.join(format!("{name}.json"))) {
            Ok(text) => serde_json::from_str::<PartResult>(&text)?,
            Err(_) => Err("it was ended before it had a result".to_owned()),
        };
        match result {
            Ok(found) => rows.extend(found),
            Err(reason) => failures.push((name, reason)),
        }
    }
    let (aimed, others): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.aim.is_some());
    for (title, rows) in [("Aims", aimed), ("Everything else", others)] {
        if !rows.is_empty() {
            println!("## {title}\n\n{TABLE_HEAD}");
            rows.iter().for_each(|row| println!("{}", table_line(row)));
            println!();
        }
    }
    if !failures.is_empty() {
        println!("## Not measured\n");
        failures.iter().for_each(|(name, reason)| println!("- **{name}**: {}", escape_cell(reason)));
        println!();
    }
    let plots: Vec<_> = PLOTS.iter().filter(|(name, _)| parts.contains(name)).collect();
    if !plots.is_empty() {
        println!("## Plots\n");
        plots.iter().for_each(|(name, caption)| println!("{caption}\n\n![{name}](plots/{name}.svg)\n"));
    }
    let is_control_plane = parts.iter().all(|part| CONTROL_PLANE.contains(part));
    println!("## Notes\n\n{}", if is_control_plane { CONTROL_PLANE_NOTES } else { NOTES });
    let verified = print_verifications(&rows);
    Ok(failures.is_empty() && verified)
}

/// Prints what was verified, and reports whether all of it holds.
fn print_verifications(rows: &[Row]) -> bool {
    if rows.iter().all(|row| row.verification.failed.is_empty() && row.verification.passed.is_empty()) {
        return true;
    }
    println!("## Verified in the same run\n");
    let mut last = String::new();
    for row in rows {
        let failed = row.verification.failed.iter().map(|what| format!("**WRONG: {what}**"));
        let all = failed.chain(row.verification.passed.iter().cloned()).collect::<Vec<_>>().join("; ");
        // Rows of one measurement share a verification.
        if !all.is_empty() && all != last {
            println!("- {}: {all}", row.what);
        }
        last = all;
    }
    rows.iter().all(|row| row.verification.failed.is_empty())
}

fn table_line(row: &Row) -> String {
    let (sample, ratio, name) = match &row.peer {
        Some(peer) => (format_sample(peer.sample), format_sample(peer.ratio), peer.name.as_str()),
        None => Default::default(),
    };
    let aim = match row.aim {
        Some(Aim::RatioAtMost(bound)) => format!("ratio ≤ {}", format_number(bound)),
        Some(Aim::RatioAtLeast(bound)) => format!("ratio ≥ {}", format_number(bound)),
        Some(Aim::AtMost(bound)) => format!("≤ {} {}", format_number(bound), row.unit),
        Some(Aim::Within(least, most)) => format!("{} to {}", format_number(least), format_number(most)),
        None => String::new(),
    };
    let met = match row.is_aim_met() {
        _ if !row.verification.failed.is_empty() => "**wrong**",
        Some(true) => "met",
        Some(false) => "**not met**",
        None => "",
    };
    let (what, unit, name) = (escape_cell(&row.what), escape_cell(&row.unit), escape_cell(name));
    let ours = format_sample(row.ours);
    format!("| {what} | {unit} | {ours} | {sample} | {ratio} | {name} | {aim} | {met} |")
}

/// Formats a median, and the range in parentheses if there is one.
fn format_sample(sample: Sample) -> String {
    let [median, lowest, highest] = [sample.median, sample.lowest, sample.highest].map(format_number);
    if lowest == highest { median } else { format!("{median} ({lowest} to {highest})") }
}

/// Formats a number with about three significant digits: `0.052`, `16.6`, `208k`.
fn format_number(value: f64) -> String {
    match value.abs() {
        size if size >= 999_500.0 => format!("{:.2}M", value / 1e6),
        size if size >= 10_000.0 => format!("{:.0}k", value / 1e3),
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.0995 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn escape_cell(text: &str) -> String {
    text.replace(['\n', '|'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_about_three_significant_digits() {
        let numbers = [0.0, 0.0521, 0.256, 1.9, 16.64, 95.0, 207.6, 12_345.0, 207_600.0, 1_104_000.0];
        let texts = ["0.00", "0.052", "0.26", "1.90", "16.6", "95.0", "208", "12k", "208k", "1.10M"];
        assert_eq!(numbers.map(format_number), texts);
    }
}
