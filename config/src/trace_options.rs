//! Where sidecars send spans, and of how many requests.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use http::Uri;

/// Path of OTLP over HTTP, for traces.
const PATH: &str = "/v1/traces";

/// URL of an OpenTelemetry collector: `http://HOST:PORT`. Like the variables of OpenTelemetry it may have a path, to which
/// `/v1/traces` is added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectorUrl(String);

impl CollectorUrl {
    /// Returns the URL that spans are posted to.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Display for CollectorUrl {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that is not the URL of a collector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCollectorUrl {
    /// Nothing is encrypted on the way.
    #[error(
        "{0:?}: sidecars send spans over http only: use a collector on the node or in the cluster, which may send them on by TLS"
    )]
    Tls(String),
    /// Everybody who can read the pod would know it.
    #[error("a collector's URL must not contain a user or a password")]
    Password,
    /// Another form.
    #[error("{0:?} is not of the form http://HOST:PORT, such as http://otel-collector.observability:4318")]
    Form(String),
}

impl FromStr for CollectorUrl {
    type Err = InvalidCollectorUrl;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || InvalidCollectorUrl::Form(text.to_owned());
        if text.contains('@') {
            return Err(InvalidCollectorUrl::Password);
        }
        let uri: Uri = text.parse().map_err(|_| form())?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(InvalidCollectorUrl::Tls(text.to_owned())),
            _ => return Err(form()),
        }
        let authority = uri.authority().filter(|authority| !authority.host().is_empty()).ok_or_else(form)?;
        let has_port = authority.as_str() != authority.host();
        if has_port && authority.port_u16().is_none() {
            return Err(form());
        }
        if uri.query().is_some() || text.contains('#') || text.contains(char::is_whitespace) {
            return Err(form());
        }
        let base = uri.path().trim_end_matches('/');
        let base = base.strip_suffix(PATH).unwrap_or(base);
        Ok(Self(format!("http://{authority}{base}{PATH}")))
    }
}

/// The part of requests without a trace that begin one: from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SampleRatio(f64);

impl SampleRatio {
    /// Returns the part.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }
}

impl Display for SampleRatio {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for SampleRatio {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let ratio: Option<f64> = text.parse().ok();
        let ratio = ratio.filter(|ratio| (0.0..=1.0).contains(ratio));
        ratio.map(Self).ok_or_else(|| format!("{text:?} is not a number from 0 to 1"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_has_a_host_and_receives_spans_at_the_path_of_otlp() {
        let url = |text: &str| text.parse::<CollectorUrl>().map(|url| url.to_string());
        for (text, expected) in [
            ("http://otel:4318", "http://otel:4318/v1/traces"),
            ("http://otel.observability.svc/", "http://otel.observability.svc/v1/traces"),
            ("http://[::1]:4318/v1/traces", "http://[::1]:4318/v1/traces"),
            ("http://a:1/otlp/v1/traces", "http://a:1/otlp/v1/traces"),
            ("http://a:1/otlp/", "http://a:1/otlp/v1/traces"),
        ] {
            assert_eq!(url(text).as_deref(), Ok(expected));
        }
        assert_eq!(url("https://otel:4318"), Err(InvalidCollectorUrl::Tls("https://otel:4318".into())));
        assert_eq!(url("http://user:secret@otel:4318"), Err(InvalidCollectorUrl::Password));
        for wrong in
            ["", "otel:4318", "http://", "grpc://a:4317", "http://a:99999999", "http://a/?b=c", "http://a b"]
        {
            assert_eq!(url(wrong), Err(InvalidCollectorUrl::Form(wrong.into())));
        }
    }

    #[test]
    fn a_ratio_is_a_number_from_0_to_1() {
        for (text, expected) in [("0", 0.0), ("1", 1.0), ("0.05", 0.05), ("1e-3", 0.001)] {
            assert_eq!(text.parse(), Ok(SampleRatio(expected)));
        }
        for wrong in ["", "-0.1", "1.1", "NaN", "inf", "5%"] {
            assert!(wrong.parse::<SampleRatio>().is_err(), "{wrong}");
        }
    }
}
