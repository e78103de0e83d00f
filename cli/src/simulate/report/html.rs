//! The result as one page, with charts over time in SVG, without scripts and without anything from elsewhere.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::client::time;
use super::{FileReport, LimitReport, Report, share};
use crate::output::{count, grouped};
use crate::simulate::tally::Series;

const STYLE: &str = "
:root { color-scheme: light dark; --text: #1c2430; --dim: #667; --line: #dde2ea; --admitted: #7fb3d5; --denied: #d1495b; --back: #fff; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ef; --dim: #99a3b3; --line: #333c49; --admitted: #3d6f94; --denied: #e0606f; --back: #14181f; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 960px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; margin: 2rem 0 .3rem; }
p { margin: .3rem 0; } .dim { color: var(--dim); }
table { border-collapse: collapse; width: 100%; margin: .8rem 0; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; } th, td { padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; } td.client { overflow-wrap: anywhere; min-width: 6rem; }
.wide { overflow-x: auto; } .wide svg { min-width: 600px; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: var(--dim); } svg text.y { text-anchor: end; }
.grid { stroke: var(--line); } .limit { stroke: var(--text); stroke-dasharray: 4 3; } .admitted { fill: var(--admitted); } .denied { fill: var(--denied); }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; } .key.admitted { background: var(--admitted); } .key.denied { background: var(--denied); }
";

/// Assumptions of a simulation.
const ASSUMPTIONS: [&str; 3] = [
    "Each request is decided at the time that the log has for it, by counters that begin empty.",
    "Every request is taken to have come in any case: a client that obeys a denial would have sent fewer.",
    "The client is the address in the log, or in X-Forwarded-For where the policy trusts that address.",
];

/// Returns the page.
pub(in crate::simulate) fn page(report: &Report) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>Who would have been limited</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>Who would have been limited</h1>\n"
    );
    // Writing to a string cannot fail.
    let logs = report.logs.join(", ");
    let _ = writeln!(
        page,
        "<p>{} from {} to {}</p>\n<p class=\"dim\">{}; sluice {}</p>",
        count(report.requests, "request"),
        report.begin,
        report.end,
        escape(&logs),
        report.version
    );
    if !report.unreadable.is_empty() {
        let lines = count(report.unreadable_lines, "line");
        let _ = writeln!(page, "<p>{lines} could not be read:</p>");
        let rows = report.unreadable.iter().map(|reason| {
            (
                vec![reason.reason.to_owned(), reason.at.clone(), reason.line.clone()],
                vec![grouped(reason.lines)],
            )
        });
        table(&mut page, &["reason", "first", "line"], &["lines"], rows);
    }
    for note in report.notes() {
        let _ = writeln!(page, "<p>{}</p>", escape(&note));
    }
    for assumption in ASSUMPTIONS {
        let _ = writeln!(page, "<p class=\"dim\">{assumption}</p>");
    }
    if let (Some(comparison), [first, second]) = (&report.comparison, &report.files[..]) {
        page.push_str("<h2>Comparison</h2>\n");
        let rows = [
            (format!("only {}", first.file), comparison.only_first),
            (format!("only {}", second.file), comparison.only_second),
            ("both".to_owned(), comparison.both),
        ];
        let rows = rows
            .into_iter()
            .map(|(name, number)| (vec![name], vec![grouped(number), share(number, report.requests)]));
        table(&mut page, &["denied by"], &["requests", "of all"], rows);
    }
    for of_file in &report.files {
        file(&mut page, of_file, report.requests);
    }
    if let Some(proposal) = &report.suggested {
        let _ = writeln!(
            page,
            "<h2>Suggested policy</h2>\n<div class=\"wide\"><pre>{}</pre></div>",
            escape(&proposal.policy)
        );
    }
    page + "</body>\n</html>\n"
}

fn file(page: &mut String, file: &FileReport, requests: u64) {
    let _ = writeln!(
        page,
        "<h2>{}</h2>\n<p>{} denied, {}</p>",
        escape(&file.file),
        count(file.denied, "request"),
        share(file.denied, requests)
    );
    for warning in &file.warnings {
        let _ = writeln!(page, "<p>Warning: {}</p>", escape(warning));
    }
    for limit in &file.left_out {
        let _ = writeln!(
            page,
            "<p class=\"dim\">{} is left out: it depends on how long requests take.</p>",
            escape(limit)
        );
    }
    let _ =
        writeln!(page, "<details><summary>The policy</summary><pre>{}</pre></details>", escape(&file.policy));
    file.limits.iter().for_each(|one| limit(page, one));
    if !file.routes.is_empty() {
        page.push_str("<h3>Paths</h3>\n");
        let rows = file.routes.iter().map(|route| {
            let share = share(route.denied, route.requests);
            let numbers = vec![grouped(route.requests), grouped(route.denied), share];
            (vec![route.method.clone(), route.path.clone()], numbers)
        });
        table(page, &["method", "path"], &["requests", "denied", "of all"], rows);
    }
    if let Some(note) = file.note_of_paths() {
        let _ = writeln!(page, "<p>{note}</p>");
    }
}

