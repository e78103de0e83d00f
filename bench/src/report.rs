//! One page of all parts, in Markdown: what has an aim, the charts, the rest, and what was verified.

use std::path::Path;

use crate::row::{Aim, Part, Row, Sample};

const HEAD: &str = "| measured | unit | Sluice | peer | Sluice / peer | peer is | aim | |\n|---|---|---|---|---|---|---|---|";

/// The charts, by part, and what they show.
const CHARTS: [(&str, &str); 3] = [
    (
        "callers",
        "Checks per second and CPU a check over the number of callers. Points are medians, bars the lowest and the \
         highest round. One caller has nothing to share a call with; from there on each call of the store carries more \
         checks, and MULTI/INCRBY pipelines.",
    ),
    (
        "edge",
        "What passes when somebody sends as fast as possible around the edge of a window, by the limiter's functions \
         and a clock that is an argument: the same in each run.",
    ),
    (
        "outage",
        "Redis is killed under load and started again, empty. A check that gets no answer within the latency budget, \
         or at once while the circuit is open, is left to the policy's `onStoreFailure`.",
    ),
];

const NOTES: &str = "\
- CPU is user's and kernel's time of all threads by the scheduler's count (`schedstat`), so it holds on a busy machine \
as well; times by a clock and throughputs suffer from neighbours, ratios of one run less so.
- Memory store: `governor` keeps one instant a key, decides one rate, and tells who is admitted nothing but that; the store \
tells how many are left and until when, as headers do, decides several counters with several \
rates as one, keeps counts through edits and forgets idle keys. `limitador` is asked by its storage alone with \
counters that are ready, and as a whole with contexts that are ready, of which each check still evaluates the variable.
- Leases: each client is a limiter of its own with a connection of its own, and all share one Redis. What is admitted is \
that of whole windows, of all together.
- The longest call of Redis is that of each round: judged by the median of the rounds, and the longest of all is in parentheses.
- Redis: MULTI/INCRBY counts denied requests, knows no deadline, and is not one decision over several limits. \
`limitador`'s asynchronous storage reads and then writes, in two calls, and so may admit more than the limit to callers \
who come at once. Its cached one answers from its own memory: it is not limited by Redis, nor exact across processes.
- Many processes of one caller have nothing to batch: a process gathers only what waits while a call of its own is under \
way. So their checks cost what one call costs, of which reading, parsing and answering on each socket is a part that no \
script can lower; the rows tell it apart from the script.
- Bytes a user are the difference of Redis's `used_memory`, so the key, the value, the entry of the dictionary, that of \
the times to live, and what the allocator adds are all in it.
- nginx sends no rate-limit headers and a fixed body; the sidecar computes both. Most of the sidecar's resident memory is \
pages of its binary, shared by all sidecars of a node's image.";

/// Prints the page of some parts; `Ok(false)` when one could not be measured or was not as expected.
pub(crate) fn print(folder: &Path, parts: &[&str]) -> anyhow::Result<bool> {
    let (mut good, mut rows, mut failed) = (true, Vec::new(), Vec::new());
    for name in parts {
        let part = match std::fs::read_to_string(folder.join(format!("{name}.json"))) {
            Ok(text) => serde_json::from_str::<Part>(&text)?,
            Err(_) => Err("it was ended before it had a result".to_owned()),
        };
        match part {
            Ok(found) => rows.extend(found),
            Err(why) => failed.push((name, why)),
        }
    }
    let (aimed, others): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.aim.is_some());
    for (title, rows) in [("Aims", aimed), ("Everything else", others)] {
        if !rows.is_empty() {
            println!("## {title}\n\n{HEAD}");
            rows.iter().for_each(|row| println!("{}", line(row)));
            println!();
        }
    }
    if !failed.is_empty() {
        good = false;
        println!("## Not measured\n");
        failed.iter().for_each(|(name, why)| println!("- **{name}**: {}", cell(why)));
        println!();
    }
    let charts: Vec<_> = CHARTS.iter().filter(|(name, _)| parts.contains(name)).collect();
    if !charts.is_empty() {
        println!("## Charts\n");
        charts.iter().for_each(|(name, text)| println!("{text}\n\n![{name}](plots/{name}.svg)\n"));
    }
    println!("## How to read it\n\n{NOTES}\n\n## Seen in the same run\n");
    let mut last = String::new();
    for row in &rows {
        let wrong = row.wrong.iter().map(|what| format!("**WRONG: {what}**"));
        let checks = wrong.chain(row.verified.iter().cloned()).collect::<Vec<_>>().join("; ");
        good &= row.wrong.is_empty();
        // Rows of one measurement share their checks.
        if !checks.is_empty() && checks != last {
            println!("- {}: {checks}", row.what);
        }
        last = checks;
    }
    Ok(good)
}

fn line(row: &Row) -> String {
    let (sample, ratio, name) = match &row.peer {
        Some(peer) => (spread(peer.sample), spread(peer.ratio), peer.name.as_str()),
        None => Default::default(),
    };
    let aim = match row.aim {
        Some(Aim::RatioAtMost(bound)) => format!("ratio ≤ {}", number(bound)),
        Some(Aim::RatioAtLeast(bound)) => format!("ratio ≥ {}", number(bound)),
        Some(Aim::AtMost(bound)) => format!("≤ {} {}", number(bound), row.unit),
        Some(Aim::Within(least, most)) => format!("{} to {}", number(least), number(most)),
        None => String::new(),
    };
    let met = match row.met() {
        _ if !row.wrong.is_empty() => "**wrong**",
        Some(true) => "met",
        Some(false) => "**not met**",
        None => "",
    };
    let (what, unit, name) = (cell(&row.what), cell(&row.unit), cell(name));
    format!("| {what} | {unit} | {} | {sample} | {ratio} | {name} | {aim} | {met} |", spread(row.ours))
}

/// The median, and between which bounds all rounds were.
fn spread(sample: Sample) -> String {
    let Sample { median, lowest, highest } = sample;
    let (median, lowest, highest) = (number(median), number(lowest), number(highest));
    if lowest == highest { median } else { format!("{median} ({lowest} to {highest})") }
}

/// Three digits that matter; thousands as `208k`.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 999_500.0 => format!("{:.2}M", value / 1e6),
        size if size >= 10_000.0 => format!("{:.0}k", value / 1e3),
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.0995 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn cell(text: &str) -> String {
    text.replace(['\n', '|'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_about_three_digits() {
        let numbers = [0.0, 0.0521, 0.256, 1.9, 16.64, 95.0, 207.6, 12_345.0, 207_600.0, 1_104_000.0];
        let words = ["0.00", "0.052", "0.26", "1.90", "16.6", "95.0", "208", "12k", "208k", "1.10M"];
        assert_eq!(numbers.map(number), words);
    }
}
