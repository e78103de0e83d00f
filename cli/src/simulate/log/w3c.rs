//! The extended log format of the W3C, which Amazon CloudFront writes: a line `#Fields:` names the columns.

use percent_encoding::percent_decode_str;

use super::reason::Reason;
use super::{Fields, time};

/// The columns of a file.
#[derive(Debug, Clone, Default)]
pub(super) struct Columns(Vec<String>);

/// The columns of CloudFront's standard logs that are read, in the order in which it writes them. Later ones are not needed.
const CLOUDFRONT: &str = "date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) cs(User-Agent) \
    cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes time-taken x-forwarded-for";

impl Columns {
    /// Reads a line that begins with `#`.
    pub(super) fn directive(&mut self, line: &str) {
        if let Some(names) = line.strip_prefix("#Fields:") {
            self.0 = names.split_whitespace().map(str::to_owned).collect();
        }
    }

    /// Reads a line. Returns `None` if it has another format. Times are in UTC, and those of CloudFront of the end of a response.
    pub(super) fn read(&self, line: &str) -> Option<Result<Fields, Reason>> {
        let separator = if line.contains('\t') { '\t' } else { ' ' };
        let values: Vec<_> = line.split(separator).collect();
        if !self.0.is_empty() {
            return (values.len() == self.0.len())
                .then(|| Ok(fields(&mut self.0.iter().map(String::as_str).zip(values))));
        }
        let is_cloudfront = separator == '\t' && values.len() > 20 && is_date(values[0]);
        is_cloudfront.then(|| Ok(fields(&mut CLOUDFRONT.split_whitespace().zip(values))))
    }
}

fn is_date(text: &str) -> bool {
    text.parse::<jiff::civil::Date>().is_ok()
}

fn fields<'a>(columns: &mut dyn Iterator<Item = (&'a str, &'a str)>) -> Fields {
    let mut fields = Fields::default();
    let (mut date, mut clock, mut taken, mut query, mut own_host) = ("", "", None, "", "");
    for (name, value) in columns.filter(|(_, value)| *value != "-") {
        match name {
            "date" => date = value,
            "time" => clock = value,
            "c-ip" => fields.client = Some(value.to_owned()),
            "cs-method" => fields.method = Some(value.to_owned()),
            "cs-uri-stem" => fields.target = Some(value.to_owned()),
            "cs-uri-query" => query = value,
            "sc-status" => fields.status = value.parse().ok(),
            // IIS writes whole milliseconds, and others seconds with a point.
            "time-taken" => {
                let unit = if value.contains('.') { 1.0 } else { 1e-3 };
                taken = value.parse::<f64>().ok().map(|number| number * unit);
            }
            // The name that the viewer asked for; `cs(Host)` is that of the distribution.
            "x-host-header" => fields.header("host", value),
            "cs(Host)" | "cs-host" => own_host = value,
            "x-forwarded-for" => fields.header("x-forwarded-for", &decoded(value)),
            name => {
                if let Some(header) = name.strip_prefix("cs(").and_then(|name| name.strip_suffix(')')) {
                    fields.header(&header.to_ascii_lowercase(), &decoded(value));
                }
            }
        }
    }
    if !fields.headers.iter().any(|(name, _)| name == "host") {
        fields.header("host", own_host);
    }
    if let (Some(target), false) = (&mut fields.target, query.is_empty()) {
        target.push('?');
        target.push_str(query);
    }
    fields.at = time::rfc3339(&format!("{date}T{clock}Z")).map(|end| time::begin(end, taken));
    fields
}

/// Decodes a value, which is written as in URLs.
fn decoded(value: &str) -> String {
    percent_decode_str(value).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_iis_is_in_milliseconds() {
        let mut columns = Columns::default();
        columns.directive(
            "#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port c-ip sc-status time-taken",
        );
        let line = |taken: &str| format!("2026-11-23 10:00:00 10.0.0.1 GET /a b=1 443 192.0.2.7 200 {taken}");
        let fields = |taken: &str| columns.read(&line(taken)).unwrap().unwrap();
        let begin = |taken: &str| 1_795_428_000_000_000 - fields(taken).at.unwrap();
        assert_eq!((begin("15"), begin("1.500"), begin("-")), (15_000, 1_500_000, 0));
        assert_eq!(fields("15").target.as_deref(), Some("/a?b=1"));
    }
}
