//! The formats of `/metrics`: OpenMetrics 1.0 and the text format of Prometheus, of which a client chooses by `Accept`.

use http::HeaderMap;
use http::header::ACCEPT;

/// A format of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpositionFormat {
    /// `OpenMetrics` 1.0.0.
    OpenMetrics,
    /// The text format 0.0.4 of Prometheus.
    Text,
}

impl ExpositionFormat {
    /// Returns the format for a request. Only a client that names `OpenMetrics`, and does not prefer the other format, gets it:
    /// a browser accepts everything and shows only text.
    #[must_use]
    pub fn accepted(headers: &HeaderMap) -> Self {
        let ranges = || headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let weight = |name: &str, version: &str| {
            ranges()
                .flat_map(|line| line.split(','))
                .filter_map(|range| weight(range, name, version))
                .fold(0.0, f32::max)
        };
        let open = weight("application/openmetrics-text", "1.0.0");
        if open > 0.0 && open >= weight("text/plain", "0.0.4") { Self::OpenMetrics } else { Self::Text }
    }

    /// Returns the value of `Content-Type`.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Returns metrics, given in `OpenMetrics`, in this format.
    #[must_use]
    pub fn page(self, open_metrics: String) -> String {
        match self {
            Self::OpenMetrics => open_metrics,
            Self::Text => text(&open_metrics),
        }
    }
}

/// Returns the weight of a media range of `Accept` if it names this type in this version, or in any.
fn weight(range: &str, name: &str, version: &str) -> Option<f32> {
    let mut parts = range.split(';').map(str::trim);
    if !parts.next()?.eq_ignore_ascii_case(name) {
        return None;
    }
    let mut weight = 1.0;
    for (parameter, value) in parts.filter_map(|part| part.split_once('=')) {
        let value = value.trim_matches('"');
        if parameter.eq_ignore_ascii_case("q") {
            weight = value.parse().ok()?;
        } else if parameter.eq_ignore_ascii_case("version") && value != version {
            return None;
        }
    }
    Some(weight)
}

/// Returns metrics in the text format. In this format the name of a family of counters ends with `_total`, as its samples do.
/// The lines of counters, gauges and histograms are the same otherwise.
fn text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len() + open_metrics.len() / 16);
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, help)) = help.take() {
                text.extend(["# HELP ", name, suffix, " ", help, "\n"]);
            }
            text.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
        } else if line != "# EOF" {
            text.extend([line, "\n"]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_client_that_names_openmetrics_and_prefers_no_text_gets_it() {
        let open = "application/openmetrics-text";
        for (accept, expected) in [
            // Prometheus 3 and 2, and what asks for text only.
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;\
                 q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
                ExpositionFormat::OpenMetrics,
            ),
            (
                "application/openmetrics-text; version=1.0.0; q=0.75, text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                ExpositionFormat::OpenMetrics,
            ),
            ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", ExpositionFormat::Text),
            ("*/*", ExpositionFormat::Text),
            ("", ExpositionFormat::Text),
            ("application/json", ExpositionFormat::Text),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", ExpositionFormat::Text),
            (open, ExpositionFormat::OpenMetrics),
            ("Application/OpenMetrics-Text; Version=\"1.0.0\"", ExpositionFormat::OpenMetrics),
            ("application/openmetrics-text;version=0.0.1", ExpositionFormat::Text),
            ("application/openmetrics-text;q=0", ExpositionFormat::Text),
            ("application/openmetrics-text;q=x", ExpositionFormat::Text),
            ("application/openmetrics-text;q=0.2, text/plain", ExpositionFormat::Text),
        ] {
            let headers = [(ACCEPT, HeaderValue::from_str(accept).unwrap())].into_iter().collect();
            assert_eq!(ExpositionFormat::accepted(&headers), expected, "{accept}");
        }
        assert_eq!(ExpositionFormat::accepted(&HeaderMap::new()), ExpositionFormat::Text);
        let lines = ["text/plain;q=0.1", open].map(|line| (ACCEPT, HeaderValue::from_static(line)));
        let headers = lines.into_iter().collect();
        assert_eq!(ExpositionFormat::accepted(&headers), ExpositionFormat::OpenMetrics, "two lines");
    }

    #[test]
    fn the_text_names_counters_as_their_samples() {
        let open_metrics = "# HELP a Requests.\n# TYPE a counter\na_total{x=\"# EOF\"} 1\n# HELP b Pods.\n# TYPE b gauge\nb 2\n# EOF\n";
        let expected = "# HELP a_total Requests.\n# TYPE a_total counter\na_total{x=\"# EOF\"} 1\n# HELP b Pods.\n# TYPE b gauge\nb 2\n";
        assert_eq!(ExpositionFormat::Text.page(open_metrics.to_owned()), expected);
        assert_eq!(ExpositionFormat::OpenMetrics.page(open_metrics.to_owned()), open_metrics);
    }
}
