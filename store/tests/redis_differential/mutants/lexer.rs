//! The tokens of a Lua script.

use std::ops::Range;

/// The kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A name or a keyword.
    Word,
    Number,
    String,
    Operator,
}

/// A token and its place in the source.
#[derive(Debug, Clone)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind,
    pub(crate) text: &'a str,
    pub(crate) place: Range<usize>,
    /// Whether it is the first of its line.
    pub(crate) begins_line: bool,
}

/// Splits a script into tokens, without its comments. Long brackets and escaped quotes are not supported.
pub(crate) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut tokens = vec![];
    let (mut at, mut begins_line) = (0, true);
    while let Some(first) = source[at..].chars().next() {
        let rest = &source[at..];
        let length_while = |matches: fn(char) -> bool| rest.find(|c| !matches(c)).unwrap_or(rest.len());
        if first.is_whitespace() || rest.starts_with("--") {
            begins_line |= first == '\n';
            at += if first == '-' { rest.find('\n').unwrap_or(rest.len()) } else { first.len_utf8() };
            continue;
        }
        let (kind, length) = match first {
            'a'..='z' | 'A'..='Z' | '_' => {
                (Kind::Word, length_while(|c| c.is_ascii_alphanumeric() || c == '_'))
            }
            '0'..='9' => (Kind::Number, length_while(|c| c.is_ascii_digit() || c == '.')),
            '\'' | '"' => (Kind::String, 2 + rest[1..].find(first).expect("the string ends")),
            _ => {
                let operators = ["...", "..", "==", "~=", "<=", ">="];
                let long = operators.iter().find(|&&operator| rest.starts_with(operator));
                (Kind::Operator, long.map_or(first.len_utf8(), |operator| operator.len()))
            }
        };
        tokens.push(Token { kind, text: &rest[..length], place: at..at + length, begins_line });
        begins_line = false;
        at += length;
    }
    tokens
}
