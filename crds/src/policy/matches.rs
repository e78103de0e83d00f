//! Conditions that select requests.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::matches;
use sluice_config::matches::{is_parameter, template_regex};
use sluice_config::path::normalize;

use crate::checks::field::Field;
use crate::policy::client_address;
use crate::policy::rls::{Place, RlsMatch};

/// The methods of RFC 9110, and PATCH.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// Conditions on a request, all of which must hold. At least one is required.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.rls) || !(has(self.path) || has(self.methods) || has(self.hosts) || has(self.headers) || has(self.query) || has(self.cookies) || has(self.grpc) || has(self.clientCIDRs))").message("rls is about a gateway's question, which has nothing else: use an entry of its own"))]
pub struct Match {
    /// Condition on the path, without the query. In `matches` of a limit, and of a tier with `deny`, every spelling counts
    /// under which an application may understand the path: /v1/pay is also meant by /V1/Pay, /v1/pay/, /v1//pay,
    /// /v1/%70ay, /x/../v1/pay and /v1/pay;a=b. In `except` and in other tiers, the path must match as the client wrote it
    /// and in every other reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathMatch>,
    /// Methods that match, in upper case, such as GET. In `matches` of a limit, and of a tier with `deny`, it includes HEAD,
    /// elsewhere it does not. Default: every method.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 32), regex(pattern = "^[A-Z][A-Z-]*$")))]
    pub methods: Vec<String>,
    /// Hosts that match: names such as shop.example, or *.shop.example for all names below shop.example. They
    /// are compared without port, case and trailing dot. Default: every host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(
            length(min = 1, max = 253),
            regex(pattern = r"^(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$|^\[[0-9A-Fa-f:.]+\]$")
        )
    )]
    pub hosts: Vec<String>,
    /// Conditions on headers, all of which must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub headers: Vec<HeaderMatch>,
    /// Conditions on query parameters, all of which must hold. Names and values are compared after decoding.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub query: Vec<ParameterMatch>,
    /// Conditions on cookies, all of which must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub cookies: Vec<ParameterMatch>,
    /// Condition on the gRPC method. It is a condition on the path, /SERVICE/METHOD, whatever the content type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcMatch>,
    /// Networks of clients in CIDR notation, such as 192.0.2.0/24. `spec.clientAddress` says how the client's address
    /// is found. Default: every client.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(rename = "clientCIDRs", length(max = 64), inner(length(max = 64)))]
    #[serde(rename = "clientCIDRs")]
    pub client_cidrs: Vec<String>,
    /// Condition on a descriptor of a gateway's question to the service, with no other condition beside it. Only in `matches` of a
    /// limit in `limits`. An entry without it is for requests of HTTP, which sidecars see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rls: Option<RlsMatch>,
}

/// A condition on the path: exactly one of exact, prefix, template and regex.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PathMatch {
    /// Pattern of the path.
    #[serde(flatten)]
    pub pattern: PathPattern,
    /// If true, upper and lower case differ. Only for applications that distinguish them: for others, a client
    /// evades the limit by another spelling. Default: false. In `except` they always differ.
    #[serde(default)]
    pub case_sensitive: bool,
}

/// A pattern of paths.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum PathPattern {
    /// The path must equal this text. A slash at the end is ignored.
    Exact(#[schemars(length(min = 1, max = 1024), regex(pattern = "^/"))] String),
    /// The path must begin with these whole segments: /v1 matches /v1 and /v1/x, but not /v10.
    Prefix(#[schemars(length(min = 1, max = 1024), regex(pattern = "^/"))] String),
    /// The path must have these segments. A name in braces stands for one segment that is not empty: /v1/orders/{id}
    /// matches /v1/orders/42, but neither /v1/orders nor /v1/orders/42/items.
    Template(#[schemars(length(min = 1, max = 1024), regex(pattern = "^/"))] String),
    /// The whole path must match this regular expression (RE2 syntax).
    Regex(#[schemars(length(min = 1, max = 1024))] String),
}

/// A condition on a header: its name and exactly one of exact, prefix, regex and present. If the header is repeated,
/// one matching value is enough in `matches`, and all values must match in `except`.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HeaderMatch {
    /// Name of the header, in upper or lower case. Not Host: use `hosts`.
    #[schemars(length(min = 1, max = 128), regex(pattern = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"))]
    pub name: String,
    /// The condition.
    #[serde(flatten)]
    pub value: ValueMatch,
    /// If true, the condition must not hold: the header is absent, or a value of it is another. Default: false.
    #[serde(default)]
    pub not: bool,
}

/// A condition on a query parameter or a cookie: its name and exactly one of exact, prefix, regex and present. If it
/// is repeated, one matching value is enough in `matches`, and all values must match in `except`.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ParameterMatch {
    /// Name of the parameter or cookie. In `matches` a condition holds for other spellings of it too, such as in another case. In
    /// `except` the name must be written so.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// The condition.
    #[serde(flatten)]
    pub value: ValueMatch,
    /// If true, the condition must not hold: there is no value, or one of them is another. Default: false.
    #[serde(default)]
    pub not: bool,
}

/// A gRPC method.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GrpcMatch {
    /// Full name of the service, with its package: shop.Checkout.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[A-Za-z_][A-Za-z0-9_.]*$"))]
    pub service: String,
    /// Name of the method. Default: every method of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 253), regex(pattern = "^[A-Za-z_][A-Za-z0-9_]*$"))]
    pub method: Option<String>,
}

