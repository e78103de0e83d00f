//! Texts with placeholders, such as `Try again in ${retryAfter} s.`

use crate::nack::Nack;

/// A placeholder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placeholder {
    /// A sentence about the limit that denies the request, and when to try again.
    Message,
    /// Name of the limit.
    Limit,
    /// Name of the policy.
    Policy,
    /// Namespace of the policy.
    Namespace,
    /// Number of requests that the limit admits per period.
    Requests,
    /// Length of the period in seconds.
    Period,
    /// Number of seconds after which the request would be admitted; 0 if no wait helps.
    RetryAfter,
    /// Time at which the request would be admitted, in the format of the limit; 0 if no wait helps.
    Renewal,
}

impl Placeholder {
    /// All placeholders and their names.
    pub const ALL: [(&str, Self); 8] = [
        ("message", Self::Message),
        ("limit", Self::Limit),
        ("policy", Self::Policy),
        ("namespace", Self::Namespace),
        ("requests", Self::Requests),
        ("period", Self::Period),
        ("retryAfter", Self::RetryAfter),
        ("renewal", Self::Renewal),
    ];
}

/// A part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text that stands for itself.
    Text(String),
    /// A placeholder.
    Value(Placeholder),
}

/// Splits a text at its placeholders, `${name}`. A dollar sign before another character stands for itself.
pub fn parse(text: &str) -> Result<Vec<Piece>, Nack> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        if !before.is_empty() {
            pieces.push(Piece::Text(before.to_owned()));
        }
        let Some((name, behind)) = after.split_once('}') else {
            return Err(Nack("has a placeholder without an end: write ${name}".into()));
        };
        let Some((_, value)) = Placeholder::ALL.iter().find(|(known, _)| *known == name) else {
            let known: Vec<_> = Placeholder::ALL.iter().map(|(name, _)| *name).collect();
            return Err(Nack(format!("has no placeholder {name:?}: there are {}", known.join(", "))));
        };
        pieces.push(Piece::Value(*value));
        rest = behind;
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.to_owned()));
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_split_at_its_placeholders() {
        let text = |text: &str| Piece::Text(text.into());
        let retry = Piece::Value(Placeholder::RetryAfter);
        assert_eq!(parse("").unwrap(), []);
        assert_eq!(parse("{\"a\": $5}").unwrap(), [text("{\"a\": $5}")]);
        assert_eq!(parse("in ${retryAfter} s").unwrap(), [text("in "), retry.clone(), text(" s")]);
        assert_eq!(parse("${limit}${retryAfter}").unwrap(), [Piece::Value(Placeholder::Limit), retry]);
        assert!(parse("${limit").unwrap_err().0.contains("without an end"));
        assert!(parse("${client}").unwrap_err().0.contains("no placeholder \"client\": there are message"));
    }
}
