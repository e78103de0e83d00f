//! Conditions as policies have them.

use std::ops::Not;

use serde::{Deserialize, Serialize};

use crate::client_address::network;
use crate::descriptor::Pair;
use crate::path::normalize;
#[cfg(feature = "schema")]
use crate::schema::{HOST, of_headers};

/// Conditions on a request, all of which must hold. At least one is required.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("x-kubernetes-validations" = [{"rule": "!has(self.rls) || !(has(self.path) || has(self.methods) || has(self.hosts) || has(self.headers) || has(self.query) || has(self.cookies) || has(self.grpc) || has(self.clientCIDRs))", "message": "rls is about a gateway's question, which has nothing else: use an entry of its own"}])))]
#[serde(rename_all = "camelCase")]
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
    #[cfg_attr(
        feature = "schema",
        schemars(length(max = 16), inner(length(min = 1, max = 32), regex(pattern = "^[A-Z][A-Z-]*$")))
    )]
    pub methods: Vec<String>,
    /// Hosts that match: names such as shop.example, or *.shop.example for all names below shop.example. They
    /// are compared without port, case and trailing dot. Default: every host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16), inner(length(min = 1, max = 253), regex(pattern = HOST))))]
    pub hosts: Vec<String>,
    /// Conditions on headers, all of which must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16), transform = of_headers))]
    pub headers: Vec<NamedMatch>,
    /// Conditions on query parameters, all of which must hold. Names and values are compared after decoding.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16)))]
    pub query: Vec<NamedMatch>,
    /// Conditions on cookies, all of which must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16)))]
    pub cookies: Vec<NamedMatch>,
    /// Condition on the gRPC method. It is a condition on the path, /SERVICE/METHOD, whatever the content type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcMatch>,
    /// Networks of clients in CIDR notation, such as 192.0.2.0/24. `spec.clientAddress` says how the client's address
    /// is found. Default: every client.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "clientCIDRs")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64), inner(length(max = 64))))]
    pub client_cidrs: Vec<String>,
    /// Condition on a descriptor of a gateway's question to the service, with no other condition beside it. Only in `matches` of a
    /// limit in `limits`. An entry without it is for requests of HTTP, which sidecars see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rls: Option<DescriptorMatch>,
}

impl Match {
    /// Reports whether the entry is for requests of HTTP, and not for descriptors.
    #[must_use]
    pub fn is_for_requests(&self) -> bool {
        self.rls.is_none()
    }

    /// Returns the condition on the path, which that on the gRPC method is too, in the form in which paths are compared. Clients can
    /// reach a method by other content types than gRPC's, so only the path counts.
    #[must_use]
    pub fn path(&self) -> Option<PathMatch> {
        let normal = |text: &String| normalize(text).into_owned();
        if let Some(PathMatch { pattern, case_sensitive }) = &self.path {
            let pattern = match pattern {
                PathPattern::Exact(text) => PathPattern::Exact(normal(text)),
                PathPattern::Prefix(text) => PathPattern::Prefix(normal(text)),
                PathPattern::Template(text) => PathPattern::Template(normal(text)),
                PathPattern::Regex(pattern) => PathPattern::Regex(pattern.clone()),
            };
            return Some(PathMatch { pattern, case_sensitive: *case_sensitive });
        }
        let GrpcMatch { service, method } = self.grpc.as_ref()?;
        let pattern = match method {
            Some(method) => PathPattern::Exact(format!("/{service}/{method}")),
            None => PathPattern::Prefix(format!("/{service}")),
        };
        Some(PathMatch { pattern, case_sensitive: false })
    }

    /// Reports whether every request fulfils the conditions.
    #[must_use]
    pub fn holds_for_all(&self) -> bool {
        let Self { path, methods, hosts, headers, query, cookies, grpc, client_cidrs, rls } = self;
        let every_path = path
            .as_ref()
            .is_none_or(|path| matches!(&path.pattern, PathPattern::Prefix(root) if root == "/"));
        let holds_all = |text: &String| network(text).is_ok_and(|network| network.prefix_len() == 0);
        let every_client = client_cidrs.is_empty() || client_cidrs.iter().any(holds_all);
        let lists =
            [methods.is_empty(), hosts.is_empty(), headers.is_empty(), query.is_empty(), cookies.is_empty()];
        rls.is_none() && grpc.is_none() && every_path && every_client && lists == [true; 5]
    }

    /// Returns the number of regular expressions. A template becomes one.
    #[must_use]
    pub fn regexes(&self) -> usize {
        let in_path = self.path.as_ref().is_some_and(|path| match path.pattern {
            PathPattern::Template(_) | PathPattern::Regex(_) => true,
            PathPattern::Exact(_) | PathPattern::Prefix(_) => false,
        });
        let values = [&self.headers, &self.query, &self.cookies].into_iter().flatten();
        usize::from(in_path) + values.filter(|entry| matches!(entry.value, ValueMatch::Regex(_))).count()
    }
}

