//! Values without quotes that kubectl reads otherwise than YAML 1.2.
//!
//! kubectl reads YAML 1.1 by `resolve` in `resolve.go` of go.yaml.in/yaml/v2, which sigs.k8s.io/yaml wraps. There `no` is a
//! boolean and `010` is eight.

use serde_json::Value;
use serde_saphyr::{Location, Spanned};

use super::yaml::{Node, Problem};

/// A value as kubectl reads it.
#[derive(Debug, PartialEq)]
enum Reading {
    Text,
    Boolean(bool),
    Null,
    Number(f64),
}

/// Warns of each value and each key of an object that kubectl reads otherwise. `text` is the file.
pub(super) fn check_plain(text: &str, node: &Spanned<Node>) -> Vec<Problem> {
    let mut found = Vec::new();
    check(text, node, "", &mut found);
    found
}

fn check(text: &str, node: &Spanned<Node>, path: &str, found: &mut Vec<Problem>) {
    match &node.value {
        Node::Map(fields) => {
            for (key, value) in fields {
                let path = if path.is_empty() { key.value.clone() } else { format!("{path}.{}", key.value) };
                warn(text, key.defined, &Value::from(key.value.as_str()), &path, "the key ", found);
                check(text, value, &path, found);
            }
        }
        Node::List(items) => {
            for (n, item) in items.iter().enumerate() {
                check(text, item, &format!("{path}[{n}]"), found);
            }
        }
        Node::Scalar(value) => warn(text, node.defined, value, path, "", found),
    }
}

fn warn(text: &str, at: Location, value: &Value, path: &str, what: &str, found: &mut Vec<Problem>) {
    let Some(plain) = plain(text, at) else { return };
    let reading = read(plain);
    let is_same = match (&reading, value) {
        (Reading::Text, Value::String(_)) => true,
        (Reading::Boolean(one), Value::Bool(other)) => one == other,
        (Reading::Null, Value::Null) => true,
        (Reading::Number(one), Value::Number(other)) => other.as_f64() == Some(*one),
        // Names of fields are strings for kubectl too, and a number becomes one in its own form.
        (Reading::Number(number), Value::String(text)) if !what.is_empty() => *text == number.to_string(),
        _ => false,
    };
    if is_same {
        return;
    }
    let reads = match reading {
        Reading::Text => "a string".to_owned(),
        Reading::Boolean(value) => format!("the boolean {value}"),
        Reading::Null => "null".to_owned(),
        Reading::Number(number) => format!("the number {number}"),
    };
    let advice = match value {
        Value::Number(number) => format!("write {number}, or put it in quotes if it is a text"),
        _ => "put it in quotes".to_owned(),
    };
    found.push(Problem::new(
        at.line(),
        path,
        format!("kubectl reads {what}{plain} without quotes as {reads}: {advice}"),
    ));
}

/// Returns a value as the file has it, if it has neither quotes nor a tag, and is no block.
fn plain(text: &str, at: Location) -> Option<&str> {
    let begin = usize::try_from(at.span().byte_offset()?).ok()?;
    let end = begin.checked_add(usize::try_from(at.span().byte_len()?).ok()?)?;
    let plain = text.get(begin..end)?.trim();
    let before = text.get(..begin)?.trim_end_matches([' ', '\t']);
    let is_tagged = last_word(before).starts_with('!');
    // A block begins on the line after `|` or `>`, with their options and perhaps a comment.
    let header =
        before.strip_suffix('\n').map(|lines| lines.trim_end().rsplit('\n').next().unwrap_or_default());
    let header = header.map(|line| last_word(line.split(" #").next().unwrap_or_default().trim_end()));
    let is_block = header.is_some_and(|header| {
        header.starts_with(['|', '>'])
            && header[1..].chars().all(|c| c.is_ascii_digit() || c == '-' || c == '+')
    });
    // `&`: an anchor may stand before quotes.
    (!plain.is_empty() && !plain.starts_with(['"', '\'', '|', '>', '!', '&', '*']) && !is_tagged && !is_block)
        .then_some(plain)
}

