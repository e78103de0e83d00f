//! The result as one page, without scripts and without anything from elsewhere.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::chart::chart;
use super::{FileReport, LimitReport, Report, share};
use crate::output::{count, grouped};

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
.grid { stroke: var(--line); } .admitted { fill: var(--admitted); } .denied { fill: var(--denied); }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; } .key.admitted { background: var(--admitted); } .key.denied { background: var(--denied); }
";

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
        "<p>{} from {} to {}</p>\n<p class=\"dim\">{}</p>",
        count(report.requests, "request"),
        report.begin,
        report.end,
        escape(&logs)
    );
    if !report.unreadable.is_empty() {
        let lines = count(report.unreadable_lines, "line");
        let _ = writeln!(
            page,
            "<p>{lines} could not be read:</p>\n<div class=\"wide\"><table>\n<tr><th>reason</th><th>first</th><th>line</th><th class=\"n\">lines</th></tr>"
        );
        for reason in &report.unreadable {
            row(&mut page, &[reason.reason, &reason.at, &reason.line], &[grouped(reason.lines)]);
        }
        page.push_str("</table></div>\n");
    }
    for file in &report.incomplete {
        let _ = writeln!(page, "<p>{}</p>", escape(&file.to_string()));
    }
    if report.out_of_order > 0 {
        let late = count(report.out_of_order, "line");
        let _ = writeln!(
            page,
            "<p class=\"dim\">{late} more than 5 minutes late, decided at the latest time before</p>"
        );
    }
    if let (Some(comparison), [first, second]) = (&report.comparison, &report.files[..]) {
        let _ = writeln!(
            page,
            "<h2>Comparison</h2>\n<div class=\"wide\"><table>\n<tr><th>denied by</th><th class=\"n\">requests</th><th class=\"n\">of all</th></tr>"
        );
        for (name, count) in [
            (format!("only {}", first.file), comparison.only_first),
            (format!("only {}", second.file), comparison.only_second),
            ("both".to_owned(), comparison.both),
        ] {
            let cells = [grouped(count), share(count, report.requests)];
            row(&mut page, &[&name], &cells);
        }
        page.push_str("</table></div>\n");
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
    file.limits.iter().for_each(|one| limit(page, one));
    if !file.routes.is_empty() {
        page.push_str("<h3>Paths</h3>\n<div class=\"wide\"><table>\n<tr><th>method</th><th>path</th><th class=\"n\">requests</th><th class=\"n\">denied</th><th class=\"n\">of all</th></tr>\n");
        for route in &file.routes {
            let numbers =
                [grouped(route.requests), grouped(route.denied), share(route.denied, route.requests)];
            row(page, &[&route.method, &route.path], &numbers);
        }
        page.push_str("</table></div>\n");
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
        chart(&limit.series)
    );
    if !limit.most_denied.is_empty() {
        page.push_str("<div class=\"wide\"><table>\n<tr><th>client</th><th>first denied</th><th>last denied</th><th class=\"n\">requests</th><th class=\"n\">denied</th></tr>\n");
        for client in &limit.most_denied {
            row(page, &[&client.client, &client.first, &client.last], &client.numbers());
        }
        page.push_str("</table></div>\n");
    }
    if !limit.most_needing.is_empty() {
        page.push_str("<div class=\"wide\"><table>\n<tr><th>client</th><th>needs</th><th class=\"n\">requests</th><th class=\"n\">denied</th></tr>\n");
        for client in &limit.most_needing {
            let numbers = [grouped(client.requests), grouped(client.denied)];
            row(page, &[&client.client, &client.words()], &numbers);
        }
        page.push_str("</table></div>\n");
    }
    if !limit.suggestions.is_empty() {
        page.push_str("<div class=\"wide\"><table>\n<tr><th>number</th><th class=\"n\">spares</th><th class=\"n\">99 % need</th><th class=\"n\">99.9 % need</th><th class=\"n\">all need</th></tr>\n");
        for suggestion in &limit.suggestions {
            let name = format!("{} per {}", grouped(suggestion.requests), suggestion.per);
            let mut cells = vec![format!("{:.2} %", suggestion.spares_percent)];
            cells.extend(suggestion.numbers.iter().map(|number| grouped(number.requests)));
            row(page, &[&name], &cells);
        }
        page.push_str("</table></div>\n");
    }
}

/// Adds a row of texts and numbers.
fn row(page: &mut String, texts: &[&str], numbers: &[String]) {
    page.push_str("<tr>");
    for text in texts {
        let _ = write!(page, "<td class=\"client\">{}</td>", escape(text));
    }
    for number in numbers {
        let _ = write!(page, "<td class=\"n\">{}</td>", escape(number));
    }
    page.push_str("</tr>\n");
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
