//! Finds a number in JSON that passes in parts, in constant memory. Several values may follow one another, as in a stream of
//! lines or events; the last number counts. The text is not validated: what is no JSON has no number, or any.

use std::sync::Arc;

use memchr::memchr2;
use sluice_limiter::MAX_COUNT;

/// Longest text of a number.
const MAX_NUMBER: usize = 32;

/// The names of the fields that lead to the number, from the outside in. At least one.
pub(super) type Path = Arc<[Box<[u8]>]>;

/// Reads JSON.
#[derive(Debug)]
pub(super) struct JsonField {
    path: Path,
    /// The number, once there is one.
    found: Option<u64>,
    state: State,
    /// Number of objects and lists that are open.
    depth: u64,
    /// Number of objects, from the outside in, that lie on the path.
    on_path: u64,
    /// Whether the last string is the next name on the path.
    is_name: bool,
    /// Whether the next value is that of the next name on the path.
    is_value: bool,
    number: [u8; MAX_NUMBER],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Outside,
    /// In a string, of which this many bytes are those of the next name on the path; `None` if it is another.
    String(Option<usize>),
    /// After a backslash in a string.
    Escape,
    /// In the number, of which this many bytes are kept.
    Number(usize),
}

impl JsonField {
    pub(super) fn new(path: Path) -> Self {
        Self {
            path,
            found: None,
            state: State::Outside,
            depth: 0,
            on_path: 0,
            is_name: false,
            is_value: false,
            number: [0; MAX_NUMBER],
        }
    }

    /// Returns the last number that has ended.
    pub(super) fn found(&self) -> Option<u64> {
        self.found
    }

    /// Reads on.
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            bytes = rest;
            match self.state {
                State::String(matched) => match byte {
                    b'"' => {
                        self.is_name = matched.is_some() && matched == self.next_name().map(<[u8]>::len);
                        self.state = State::Outside;
                    }
                    b'\\' => self.state = State::Escape,
                    _ => {
                        let next = matched
                            .filter(|&at| self.next_name().and_then(|name| name.get(at)) == Some(&byte));
                        self.state = State::String(next.map(|at| at + 1));
                        if next.is_none() {
                            bytes = &bytes[memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len())..];
                        }
                    }
                },
                // No field that servers use has a name with escapes.
                State::Escape => self.state = State::String(None),
                State::Number(len) => match byte {
                    b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-' => {
                        if let Some(at) = self.number.get_mut(len) {
                            *at = byte;
                        }
                        self.state = State::Number(len + 1);
                    }
                    _ => {
                        self.end_number(len);
                        self.outside(byte);
                    }
                },
                State::Outside => self.outside(byte),
            }
        }
    }

    /// Ends the text, and so a number that nothing follows. The next text begins anew.
    pub(super) fn end(&mut self) {
        if let State::Number(len) = self.state {
            self.end_number(len);
        }
        self.state = State::Outside;
        (self.depth, self.on_path, self.is_name, self.is_value) = (0, 0, false, false);
    }

    fn outside(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.is_value = false;
                self.state = State::String(self.next_name().map(|_| 0));
            }
            b':' => self.is_value = std::mem::take(&mut self.is_name),
            // The objects of a list at the top follow one another like those of a stream.
            b'[' | b']' if self.depth == 0 => {}
            b'{' | b'[' => {
                let is_on_path = if self.depth == 0 {
                    byte == b'{'
                } else {
                    byte == b'{' && self.is_value && self.on_path < self.path.len() as u64
                };
                self.depth = self.depth.saturating_add(1);
                if is_on_path {
                    self.on_path = self.depth;
                }
                (self.is_name, self.is_value) = (false, false);
            }
            b'}' | b']' => {
                if self.on_path == self.depth {
                    self.on_path = self.on_path.saturating_sub(1);
                }
                self.depth = self.depth.saturating_sub(1);
                (self.is_name, self.is_value) = (false, false);
            }
            b'-' | b'0'..=b'9' if self.is_value && self.on_path == self.path.len() as u64 => {
                self.is_value = false;
                self.number[0] = byte;
                self.state = State::Number(1);
            }
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => (self.is_name, self.is_value) = (false, false),
        }
    }

    /// Returns the next name on the path, if the innermost open object lies on it.
    fn next_name(&self) -> Option<&[u8]> {
        let at = usize::try_from(self.on_path.checked_sub(1)?).ok()?;
        if self.on_path == self.depth { self.path.get(at).map(|name| &**name) } else { None }
    }

    fn end_number(&mut self, len: usize) {
        self.state = State::Outside;
        let text = self.number.get(..len).and_then(|number| std::str::from_utf8(number).ok());
        // A part of a request counts as a whole one.
        let number = text.and_then(|text| text.parse::<f64>().ok()).filter(|number| *number >= 0.0);
        if let Some(number) = number {
            self.found = Some(number.ceil().min(MAX_COUNT as f64) as u64);
        }
    }
}

/// Passes on the data of server-sent events.
#[derive(Debug, Default)]
pub(super) struct EventData {
    line: Line,
    /// Whether the line before ended with a carriage return, which a line feed may follow.
    after_return: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// At the beginning of a line.
    #[default]
    Start,
    /// This many bytes of `data:` have been read.
    Name(usize),
    Data,
    Other,
}

