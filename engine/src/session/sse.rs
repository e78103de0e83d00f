//! Parser of server-sent events (WHATWG HTML, 9.2), as far as a session uses them. Lines and events are
//! bounded, so that a faulty operator cannot exhaust the memory of the pod.

/// Maximum length of a line, and of the data of one event, in bytes.
const MAX_LENGTH: usize = 256 << 20;

/// A complete event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Value of the field `event`, or empty.
    pub kind: String,
    /// Values of the fields `data`, joined by line feeds.
    pub data: String,
    /// The last value of the field `id` in this session.
    pub id: Option<String>,
}

/// The reason why a session cannot be parsed further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// A line, or the data of an event, is too long.
    #[error("the session has an event of more than {MAX_LENGTH} bytes")]
    TooLong,
    /// The session is not valid UTF-8.
    #[error("the session is not valid UTF-8")]
    NotUtf8,
}

/// Parses a session whose bytes arrive in pieces of any size.
#[derive(Debug, Default)]
pub struct Parser {
    /// The beginning of a line that has not ended yet.
    line: Vec<u8>,
    /// Whether the last byte was a carriage return. A line feed after it belongs to the same line end.
    after_return: bool,
    kind: String,
    data: Vec<u8>,
    id: Option<String>,
}

impl Parser {
    /// Reads the next bytes, and appends the events that are complete.
    pub fn read(&mut self, mut bytes: &[u8], events: &mut Vec<Event>) -> Result<(), SseError> {
        while let Some(&first) = bytes.first() {
            if std::mem::take(&mut self.after_return) && first == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = memchr::memchr2(b'\r', b'\n', bytes);
            let part = &bytes[..end.unwrap_or(bytes.len())];
            if self.line.len() + part.len() > MAX_LENGTH {
                return Err(SseError::TooLong);
            }
            self.line.extend_from_slice(part);
            let Some(end) = end else { return Ok(()) };
            self.after_return = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.line);
            self.line(&line, events)?;
            self.line = line;
            self.line.clear();
        }
        Ok(())
    }

    fn line(&mut self, line: &[u8], events: &mut Vec<Event>) -> Result<(), SseError> {
        if line.is_empty() {
            return self.dispatch(events);
        }
        let colon = memchr::memchr(b':', line);
        let (field, value) = match colon {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"event" => self.kind = text(value)?,
            b"id" if !value.contains(&0) => self.id = Some(text(value)?),
            b"data" => {
                if self.data.len() + value.len() > MAX_LENGTH {
                    return Err(SseError::TooLong);
                }
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
            }
            // Comments keep the connection alive. Unknown fields are ignored.
            _ => {}
        }
        Ok(())
    }

    fn dispatch(&mut self, events: &mut Vec<Event>) -> Result<(), SseError> {
        let (kind, mut data) = (std::mem::take(&mut self.kind), std::mem::take(&mut self.data));
        if data.pop().is_some() {
            let data = String::from_utf8(data).map_err(|_| SseError::NotUtf8)?;
            events.push(Event { kind, data, id: self.id.clone() });
        }
        Ok(())
    }
}

fn text(value: &[u8]) -> Result<String, SseError> {
    String::from_utf8(value.to_vec()).map_err(|_| SseError::NotUtf8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn events(pieces: &[&[u8]]) -> Result<Vec<Event>, SseError> {
        let (mut parser, mut events) = (Parser::default(), Vec::new());
        for piece in pieces {
            parser.read(piece, &mut events)?;
        }
        Ok(events)
    }

    fn event(kind: &str, data: &str, id: Option<&str>) -> Event {
        Event { kind: kind.into(), data: data.into(), id: id.map(Into::into) }
    }

    #[test]
    fn events_are_parsed_as_the_standard_defines() {
        let text = ": hello\n\nevent: policies\nid: 7\ndata: {\"a\":\ndata:1}\n\nid\n\nnonsense\nevent:credentials\r\n\
            data:  two spaces\r\n\r\ndata\r\revent: cut off\ndata: x\n";
        assert_eq!(
            events(&[text.as_bytes()]).unwrap(),
            [
                event("policies", "{\"a\":\n1}", Some("7")),
                event("credentials", " two spaces", Some("")),
                event("", "", Some("")),
            ]
        );
    }

    #[test]
    fn a_line_or_event_that_is_too_long_is_an_error() {
        let piece = vec![b'x'; MAX_LENGTH / 2 + 1];
        assert_eq!(events(&[b"data:", &piece, &piece]), Err(SseError::TooLong));
        assert_eq!(events(&[b"data:", &piece, b"\ndata:", &piece, b"\n"]), Err(SseError::TooLong));
        assert_eq!(events(&[b"data: \xff\n\n"]), Err(SseError::NotUtf8));
    }

    proptest! {
        /// Bytes may arrive in any pieces, and lines may end in any of the three ways.
        #[test]
        fn events_do_not_depend_on_the_sizes_of_the_pieces(
            wanted in proptest::collection::vec(("[a-z]{1,6}", "[a-z{}: \u{e9}]{1,9}(\n[a-z: ]{1,9})?", "[0-9]{1,3}"), 0..6),
            ends in proptest::sample::select(vec!["\n", "\r", "\r\n"]),
            mut cuts in proptest::collection::vec(0usize..400, 0..12),
        ) {
            let mut text = String::new();
            for (kind, data, id) in &wanted {
                let data = data.replace('\n', &format!("{ends}data: "));
                text += &format!(":{ends}event: {kind}{ends}id: {id}{ends}data: {data}{ends}{ends}");
            }
            cuts.sort_unstable();
            let (mut pieces, mut from) = (Vec::new(), 0);
            for cut in cuts.into_iter().chain([text.len()]) {
                let to = cut.clamp(from, text.len());
                pieces.push(&text.as_bytes()[from..to]);
                from = to;
            }
            let wanted: Vec<_> = wanted.iter().map(|(kind, data, id)| event(kind, data, Some(id))).collect();
            prop_assert_eq!(events(&pieces).unwrap(), wanted);
        }

        #[test]
        fn garbage_never_panics(pieces: Vec<Vec<u8>>) {
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let _ = events(&pieces);
        }
    }
}
