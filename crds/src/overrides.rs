//! Builds the tables of overrides from the lines of Secrets and ConfigMaps: `acme: large`, `sha256:9f86...: unlimited`,
//! `mallory: deny until 2026-12-01T00:00:00Z`. Errors name the line and quote nothing of it, because it may be secret.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use jiff::Timestamp;
use sluice_config::Nack;
use sluice_config::client_address::canonical_network;
use sluice_config::key::{ClientNaming, KeySource};
use sluice_config::overrides::{
    ClientDigest, DENY, MAX_ENTRIES, Override, OverrideTable, UNLIMITED, client_digest,
};
use sluice_config::policy::{BlobHash, CompiledPolicy, LimitKind};

use crate::policy::{ContentRef, OverrideSources};

#[cfg(test)]
mod tests;

/// Number of problems after which the others are left out.
const MAX_PROBLEMS: usize = 3;

/// A line that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidLine {
    /// The content that has the line.
    pub source: ContentRef,
    /// Number of the line, from 1.
    pub line: usize,
    /// The problem, as a sentence that begins with its predicate.
    pub problem: String,
}

impl fmt::Display for InvalidLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} in {} {}", self.line, self.source, self.problem)
    }
}

impl OverrideSources {
    /// Builds the table of the limit from the content of its sources, in their order.
    pub fn build(&self, policy: &CompiledPolicy, content: &[&[u8]]) -> Result<Vec<u8>, Vec<InvalidLine>> {
        let limit = policy.limits.get(self.limit);
        let plans = limit.map(|limit| match &limit.kind {
            LimitKind::Rates(rates) => rates.plans.as_slice(),
            LimitKind::Slots(_) | LimitKind::Adaptive(_) => &[],
        });
        let plans: Vec<_> = plans.into_iter().flatten().map(|plan| plan.name.as_str()).collect();
        let part = limit.and_then(|limit| limit.key.first()).map(|part| &part.source);
        build(&[plans, vec![DENY, UNLIMITED]].concat(), part, &self.sources, content)
    }

    /// Has the limit use the table with this hash.
    pub fn set(&self, policy: &mut CompiledPolicy, table: BlobHash) {
        if let Some(LimitKind::Rates(rates)) = policy.limits.get_mut(self.limit).map(|limit| &mut limit.kind)
        {
            rates.overrides = Some(table);
        }
    }
}

/// An override and where it stands: the index of the source, and the number of the line.
type Located = (Override, usize, usize);