fn last_word(text: &str) -> &str {
    text.rsplit([' ', '\t', '\n', '[', '{', ',']).next().unwrap_or_default()
}

/// Reads a value without quotes as kubectl does. Times stay texts.
fn read(plain: &str) -> Reading {
    match plain {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Reading::Boolean(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Reading::Boolean(false);
        }
        "~" | "null" | "Null" | "NULL" => return Reading::Null,
        // kubectl refuses these, which JSON lacks.
        ".nan" | ".NaN" | ".NAN" => return Reading::Number(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Reading::Number(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Reading::Number(f64::NEG_INFINITY),
        _ => {}
    }
    if !plain.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '.' | '+' | '-')) {
        return Reading::Text;
    }
    // Underscores count for nothing in numbers, unless they begin with a dot.
    let digits = if plain.starts_with('.') { plain.to_owned() } else { plain.replace('_', "") };
    integer(&digits).or_else(|| float(&digits)).map_or(Reading::Text, Reading::Number)
}

/// Reads an integer as Go's `strconv.ParseInt` with base 0.
fn integer(text: &str) -> Option<f64> {
    let (sign, rest) = match text.as_bytes().first()? {
        b'-' => (-1.0, &text[1..]),
        b'+' => (1.0, &text[1..]),
        _ => (1.0, text),
    };
    let lower = rest.to_ascii_lowercase();
    let (digits, radix) = match lower.as_bytes() {
        [b'0', b'x', ..] => (&rest[2..], 16),
        [b'0', b'o', ..] => (&rest[2..], 8),
        [b'0', b'b', ..] => (&rest[2..], 2),
        [b'0', _, ..] => (&rest[1..], 8),
        _ => (rest, 10),
    };
    let is_digits = digits.chars().all(|c| c.is_digit(radix));
    // Rust would take a second sign.
    let number = u64::from_str_radix(digits, radix).ok().filter(|_| is_digits)?;
    Some(sign * number as f64)
}

/// Reads a float: `^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`.
fn float(text: &str) -> Option<f64> {
    // Rust also takes the words `inf` and `nan`.
    let is_float = text.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-'));
    text.parse().ok().filter(|_| is_float)
}

#[cfg(test)]
mod tests {
    use super::super::yaml::objects;
    use super::*;

    #[test]
    fn only_values_without_quotes_are_warned_of() {
        let text = "a: no\nb: 'no'\nc: |\n  no\nd: >- # folded\n\n  010\n  no\ne: |2+\n   on\nf: two\n  lines\ng:\n  off\nh: [y, \"n\"]\n";
        let found =
            objects(text).unwrap().iter().flat_map(|object| check_plain(text, object)).collect::<Vec<_>>();
        let found: Vec<_> = found.iter().map(|problem| (problem.line, &*problem.path)).collect();
        assert_eq!(found, [(1, "a"), (14, "g"), (15, "h[0]")]);
    }

    #[test]
    fn words_and_numbers_are_read_as_in_resolve_go() {
        for (plain, expected) in [
            ("no", Reading::Boolean(false)),
            ("On", Reading::Boolean(true)),
            ("nO", Reading::Text),
            ("Null", Reading::Null),
            ("010", Reading::Number(8.0)),
            ("0o10", Reading::Number(8.0)),
            ("-0x1F", Reading::Number(-31.0)),
            ("0b11", Reading::Number(3.0)),
            ("1_000", Reading::Number(1_000.0)),
            ("1e3", Reading::Number(1_000.0)),
            // No octal digits, so a float.
            ("09", Reading::Number(9.0)),
            (".5", Reading::Number(0.5)),
            ("5.", Reading::Number(5.0)),
            ("1:30", Reading::Text),
            ("+-1", Reading::Text),
            ("-inf", Reading::Text),
            ("10.0.0.0", Reading::Text),
            ("2026-11-23", Reading::Text),
            ("", Reading::Text),
        ] {
            assert_eq!(read(plain), expected, "{plain}");
        }
    }
}