/// A condition on the path: exactly one of exact, prefix, template and regex.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PathMatch {
    /// Pattern of the path.
    #[serde(flatten)]
    pub pattern: PathPattern,
    /// If true, upper and lower case differ. Only for applications that distinguish them: for others, a client
    /// evades the limit by another spelling. Default: false. In `except` they always differ.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub case_sensitive: bool,
}

/// A pattern of paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum PathPattern {
    /// The path must equal this text. A slash at the end is ignored.
    Exact(
        #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024), regex(pattern = "^/")))] String,
    ),
    /// The path must begin with these whole segments: /v1 matches /v1 and /v1/x, but not /v10.
    Prefix(
        #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024), regex(pattern = "^/")))] String,
    ),
    /// The path must have these segments. A name in braces stands for one segment that is not empty: /v1/orders/{id}
    /// matches /v1/orders/42, but neither /v1/orders nor /v1/orders/42/items.
    Template(
        #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024), regex(pattern = "^/")))] String,
    ),
    /// The whole path must match this regular expression (RE2 syntax).
    Regex(#[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024)))] String),
}

impl PathPattern {
    /// Returns the pattern as the policy has it.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Exact(text) | Self::Prefix(text) | Self::Template(text) | Self::Regex(text) => text,
        }
    }
}

/// A condition on a query parameter or a cookie: its name and exactly one of exact, prefix, regex and present. If it
/// is repeated, one matching value is enough in `matches`, and all values must match in `except`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NamedMatch {
    /// Name of the parameter or cookie. In `matches` a condition holds for other spellings of it too, such as in another case. In
    /// `except` the name must be written so.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128)))]
    pub name: String,
    /// The condition.
    #[serde(flatten)]
    pub value: ValueMatch,
    /// If true, the condition must not hold: there is no value, or one of them is another. Default: false.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub not: bool,
}

/// A gRPC method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GrpcMatch {
    /// Full name of the service, with its package: shop.Checkout.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 253), regex(pattern = "^[A-Za-z_][A-Za-z0-9_.]*$"))
    )]
    pub service: String,
    /// Name of the method. Default: every method of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(with = "String", length(min = 1, max = 253), regex(pattern = "^[A-Za-z_][A-Za-z0-9_]*$"))
    )]
    pub method: Option<String>,
}

/// A condition on a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ValueMatch {
    /// The value must equal this text.
    Exact(#[cfg_attr(feature = "schema", schemars(length(max = 1024)))] String),
    /// The value must begin with this text.
    Prefix(#[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024)))] String),
    /// The whole value must match this regular expression (RE2 syntax).
    Regex(#[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024)))] String),
    /// There must be a value (true) or none (false). An empty header or cookie meets both in `matches`, and neither in `except` and
    /// tiers. A query parameter without a value is there.
    Present(bool),
}

/// A condition on a descriptor, by which gateways ask the service about a request: the protocol of Envoy's global rate limiting. A
/// descriptor matches if it has exactly these entries in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DescriptorMatch {
    /// The domain that the gateway asks about: the name of the policy's namespace, this name and a slash with more, such as
    /// shop/checkout, or another one that the installation has granted to the namespace.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 253)))]
    pub domain: String,
    /// The entries of the descriptor.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 16)))]
    pub entries: Vec<EntryMatch>,
}

/// An entry of a descriptor: its key, and the value that it must have. Without value and prefix, any value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("x-kubernetes-validations" = [{"rule": "!has(self.value) || !has(self.prefix)", "message": "at most one of value, prefix may be set"}])))]
#[serde(rename_all = "camelCase")]
pub struct EntryMatch {
    /// Key of the entry, such as remote_address.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 253)))]
    pub key: String,
    /// The value must equal this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 1024)))]
    pub value: Option<String>,
    /// The value must begin with this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024)))]
    pub prefix: Option<String>,
}

impl DescriptorMatch {
    /// Reports whether a descriptor of the domain fulfils the condition.
    #[must_use]
    pub fn matches(&self, pairs: &[Pair<'_>]) -> bool {
        self.entries.len() == pairs.len()
            && self.entries.iter().zip(pairs).all(|(entry, pair)| {
                entry.key.as_bytes() == pair.key
                    && entry.value.as_ref().is_none_or(|text| text.as_bytes() == pair.value)
                    && entry.prefix.as_ref().is_none_or(|text| pair.value.starts_with(text.as_bytes()))
            })
    }
}