/// A condition on a value.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum ValueMatch {
    /// The value must equal this text.
    Exact(#[schemars(length(max = 1024))] String),
    /// The value must begin with this text.
    Prefix(#[schemars(length(min = 1, max = 1024))] String),
    /// The whole value must match this regular expression (RE2 syntax).
    Regex(#[schemars(length(min = 1, max = 1024))] String),
    /// There must be a value (true) or none (false). An empty header or cookie meets both in `matches`, and neither in `except` and
    /// tiers. A query parameter without a value is there.
    Present(bool),
}

impl Match {
    /// Compiles a match for requests. One for descriptors is refused.
    pub(crate) fn compile(&self, at: &Field<'_>) -> matches::Match {
        self.compile_in(at, Place::Other)
    }

    pub(super) fn compile_in(&self, at: &Field<'_>, place: Place) -> matches::Match {
        let Self { path, methods, hosts, headers, query, cookies, grpc, client_cidrs, rls } = self;
        if *self == Self::default() {
            at.violation(
                "is empty, so it would match every request: set at least one of path, methods, hosts, headers, query, \
                 cookies, grpc, clientCIDRs, rls",
            );
        }
        for (n, method) in
            methods.iter().enumerate().filter(|(_, method)| !METHODS.contains(&method.as_str()))
        {
            let meant = METHODS.iter().find(|known| strsim::osa_distance(known, method) == 1);
            if let Some(meant) = meant {
                at.at("methods")
                    .entry(n)
                    .warning(format_args!("{method} is not a known method: is it {meant}?"));
            }
        }
        if rls.is_some() && place == Place::Other {
            at.at("rls").violation("is only allowed in `matches` of a limit in `limits`, or of one in `concurrency` with `max`: remove it");
        } else if rls.is_some() && *self != (Self { rls: rls.clone(), ..Self::default() }) {
            at.at("rls")
                .violation("is about a gateway's question, which has nothing else: use an entry of its own");
        }
        if path.is_some() && grpc.is_some() {
            at.at("grpc").violation("is a condition on the path, so `path` is not allowed beside it: remove one, or use two entries");
        }
        let headers = headers.iter().enumerate().map(|(n, header)| {
            let at = at.at("headers").entry(n);
            if header.name.eq_ignore_ascii_case("host") {
                at.at("name").violation("cannot be host, which HTTP/2 sends elsewhere: use `hosts` instead");
            }
            matches::NamedMatch {
                name: header.name.clone(),
                value: header.value.compile(&at),
                not: header.not,
            }
        });
        let parameters = |field: &str, parameters: &[ParameterMatch], check: fn(&Field<'_>, &str)| {
            let compiled = parameters.iter().enumerate().map(|(n, parameter)| {
                let ParameterMatch { name, value, not } = parameter;
                let at = at.at(field).entry(n);
                check(&at.at("name"), name);
                matches::NamedMatch { name: name.clone(), value: value.compile(&at), not: *not }
            });
            compiled.collect()
        };
        let network =
            |(n, text): (usize, &String)| client_address::network(&at.at("clientCIDRs").entry(n), text);
        matches::Match {
            path: path
                .as_ref()
                .map(|path| path.compile(&at.at("path")))
                .or_else(|| grpc.as_ref().map(GrpcMatch::compile)),
            methods: methods.clone(),
            hosts: hosts.clone(),
            headers: headers.collect(),
            query: parameters("query", query, check_parameter_name),
            cookies: parameters("cookies", cookies, check_cookie_name),
            client_cidrs: client_cidrs.iter().enumerate().filter_map(network).collect(),
            rls: rls.as_ref().map(|rls| rls.compile(&at.at("rls"))),
        }
    }
}

fn check_parameter_name(at: &Field<'_>, name: &str) {
    let is_encoded = name
        .as_bytes()
        .windows(3)
        .any(|at| at[0] == b'%' && at[1].is_ascii_hexdigit() && at[2].is_ascii_hexdigit());
    if is_encoded {
        at.violation("is compared with decoded names: write it decoded");
    }
}

fn check_cookie_name(at: &Field<'_>, name: &str) {
    if name.contains(|c: char| c.is_whitespace() || matches!(c, ';' | ',' | '=' | '"')) {
        at.violation(
            "is not the name of a cookie: remove white space, quotes, commas, semicolons and equals signs",
        );
    }
}

impl GrpcMatch {
    /// Clients can reach a method by other content types than gRPC's, so only the path counts.
    fn compile(&self) -> matches::PathMatch {
        let pattern = match &self.method {
            Some(method) => matches::PathPattern::Exact(format!("/{}/{method}", self.service)),
            None => matches::PathPattern::Prefix(format!("/{}", self.service)),
        };
        matches::PathMatch { pattern, case_sensitive: false }
    }
}

impl PathMatch {
    fn compile(&self, at: &Field<'_>) -> matches::PathMatch {
        let literal = |name, text: &String| {
            let normal = normalize(text);
            let is_normal = normal == *text || text.strip_suffix('/') == Some(&normal);
            if let Some((path, _)) = text.split_once('?') {
                at.at(name)
                    .violation(format_args!("has a query: write {path:?} here, and parameters in `query`"));
            } else if !is_normal {
                at.at(name).violation(format_args!(
                    "{text:?} is not how paths are compared, which is decoded and without empty or dot \
                     segments: write {normal:?}"
                ));
            }
            normal.into_owned()
        };
        let pattern = match &self.pattern {
            PathPattern::Exact(text) => {
                warn_of_star(&at.at("exact"), text, true);
                matches::PathPattern::Exact(literal("exact", text))
            }
            PathPattern::Prefix(text) => {
                warn_of_star(&at.at("prefix"), text, true);
                matches::PathPattern::Prefix(literal("prefix", text))
            }
            PathPattern::Template(template) => {
                for segment in template.split('/').filter(|segment| segment.contains(['{', '}'])) {
                    if !is_parameter(segment) {
                        at.at("template").violation(format_args!(
                            "{segment:?} is not allowed: write a name of letters, digits and _ in braces, as in \
                             /v1/orders/{{id}}, for a whole segment"
                        ));
                    }
                }
                if !template.contains('{') {
                    at.at("template").violation(
                        "has no segment in braces: write a segment that varies as {id}, or use `exact` for a fixed path",
                    );
                }
                warn_of_star(&at.at("template"), template, true);
                let normal = literal("template", template);
                at.at("template").regex(&template_regex(&normal));
                matches::PathPattern::Template(normal)
            }
            PathPattern::Regex(pattern) => {
                at.at("regex").regex(pattern);
                warn_of_glob(&at.at("regex"), pattern);
                matches::PathPattern::Regex(pattern.clone())
            }
        };
        matches::PathMatch { pattern, case_sensitive: self.case_sensitive }
    }
}

/// Warns of a star, which stands for itself. A media type, such as */*, has one.
fn warn_of_star(at: &Field<'_>, text: &str, is_path: bool) {
    let without = text.replace("*/*", "");
    if without.split_once('*').is_some_and(|(before, _)| is_path || !before.ends_with('/')) {
        let instead = if is_path {
            let stem = text.split(['*', '{']).next().unwrap_or_default().trim_end_matches('/');
            let prefix = if stem.is_empty() { "/" } else { stem };
            format!(
                "`prefix: {prefix}` for all paths below {prefix}, `template: {stem}/{{id}}` for any segment"
            )
        } else {
            "`prefix: abc` for all values that begin so, `present: true` for any value".to_owned()
        };
        at.warning(format_args!(
            "the * in {text:?} stands for itself, not for any text: write {instead}, or a `regex`"
        ));
    }
}

/// Warns of a star in the regular expression of a path that looks as if it stood for any text.
fn warn_of_glob(at: &Field<'_>, pattern: &str) {
    let Some((before, after)) = pattern.split_once('*') else { return };
    let is_plain = !before.contains(['.', '+', '?', '(', '[', '{', '|', '\\', '^', '$', '~']);
    if is_plain && (before.ends_with('/') || after.is_empty()) {
        let instead = match before.strip_suffix('/') {
            Some(stem) if after.is_empty() && !stem.is_empty() => format!("prefix: {stem}, or {before}.*"),
            _ => format!("{before}.*{after}"),
        };
        at.warning(format_args!(
            "* repeats the sign before it, so this matches {before}{after} and not {before}42{after}: write {instead}"
        ));
    }
}

impl ValueMatch {
    fn compile(&self, at: &Field<'_>) -> matches::ValueMatch {
        match self {
            Self::Exact(text) => {
                warn_of_star(&at.at("exact"), text, false);
                matches::ValueMatch::Exact(text.clone())
            }
            Self::Prefix(text) => {
                warn_of_star(&at.at("prefix"), text, false);
                matches::ValueMatch::Prefix(text.clone())
            }
            Self::Regex(pattern) => {
                at.at("regex").regex(pattern);
                matches::ValueMatch::Regex(pattern.clone())
            }
            Self::Present(present) => matches::ValueMatch::Present(*present),
        }
    }
}