/// Builds a table of the clients that `part`, the first part of the key, tells apart.
fn build(
    plans: &[&str],
    part: Option<&KeySource>,
    sources: &[ContentRef],
    content: &[&[u8]],
) -> Result<Vec<u8>, Vec<InvalidLine>> {
    // Admission has refused a key that is not valid.
    let part = part.map(NamedPart::new).transpose().map_err(|_| Vec::new())?;
    let (mut overrides, mut problems) = (Vec::<Located>::new(), Vec::new());
    let mut add_problem = |source: usize, line, problem| {
        problems.push(InvalidLine { source: sources[source].clone(), line, problem });
        problems.len() < MAX_PROBLEMS
    };
    'sources: for (source, text) in content.iter().enumerate().take(sources.len()) {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
            match parse(line, plans, part.as_ref()) {
                Ok(None) => {}
                Ok(Some(_)) if overrides.len() == MAX_ENTRIES => {
                    let problem =
                        format!("is one too many: a limit may have at most {MAX_ENTRIES} overrides");
                    add_problem(source, index + 1, problem);
                    break 'sources;
                }
                Ok(Some(found)) => overrides.push((found, source, index + 1)),
                Err(problem) => {
                    if !add_problem(source, index + 1, problem) {
                        break 'sources;
                    }
                }
            }
        }
    }
    overrides.sort_unstable_by_key(|(found, source, line)| (found.client, *source, *line));
    for pair in overrides.windows(2) {
        let [(first, first_source, first_line), (second, source, line)] = pair else { continue };
        if first.client == second.client {
            let place = InvalidLine {
                source: sources[*first_source].clone(),
                line: *first_line,
                problem: "does: keep one of them".to_owned(),
            };
            if !add_problem(*source, *line, format!("names the same client as {place}")) {
                break;
            }
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let overrides = overrides.into_iter().map(|(found, _, _)| found).collect();
    // The schema bounds the number of plans and their names.
    OverrideTable::encode(plans.iter().copied(), overrides).map_err(|_| Vec::new())
}

/// Parses a line, which may be empty or a comment.
fn parse(line: &[u8], plans: &[&str], part: Option<&NamedPart<'_>>) -> Result<Option<Override>, String> {
    let line = line.trim_ascii();
    if line.is_empty() || line.starts_with(b"#") {
        return Ok(None);
    }
    // A client may contain colons. What follows contains none before a space.
    let colon = line.windows(2).rposition(|pair| pair[0] == b':' && pair[1].is_ascii_whitespace());
    let colon = colon.ok_or("has no plan: write `CLIENT: PLAN`, with a space after the colon")?;
    let (client, rest) = (line[..colon].trim_ascii(), line[colon + 1..].trim_ascii());
    let rest = std::str::from_utf8(rest).unwrap_or_default();
    let words: Vec<_> = rest.split_ascii_whitespace().collect();
    let (plan, until) = match words[..] {
        [plan] => (plan, 0),
        [plan, "until", time] => (plan, parse_time(time)?),
        _ => return Err("is not of the form `CLIENT: PLAN` or `CLIENT: PLAN until TIME`; a comment needs a line of its own".to_owned()),
    };
    let plan = plans.iter().position(|name| *name == plan).and_then(|index| u8::try_from(index).ok());
    let plan = plan.ok_or_else(|| {
        format!("names a plan that the limit does not have: its plans are {}", plans.join(", "))
    })?;
    Ok(Some(Override { client: parse_client(client, part)?, plan, until }))
}

fn parse_client(client: &[u8], part: Option<&NamedPart<'_>>) -> Result<ClientDigest, String> {
    match client {
        [] => Err("names no client: write `CLIENT: PLAN`".to_owned()),
        [b'"' | b'\'', ..] => {
            Err("has a client in quotation marks: write it as it is, or as `sha256:` and its SHA-256"
                .to_owned())
        }
        [b'-', b' ', ..] => Err("begins with `- `: write `CLIENT: PLAN` without it".to_owned()),
        [b's' | b'S', b'h' | b'H', b'a' | b'A', b'2', b'5', b'6', b':', digits @ ..] => {
            let digits = std::str::from_utf8(digits)
                .ok()
                .filter(|digits| digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
            let digits = digits.ok_or("has no SHA-256 after `sha256:`: write it in 64 hexadecimal digits")?;
            Ok(std::array::from_fn(|n| u8::from_str_radix(&digits[2 * n..2 * n + 2], 16).unwrap_or_default()))
        }
        _ => Ok(client_digest(&match part {
            Some(part) => part.written(client)?,
            None => Cow::Borrowed(client),
        })),
    }
}

/// A part of a key, and how its clients are named.
struct NamedPart<'a> {
    part: &'a KeySource,
    naming: ClientNaming,
}

impl<'a> NamedPart<'a> {
    fn new(part: &'a KeySource) -> Result<Self, Nack> {
        Ok(Self { part, naming: ClientNaming::new(part)? })
    }

    /// Returns a client in the form in which requests show it.
    fn written<'c>(&self, client: &'c [u8]) -> Result<Cow<'c, [u8]>, String> {
        if let KeySource::ClientIp { ipv4_prefix, ipv6_prefix } = self.part {
            check_network(client, *ipv4_prefix, *ipv6_prefix)?;
        }
        self.naming
            .name(client)
            .map_err(|unnamed| format!("names no client of the key: {}", unnamed.reason()))
    }
}

/// Checks that a client is an address or a network, and exactly one client.
fn check_network(client: &[u8], ipv4_prefix: u8, ipv6_prefix: u8) -> Result<(), String> {
    let network = std::str::from_utf8(client).ok().and_then(|text| {
        let address = text.parse::<IpAddr>().map(IpNet::from);
        address.or_else(|_| text.parse::<IpNet>()).ok().map(canonical_network)
    });
    let network = network.ok_or("names no address or network: write 192.0.2.1 or 2001:db8::/64")?;
    let prefix = if network.addr().is_ipv4() { ipv4_prefix } else { ipv6_prefix };
    if network.prefix_len() != prefix || network.addr() != network.network() {
        return Err(format!(
            "names other addresses than one client: the key counts each /{prefix} network as one"
        ));
    }
    Ok(())
}

/// Parses the time at which an override ends, in seconds since the Unix epoch.
fn parse_time(text: &str) -> Result<u32, &'static str> {
    let time: Timestamp = text
        .parse()
        .map_err(|_| "has no valid time after `until`: write it with a time zone, as 2026-12-01T00:00:00Z")?;
    let seconds = u32::try_from(time.as_second()).ok().filter(|seconds| *seconds > 0);
    seconds.ok_or("has a time before 1970 or after 2106: leave out `until` for an override without end")
}