fn limit(page: &mut String, limit: &LimitReport) {
    let _ = writeln!(
        page,
        "<h3>{} {} <span class=\"dim\">{}</span></h3>",
        escape(&limit.policy),
        escape(&limit.limit),
        limit.effect
    );
    let _ = writeln!(page, "<p class=\"dim\">{}</p>", escape(&limit.rates.join("; ")));
    let verb = if matches!(limit.effect, "Mark" | "Shadow") { "would have been denied" } else { "denied" };
    let _ = writeln!(
        page,
        "<p>{} of {} {verb} ({}), {} of {} limited ({})</p>",
        grouped(limit.denied),
        count(limit.requests, "request"),
        share(limit.denied, limit.requests),
        grouped(limit.limited_clients as u64),
        count(limit.clients as u64, "client"),
        share(limit.limited_clients as u64, limit.clients as u64)
    );
    for note in limit.notes() {
        let _ = writeln!(page, "<p>{}</p>", escape(&note));
    }
    if let Some(worst) = &limit.worst {
        let length = crate::clients::seconds(worst.seconds);
        let _ =
            writeln!(page, "<p>Worst: {} denied in {length} from {}</p>", grouped(worst.denied), worst.at);
    }
    let _ = writeln!(
        page,
        "<p class=\"dim\">Requests in each {}<span class=\"key admitted\"></span>not denied<span class=\"key denied\"></span>denied</p>\n<div class=\"wide\">{}</div>",
        crate::clients::seconds(limit.series.interval_micros as f64 / 1e6),
        chart(&limit.series, limit.of_all)
    );
    let denied = limit.most_denied.iter().map(|client| {
        (vec![client.client.clone(), client.first.clone(), client.last.clone()], client.numbers().to_vec())
    });
    table(page, &["client", "first denied", "last denied"], &["requests", "denied"], denied);
    let needing = limit.most_needing.iter().map(|client| {
        (vec![client.client.clone(), client.words()], vec![grouped(client.requests), grouped(client.denied)])
    });
    table(page, &["client", "needs"], &["requests", "denied"], needing);
    let suggestions = limit.suggestions.iter().map(|suggestion| {
        let numbers = suggestion.numbers.iter().map(|number| grouped(number.requests));
        let spares = format!("{:.2} %", suggestion.spares_percent);
        let name = format!("{} per {}", grouped(suggestion.requests), suggestion.per);
        (vec![name], std::iter::once(spares).chain(numbers).collect())
    });
    table(page, &["number"], &["spares", "99 % need", "99.9 % need", "all need"], suggestions);
}

/// Adds a table with columns of texts and of numbers, unless it has no rows.
fn table(
    page: &mut String,
    texts: &[&str],
    numbers: &[&str],
    rows: impl Iterator<Item = (Vec<String>, Vec<String>)>,
) {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return;
    }
    page.push_str("<div class=\"wide\"><table>\n<tr>");
    texts.iter().for_each(|name| *page += &format!("<th>{name}</th>"));
    numbers.iter().for_each(|name| *page += &format!("<th class=\"n\">{name}</th>"));
    page.push_str("</tr>\n");
    for (texts, numbers) in rows {
        page.push_str("<tr>");
        texts.iter().for_each(|text| *page += &format!("<td class=\"client\">{}</td>", escape(text)));
        numbers.iter().for_each(|number| *page += &format!("<td class=\"n\">{}</td>", escape(number)));
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
}

/// Escapes text that clients may have chosen.
fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(['&', '<', '>', '"', '\'']) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 160.0;
/// Space for the numbers on the left, and for the times below.
const LEFT: f64 = 56.0;
const BELOW: f64 = 22.0;

/// Draws stacked bars: denied requests above admitted ones. Each bar tells its numbers to a pointer. A line is the limit, if it is one
/// of all requests together: a number, and its period in microseconds.
fn chart(series: &Series, limit: Option<(u64, u64)>) -> String {
    let limit = limit.map(|(number, period)| number as f64 * series.interval_micros as f64 / period as f64);
    let most = series.intervals.iter().map(|[admitted, denied]| admitted + denied).max().unwrap_or(0).max(1);
    let most = most.max(limit.map_or(0, |limit| limit.ceil() as u64));
    let width = (WIDTH - LEFT) / series.intervals.len().max(1) as f64;
    let height = |count: u64| count as f64 / most as f64 * HEIGHT;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"Requests over time\">\n",
        HEIGHT + BELOW + 8.0
    );
    // Writing to a string cannot fail.
    for (part, number) in [(1.0, most), (0.5, most / 2), (0.0, 0)] {
        let y = 8.0 + HEIGHT * (1.0 - part);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text class=\"y\" x=\"{}\" y=\"{:.1}\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            grouped(number)
        );
    }
    for (n, &[admitted, denied]) in series.intervals.iter().enumerate() {
        if admitted + denied == 0 {
            continue;
        }
        let (x, bar) = (LEFT + n as f64 * width, (width * 0.9).max(0.5));
        let begin = time(series.begin_micros + n as u64 * series.interval_micros);
        let (lower, upper) = (height(admitted), height(denied));
        let bottom = 8.0 + HEIGHT;
        let _ = writeln!(
            svg,
            "<g><title>{begin}: {} not denied, {} denied</title><rect class=\"admitted\" x=\"{x:.2}\" y=\"{:.2}\" width=\"{bar:.2}\" height=\"{lower:.2}\"/><rect class=\"denied\" x=\"{x:.2}\" y=\"{:.2}\" width=\"{bar:.2}\" height=\"{upper:.2}\"/></g>",
            grouped(admitted),
            grouped(denied),
            bottom - lower,
            bottom - lower - upper,
        );
    }
    if let Some(limit) = limit {
        let y = 8.0 + HEIGHT - limit / most as f64 * HEIGHT;
        let _ = writeln!(
            svg,
            "<line class=\"limit\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"><title>the limit: {limit:.0} in each interval</title></line>"
        );
    }
    let last = series.begin_micros + series.intervals.len() as u64 * series.interval_micros;
    let y = HEIGHT + BELOW;
    for (x, anchor, at) in [
        (LEFT, "start", series.begin_micros),
        ((LEFT + WIDTH) / 2.0, "middle", series.begin_micros.midpoint(last)),
        (WIDTH, "end", last),
    ] {
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{}</text>", time(at));
    }
    svg + "</svg>\n"
}