impl EventData {
    /// Reads on. An event ends with an empty line.
    pub(super) fn read(&mut self, mut bytes: &[u8], json: &mut JsonField) {
        const NAME: &[u8] = b"data:";
        while let Some(&byte) = bytes.first() {
            if std::mem::take(&mut self.after_return) && byte == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let is_end = matches!(byte, b'\r' | b'\n');
            self.line = match self.line {
                Line::Start if is_end => {
                    json.end();
                    Line::Start
                }
                Line::Data | Line::Other if !is_end => {
                    let line = &bytes[..memchr2(b'\r', b'\n', bytes).unwrap_or(bytes.len())];
                    if self.line == Line::Data {
                        json.read(line);
                    }
                    bytes = &bytes[line.len()..];
                    continue;
                }
                _ if is_end => {
                    json.read(b"\n");
                    Line::Start
                }
                Line::Start if byte == NAME[0] => Line::Name(1),
                Line::Name(n) if byte == NAME[n] && n + 1 == NAME.len() => Line::Data,
                Line::Name(n) if byte == NAME[n] => Line::Name(n + 1),
                Line::Start | Line::Name(_) | Line::Data | Line::Other => Line::Other,
            };
            self.after_return = byte == b'\r';
            bytes = &bytes[1..];
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn path(text: &str) -> Path {
        text.split('.').map(|name| name.as_bytes().to_vec().into_boxed_slice()).collect()
    }

    fn find(at: &str, parts: &[&[u8]]) -> Option<u64> {
        let mut field = JsonField::new(path(at));
        parts.iter().for_each(|part| field.read(part));
        field.end();
        field.found()
    }

    fn find_in_events(at: &str, parts: &[&[u8]]) -> Option<u64> {
        let (mut field, mut events) = (JsonField::new(path(at)), EventData::default());
        parts.iter().for_each(|part| events.read(part, &mut field));
        field.end();
        field.found()
    }

    #[test]
    fn a_field_is_found_wherever_the_text_is_divided() {
        let text = br#"{"usage_":{"total":1},"x":{"usage":{"total":2}},"l":[{"usage":{"total":3}},"usage"],"usage" : {
            "detail":{"total":4},"total_":5,"\"total":6,"text":"\"total\":7","total" :42.2, "after":null},"total":8}"#;
        for at in 0..text.len() {
            let (before, after) = text.split_at(at);
            assert_eq!(find("usage.total", &[before, after]), Some(43), "at {at}");
        }
        let bytes: Vec<_> = text.chunks(1).collect();
        assert_eq!(find("usage.total", &bytes), Some(43));
        assert_eq!(find("total", &[text]), Some(8));
        assert_eq!(find("usage.detail.total", &[text]), Some(4));
        assert_eq!(find("usage.missing", &[text]), None);
    }

    #[test]
    fn only_a_number_that_is_not_negative_counts() {
        let value = |text: &str| find("n", &[format!("{{\"n\":{text}}}").as_bytes()]);
        for (text, expected) in [
            ("0", Some(0)),
            ("1e3", Some(1000)),
            ("0.1", Some(1)),
            ("1099511627777", Some(MAX_COUNT)),
            ("1e300", Some(MAX_COUNT)),
            ("-1", None),
            ("\"5\"", None),
            ("null", None),
            ("[5]", None),
            ("{\"n\":5}", None),
            ("true", None),
            ("1.2.3", None),
            ("111111111111111111111111111111111", None),
        ] {
            assert_eq!(value(text), expected, "{text}");
        }
        assert_eq!(find("n", &[b"{\"n\":12"]), Some(12), "a body that ends early");
        assert_eq!(
            find("n", &[b"[{\"n\":1},\n{\"n\":2},{\"m\":[{\"n\":3}]}]"]),
            Some(2),
            "a list is a stream"
        );
    }

    #[test]
    fn of_several_values_the_last_number_counts() {
        assert_eq!(find("n", &[b"{\"n\":1}\n{\"n\":2}\n{\"n\":null}\n{\"m\":3}\n"]), Some(2));
        let stream = b"event: x\ndata: {\"n\":1}\n\n: {\"n\":2}\n\ndatum: {\"n\":3}\r\n\r\ndata:{\"a\":\rdata: 4,\"n\":\r\ndata: 5}\n\n\
            data: {\"n\":null}\n\ndata: [DONE]\n\n";
        for at in 0..stream.len() {
            let (before, after) = stream.split_at(at);
            assert_eq!(find_in_events("n", &[before, after]), Some(5), "at {at}");
        }
        assert_eq!(
            find_in_events("n", &[b"data: {\"n\":\n\ndata: 3}\n\n"]),
            None,
            "each event is a text of its own"
        );
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0u64..1 << 41).prop_map(Value::from),
            (-100.0..1e6f64).prop_map(Value::from),
            r#"[a-c"\\{}\[\]:,é ]{0,4}"#.prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map(r#"[a-c"\\]{1,2}"#, inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// Returns the values of lists at the top.
    fn roots(value: &Value) -> Vec<&Value> {
        value.as_array().map_or_else(|| vec![value], |list| list.iter().flat_map(roots).collect())
    }

    proptest! {
        /// Compares with a parser that reads the whole text.
        #[test]
        fn it_finds_what_a_parser_finds(value in values(), pretty: bool, at in "[a-c](\\.[a-c]){0,2}", size in 1usize..9) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let text = text.unwrap();
            let parts: Vec<_> = text.as_bytes().chunks(size).collect();
            let parsed = roots(&value).into_iter().rev().find_map(|object| {
                let mut names = at.split('.');
                let found = names.try_fold(object, |value, name| value.as_object()?.get(name));
                found.filter(|found| found.as_f64().is_some_and(|number| number >= 0.0))
            });
            let expected = parsed.and_then(Value::as_f64).filter(|number| *number >= 0.0);
            let expected = expected.map(|number| number.ceil().min(MAX_COUNT as f64) as u64);
            prop_assert_eq!(find(&at, &parts), expected, "{} in {}", at, json!(text));
        }
    }
}
