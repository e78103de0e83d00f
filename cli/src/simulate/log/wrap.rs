//! Wrappers: what container runtimes, `kubectl logs`, stern, compose, syslog and journald write around a line.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

use super::json;
use super::reason::Reason;

/// A wrapper around each line of a file. No part of it is chosen by clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrapper {
    /// Files of containerd and CRI-O: `TIME stdout F LINE`.
    Cri,
    /// Objects whose field `log`, `message` or `MESSAGE` is the line: files of Docker, `stern -o json`, `journalctl -o json`, Fluent Bit.
    Json,
    /// `kubectl logs --timestamps` and `docker logs --timestamps`: `TIME LINE`.
    Time,
    /// `kubectl logs --prefix`: `[pod/NAME/CONTAINER] LINE`.
    Prefix,
    /// stern: `POD CONTAINER LINE`.
    Stern,
    /// stern with `--all-namespaces`: `NAMESPACE POD CONTAINER LINE`.
    SternNamespaces,
    /// `docker compose logs`: `NAME  | LINE`.
    Compose,
    /// Syslog of RFC 3164 as rsyslog and journald write it, with either form of the time: `TIME HOST PROGRAM[PID]: LINE`.
    Syslog,
    /// Syslog of RFC 5424: `<PRI>1 TIME HOST PROGRAM PID MSGID DATA LINE`.
    Syslog5424,
}

/// All wrappers.
pub(super) const WRAPPERS: [Wrapper; 9] = [
    Wrapper::Cri,
    Wrapper::Json,
    Wrapper::Time,
    Wrapper::Prefix,
    Wrapper::Stern,
    Wrapper::SternNamespaces,
    Wrapper::Compose,
    Wrapper::Syslog,
    Wrapper::Syslog5424,
];

/// Prefixes, as regular expressions that match to the first byte of the line inside. Colors of terminals may be in between.
struct Prefixes {
    cri: Regex,
    time: Regex,
    prefix: Regex,
    stern: Regex,
    stern_namespaces: Regex,
    compose: Regex,
    syslog: Regex,
    syslog_5424: Regex,
}

static PREFIXES: LazyLock<Option<Prefixes>> = LazyLock::new(|| {
    let time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)";
    let color = r"(?:\x1b\[[0-9;]*m)*";
    // A name of Kubernetes: RFC 1123.
    let name = format!("{color}[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?{color}");
    let new = |text: &str| Regex::new(text).ok();
    Some(Prefixes {
        cri: new(&format!("^{time} (?:stdout|stderr) ([FP])(?::[A-Z:]+)? "))?,
        time: new(&format!("^{time} "))?,
        prefix: new(&format!(r"^{color}\[pod/[^\]/\s]+/[^\]/\s]+\]{color} "))?,
        stern: new(&format!("^{name} {name} "))?,
        stern_namespaces: new(&format!("^{name} {name} {name} "))?,
        compose: new(&format!(r"^{color}[A-Za-z0-9][\w.-]* *{color} *\|{color} {color}"))?,
        syslog: new(&format!(
            r"^(?:<\d{{1,3}}>)?(?:[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|{time}) [\w.:-]+ [\w./@-]+(?:\[\d+\])?: "
        ))?,
        syslog_5424: new(&format!(
            r#"^<\d{{1,3}}>1 (?:{time}|-) \S+ \S+ \S+ \S+ (?:-|(?:\[[^\]"]*(?:"(?:[^"\\]|\\.)*"[^\]"]*)*\])+) (?:\x{{feff}})?"#
        ))?,
    })
});

impl Wrapper {
    /// Returns the line inside.
    fn unwrap(self, line: &str) -> Result<Cow<'_, str>, Reason> {
        let prefixes = PREFIXES.as_ref().ok_or(Reason::Wrapped)?;
        let regex = match self {
            Self::Cri => {
                let found = prefixes.cri.captures(line).ok_or(Reason::Wrapped)?;
                if found.get(1).is_some_and(|tag| tag.as_str() == "P") {
                    return Err(Reason::Piece);
                }
                return Ok(Cow::Borrowed(found.get(0).map_or("", |prefix| &line[prefix.end()..])));
            }
            Self::Json => return json::wrapped(line).map(Cow::Owned).ok_or(Reason::Wrapped),
            Self::Time => &prefixes.time,
            Self::Prefix => &prefixes.prefix,
            Self::Stern => &prefixes.stern,
            Self::SternNamespaces => &prefixes.stern_namespaces,
            Self::Compose => &prefixes.compose,
            Self::Syslog => &prefixes.syslog,
            Self::Syslog5424 => &prefixes.syslog_5424,
        };
        let found = regex.find(line).ok_or(Reason::Wrapped)?;
        Ok(Cow::Borrowed(&line[found.end()..]))
    }
}

/// Removes wrappers, the outer one first.
pub(super) fn unwrap<'a>(line: &'a str, wrappers: &[Wrapper]) -> Result<Cow<'a, str>, Reason> {
    let [first, rest @ ..] = wrappers else { return Ok(Cow::Borrowed(line)) };
    match first.unwrap(line)? {
        Cow::Borrowed(inner) => unwrap(inner, rest),
        Cow::Owned(inner) => unwrap(inner.trim_end(), rest).map(|line| Cow::Owned(line.into_owned())),
    }
}
