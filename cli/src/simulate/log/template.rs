//! Format strings of nginx (`log_format`) and Apache httpd (`LogFormat`).

use std::str::FromStr;

use jiff::fmt::strtime;
use regex::Regex;

use super::{Fields, Reason, any_time, begin_time, micros};

/// A format string, as a regular expression. Each value ends at the first character of what follows it in the string, so that a line
/// can be read in one way only.
#[derive(Debug, Clone)]
pub(in crate::simulate) struct Template {
    line: Regex,
    /// The values of the groups of the expression.
    parts: Vec<Part>,
}

/// A kind of value.
#[derive(Debug, Clone, PartialEq)]
enum Part {
    Client,
    Time,
    /// A part of the time, in a form of strftime.
    TimeAs(String),
    Request,
    Method,
    Target,
    Query,
    Status,
    Header(String),
    /// How long the request took, in this part of a second. The time is that of the end.
    Took(f64),
    Other,
}

/// A piece of a format string.
enum Piece {
    Text(String),
    /// A value, and an expression for it if spaces follow.
    Value(Part, &'static str),
}

const WORD: &str = r"\S+";
const TWO_WORDS: &str = r"\S+ \S+";
const REQUEST: &str = r"\S+ \S+ \S+";
/// nginx lists several servers with commas and colons.
const LIST: &str = r"\S+(?:(?:,| :) \S+)*";

impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pieces = if text.contains('$') { nginx(text)? } else { apache(text)? };
        let mut line = String::from("^");
        let mut parts = Vec::new();
        for (n, piece) in pieces.iter().enumerate() {
            match piece {
                Piece::Text(text) => line += &regex::escape(text),
                Piece::Value(part, word) => {
                    let next = match pieces.get(n + 1) {
                        None => None,
                        Some(Piece::Text(text)) => text.chars().next(),
                        Some(Piece::Value(Part::Target, _)) => Some('/'),
                        Some(Piece::Value(..)) => {
                            return Err(
                                "two values have nothing between them, so a line could be read in two ways"
                                    .to_owned(),
                            );
                        }
                    };
                    let value = match next {
                        None | Some(' ') => (*word).to_owned(),
                        Some('"') => r#"(?:[^"\\]|\\.)*"#.to_owned(),
                        Some(other) => format!("[^{}]*", regex::escape(&other.to_string())),
                    };
                    line += &format!("({value})");
                    parts.push(part.clone());
                }
            }
        }
        let has = |part: Part| parts.contains(&part);
        let has_time = has(Part::Time) || parts.iter().any(|part| matches!(part, Part::TimeAs(_)));
        for (is_there, what) in [
            (has_time, "time"),
            (has(Part::Client), "address of the client"),
            (has(Part::Request) || has(Part::Target), "request"),
        ] {
            if !is_there {
                return Err(format!("the format has no {what}"));
            }
        }
        let line = Regex::new(&(line + "$")).map_err(|error| error.to_string())?;
        Ok(Self { line, parts })
    }
}

impl Template {
    /// Reads a line. Returns `None` if it has another format.
    pub(super) fn read(&self, line: &str) -> Option<Result<Fields, Reason>> {
        let found = self.line.captures(line)?;
        let mut fields = Fields::default();
        let (mut took, mut query) = (None, "");
        let (mut form, mut clock) = (String::new(), String::new());
        for (n, part) in self.parts.iter().enumerate() {
            let value = found.get(n + 1).map_or("", |value| value.as_str());
            if value == "-" {
                continue;
            }
            let text = || super::clf::unescape(value).into_owned();
            match part {
                Part::Client => fields.client = Some(text()),
                Part::Time => fields.at = any_time(value),
                Part::TimeAs(of) => {
                    form = form + " " + of;
                    clock = clock + " " + value;
                }
                Part::Request => fields.request_line(&text()),
                Part::Method => fields.method = Some(text()),
                Part::Target => fields.target = Some(text()),
                Part::Query => query = value.trim_start_matches('?'),
                Part::Status => fields.status = value.parse().ok(),
                Part::Header(name) => fields.header(name, &text()),
                Part::Took(factor) => took = value.parse::<f64>().ok().map(|number| number * factor),
                Part::Other => (),
            }
        }
        if !form.is_empty() {
            fields.at = strtime::parse(&form, &clock).ok().and_then(|time| {
                let stamp = time
                    .to_timestamp()
                    .or_else(|_| time.to_datetime()?.in_tz("UTC").map(|zoned| zoned.timestamp()));
                micros(stamp.ok()?)
            });
        }
        if let (Some(target), false) = (&mut fields.target, query.is_empty()) {
            target.push('?');
            target.push_str(query);
        }
        fields.at = fields.at.map(|end| begin_time(end, took));
        Some(Ok(fields))
    }
}

/// Adds text to the last piece.
fn push(pieces: &mut Vec<Piece>, text: &str) {
    match pieces.last_mut() {
        Some(Piece::Text(last)) => last.push_str(text),
        _ => pieces.push(Piece::Text(text.to_owned())),
    }
}

/// Reads a format string of nginx, also with the quotation marks of its configuration.
fn nginx(text: &str) -> Result<Vec<Piece>, String> {
    let text = text.trim().trim_end_matches(';');
    let quoted: Vec<_> = text.split('\'').collect();
    let text = if quoted.len() >= 3 {
        quoted.iter().skip(1).step_by(2).copied().collect::<String>()
    } else {
        text.to_owned()
    };
    let mut pieces = Vec::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find('$') {
        push(&mut pieces, &rest[..at]);
        rest = rest[at + 1..].trim_start_matches('{');
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        rest = after.strip_prefix('}').unwrap_or(after);
        let (part, word) = match name {
            "remote_addr" | "realip_remote_addr" | "proxy_protocol_addr" => (Part::Client, WORD),
            "time_local" => (Part::Time, TWO_WORDS),
            "time_iso8601" | "msec" => (Part::Time, WORD),
            "request" => (Part::Request, REQUEST),
            "request_method" => (Part::Method, WORD),
            "request_uri" | "uri" | "document_uri" => (Part::Target, WORD),
            "args" | "query_string" => (Part::Query, WORD),
            "status" => (Part::Status, WORD),
            "host" | "http_host" => (Part::Header("host".to_owned()), WORD),
            "request_time" => (Part::Took(1.0), WORD),
            "proxy_add_x_forwarded_for" => (Part::Header("x-forwarded-for".to_owned()), LIST),
            "" => return Err("a $ without the name of a variable".to_owned()),
            name if name.starts_with("http_") => {
                (Part::Header(name.trim_start_matches("http_").replace('_', "-")), WORD)
            }
            name if name.starts_with("upstream_") => (Part::Other, LIST),
            _ => (Part::Other, WORD),
        };
        pieces.retain(|piece| !matches!(piece, Piece::Text(text) if text.is_empty()));
        pieces.push(Piece::Value(part, word));
    }
    push(&mut pieces, rest);
    pieces.retain(|piece| !matches!(piece, Piece::Text(text) if text.is_empty()));
    Ok(pieces)
}

/// Reads a format string of Apache httpd.
fn apache(text: &str) -> Result<Vec<Piece>, String> {
    let text = text.trim().replace("\\\"", "\"").replace("\\t", "\t");
    let mut pieces = Vec::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find('%') {
        if at > 0 {
            push(&mut pieces, &rest[..at]);
        }
        rest = rest[at + 1..]
            .trim_start_matches(|c: char| c == '<' || c == '>' || c == '!' || c == ',' || c.is_ascii_digit());
        let mut argument = "";
        if let Some(begun) = rest.strip_prefix('{') {
            let (inside, after) = begun.split_once('}').ok_or("a { without }")?;
            (argument, rest) = (inside, after);
        }
        let letter = rest.chars().next().ok_or("a % at the end")?;
        rest = &rest[letter.len_utf8()..];
        let (part, word) = match (letter, argument) {
            ('%', _) => {
                push(&mut pieces, "%");
                continue;
            }
            ('h' | 'a', _) => (Part::Client, WORD),
            ('t', "") => {
                push(&mut pieces, "[");
                pieces.push(Piece::Value(Part::Time, TWO_WORDS));
                push(&mut pieces, "]");
                continue;
            }
            ('t', form) => {
                let form = form.trim_start_matches("begin:").trim_start_matches("end:");
                let part = match form {
                    "sec" | "msec" | "usec" => Part::Time,
                    "msec_frac" => Part::TimeAs("%3f".to_owned()),
                    "usec_frac" => Part::TimeAs("%6f".to_owned()),
                    form => Part::TimeAs(form.to_owned()),
                };
                (part, if form.contains(' ') { TWO_WORDS } else { WORD })
            }
            ('r', _) => (Part::Request, REQUEST),
            ('m', _) => (Part::Method, WORD),
            ('U', _) => (Part::Target, WORD),
            ('q', _) => (Part::Query, r"\S*"),
            ('s', _) => (Part::Status, WORD),
            ('v' | 'V', _) => (Part::Header("host".to_owned()), WORD),
            ('i', name) => (Part::Header(name.to_ascii_lowercase()), WORD),
            _ => (Part::Other, WORD),
        };
        // The query begins with its own question mark.
        if part == Part::Query && matches!(pieces.last(), Some(Piece::Value(Part::Target, _))) {
            pieces.pop();
            pieces.push(Piece::Value(Part::Target, WORD));
            continue;
        }
        pieces.push(Piece::Value(part, word));
    }
    if !rest.is_empty() {
        push(&mut pieces, rest);
    }
    Ok(pieces)
}
