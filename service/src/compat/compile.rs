//! Makes policies of ratelimit's rules: one for each domain, with a limit for each rule that counts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use sluice_config::PreparedPolicy;
use sluice_config::descriptor::{DescriptorRules, Level, RateUnit, Rule, RuleAllowance};
use sluice_config::expression::Expressions;
use sluice_config::key::{KeyPart, KeySource, OnMissing};
use sluice_config::message::PolicyUid;
use sluice_config::policy::{
    AmbiguousPaths, CompiledLimit, CompiledPolicy, Consistency, DEFAULT_STORE, Hints, LimitKind, Mode,
    OnStoreFailure, Rates,
};
use sluice_config::prepared::Domain;
use sluice_limiter::{Algorithm, Burst, Period, Rate, Requests};

use crate::compat::config::{DescriptorConfig, DomainConfig, RateLimit};

/// The namespace of the policies, which no namespace of Kubernetes can have.
const NAMESPACE: &str = "@rls";
/// The limit that counts descriptors which bring their own rate and have no rule.
const OVERRIDE: &str = "override";
/// Characters that must not be in a part of a scope, whose parts are separated by slashes.
const NOT_IN_NAMES: &AsciiSet = &CONTROLS.add(b' ').add(b'/').add(b'%').add(b'"');
/// Most limits of a domain. A limit is known by a number of 16 bits.
const MAX_LIMITS: usize = 60_000;
/// Most domains, for the same reason.
const MAX_DOMAINS: usize = 60_000;
/// Most levels of rules.
const MAX_DEPTH: usize = 64;

/// An algorithm that rules may be counted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlgorithmName {
    /// Windows by the clock, as in ratelimit.
    FixedWindow,
    /// Windows that slide.
    SlidingWindowCounter,
    /// Windows that slide, with the instant of each request.
    SlidingWindowLog,
    /// A bucket that holds as many requests as the rule has, and fills evenly.
    TokenBucket,
}

impl AlgorithmName {
    /// All algorithms.
    pub const ALL: [Self; 4] =
        [Self::FixedWindow, Self::SlidingWindowCounter, Self::SlidingWindowLog, Self::TokenBucket];

    /// Returns the name, as in policies.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixedWindow",
            Self::SlidingWindowCounter => "slidingWindowCounter",
            Self::SlidingWindowLog => "slidingWindowLog",
            Self::TokenBucket => "tokenBucket",
        }
    }

    /// Returns the algorithm with a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.as_str() == name)
    }

    fn for_requests(self, requests: u64) -> Algorithm {
        match self {
            Self::FixedWindow => Algorithm::FIXED_WINDOW,
            Self::SlidingWindowCounter => Algorithm::SLIDING_WINDOW,
            Self::SlidingWindowLog => Algorithm::SlidingWindowLog { min_interval: 0 },
            Self::TokenBucket => Burst::new(requests)
                .map_or(Algorithm::SLIDING_WINDOW, |burst| Algorithm::TokenBucket { burst }),
        }
    }
}

/// How all rules are enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompileOptions {
    /// The algorithm that counts.
    pub algorithm: AlgorithmName,
    /// Decision while the store does not answer.
    pub on_store_failure: OnStoreFailure,
    /// Whether several files may have rules for one domain.
    pub merges_domains: bool,
}

/// A configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {reason}")]
pub struct ConfigError {
    /// The file or the resource.
    pub file: String,
    /// The mistake, and where it is.
    pub reason: String,
}

/// A configuration, ready to be published.
#[derive(Debug)]
pub struct Compiled {
    /// The policies.
    pub policies: Vec<(PolicyUid, Arc<PreparedPolicy>)>,
    /// The rules, one a line.
    pub rules: String,
    /// Number of rules.
    pub count: usize,
    /// Settings that are legal and do not do what their author meant.
    pub warnings: Vec<String>,
}

/// The rules of one domain while they are read.
#[derive(Default)]
struct Builder {
    domain: String,
    limits: Vec<CompiledLimit>,
    rules: DescriptorRules,
    dump: String,
    count: usize,
    has_detailed_metrics: bool,
}

/// Compiles the domains of files or resources.
///
/// # Errors
/// A rule is wrong. Nothing is to be published then.
pub fn compile(
    configs: &[(String, DomainConfig)],
    options: &CompileOptions,
) -> Result<Compiled, ConfigError> {
    let mut domains = BTreeMap::<&str, Builder>::new();
    for (file, config) in configs {
        let failed = |reason: String| ConfigError { file: file.clone(), reason };
        if config.domain.is_empty() {
            return Err(failed("domain: is empty: name the domain that gateways ask about".to_owned()));
        }
        if domains.contains_key(&*config.domain) && !options.merges_domains {
            return Err(failed(format!(
                "domain: {:?} is in another file too: remove one, or set MERGE_DOMAIN_CONFIG=true (sluice serve --merge-domains)",
                config.domain
            )));
        }
        let builder = domains.entry(&config.domain).or_default();
        builder.domain.clone_from(&config.domain);
        builder.add(&config.descriptors, &mut Vec::new(), ("descriptors", ""), options).map_err(failed)?;
        if domains.len() > MAX_DOMAINS {
            return Err(failed(format!("more than {MAX_DOMAINS} domains")));
        }
    }
    let mut compiled =
        Compiled { policies: Vec::new(), rules: String::new(), count: 0, warnings: Vec::new() };
    for (name, builder) in domains {
        let Builder { domain: _, mut limits, rules, dump, count, has_detailed_metrics } = builder;
        compiled.rules += &dump;
        compiled.count += count;
        if has_detailed_metrics {
            compiled.warnings.push(format!(
                "domain {name:?}: detailed_metric and value_to_metric have no effect, because clients would choose how many metrics there \
                 are: sluice top names the clients that are denied"
            ));
        }
        let override_limit = u16::try_from(limits.len()).unwrap_or(u16::MAX);
        let seconds = Rate {
            requests: Requests::new(1).map_err(|error| of_domain(name, &error))?,
            period: Period::from_millis(1000).map_err(|error| of_domain(name, &error))?,
            algorithm: options.algorithm.for_requests(1),
            soft: None,
            count_denied: false,
        };
        limits.push(limit(OVERRIDE.to_owned(), Vec::new(), Mode::Enforce, seconds));
        let policy = CompiledPolicy {
            namespace: NAMESPACE.to_owned(),
            name: utf8_percent_encode(name, NOT_IN_NAMES).to_string(),
            mode: Mode::Enforce,
            on_store_failure: options.on_store_failure,
            consistency: Consistency::Strict,
            store: DEFAULT_STORE.to_owned(),
            is_shared: false,
            ambiguous_paths: AmbiguousPaths::Match,
            client_address: None,
            habits: Vec::new(),
            status_headers: None,
            jwt: Vec::new(),
            limits,
            expressions: Expressions::new(),
            hints: Hints::default(),
        };
        let domain = Domain { name: name.to_owned(), rules, override_limit };
        let policy = PreparedPolicy::of_domain(policy, domain).map_err(|nack| of_domain(name, &nack))?;
        compiled.policies.push((format!("{NAMESPACE}/{name}"), Arc::new(policy)));
    }
    Ok(compiled)
}

fn of_domain(name: &str, reason: &dyn ToString) -> ConfigError {
    ConfigError { file: format!("domain {name:?}"), reason: reason.to_string() }
}

fn of_descriptor(key: &str) -> KeyPart {
    KeyPart { source: KeySource::Descriptor { key: key.to_owned() }, public: None, descriptor_key: None }
}

fn limit(name: String, key: Vec<KeyPart>, mode: Mode, rate: Rate) -> CompiledLimit {
    CompiledLimit {
        name,
        mode,
        matches: Vec::new(),
        except: Vec::new(),
        when: None,
        key,
        max_override: None,
        on_missing: OnMissing::Shared,
        // As many as there are, as in ratelimit.
        max_keys: Some(0),
        on_limit: None,
        kind: LimitKind::Rates(Box::new(Rates { base: vec![rate], ..Rates::default() })),
    }
}

impl Builder {
    /// Adds the rules of a level and of those below. `path` has the levels above; `at` is the field of the file,
    /// and the name so far.
    fn add<'a>(
        &mut self,
        descriptors: &'a [DescriptorConfig],
        path: &mut Vec<Level<'a>>,
        (field, name): (&str, &str),
        options: &CompileOptions,
    ) -> Result<(), String> {
        if path.len() >= MAX_DEPTH {
            return Err(format!("{field}: more than {MAX_DEPTH} levels"));
        }
        for (n, descriptor) in descriptors.iter().enumerate() {
            let added = self.add_level(descriptor, path, (&format!("{field}[{n}]"), name), options);
            added.map_err(|reason| match descriptor.key.line {
                1.. if !reason.starts_with("line ") => format!("line {}: {reason}", descriptor.key.line),
                _ => reason,
            })?;
        }
        Ok(())
    }

    /// Adds the rule of a level, and those below.
    fn add_level<'a>(
        &mut self,
        descriptor: &'a DescriptorConfig,
        path: &mut Vec<Level<'a>>,
        (field, name): (&str, &str),
        options: &CompileOptions,
    ) -> Result<(), String> {
        let key = &descriptor.key.text;
        if key.is_empty() {
            return Err(format!("{field}.key: is empty"));
        }
        let composite = match &*descriptor.value {
            "" => key.clone(),
            value => format!("{key}_{value}"),
        };
        let name = if name.is_empty() { composite.clone() } else { format!("{name}.{composite}") };
        if descriptor.share_threshold && !descriptor.value.ends_with('*') {
            return Err(format!(
                "{field}.share_threshold: only for a value that ends with *, such as files*"
            ));
        }
        path.push(Level { key, value: &descriptor.value, shares_threshold: descriptor.share_threshold });
        let rule = match &descriptor.rate_limit {
            Some(rate_limit) => Some(self.rule(descriptor, rate_limit, path, (field, &name), options)?),
            None => None,
        };
        self.has_detailed_metrics |= descriptor.detailed_metric || descriptor.value_to_metric;
        self.rules.add(path, rule).map_err(|_| {
            format!(
                "{field}: {composite:?} is there twice: key and value together must be unique in their list"
            )
        })?;
        self.add(&descriptor.descriptors, path, (&format!("{field}.descriptors"), &name), options)?;
        path.pop();
        Ok(())
    }

    fn rule(
        &mut self,
        descriptor: &DescriptorConfig,
        rate_limit: &RateLimit,
        path: &[Level<'_>],
        (field, name): (&str, &str),
        options: &CompileOptions,
    ) -> Result<Rule, String> {
        let RateLimit { requests_per_unit, unit, unlimited, name: rule_name, replaces } = rate_limit;
        let known = RateUnit::from_name(unit);
        for (n, replaced) in replaces.iter().enumerate() {
            let field = format!("{field}.rate_limit.replaces[{n}].name");
            if replaced.name.is_empty() {
                return Err(format!("{field}: is empty: name the rule that is replaced"));
            }
            if replaced.name == *rule_name {
                return Err(format!("{field}: {rule_name:?} is the rule itself"));
            }
        }
        let allowance = match (*unlimited, known, *requests_per_unit) {
            (true, Some(_), _) => {
                return Err(format!("{field}.rate_limit.unit: not allowed beside unlimited: true"));
            }
            (true, None, _) => RuleAllowance::Unlimited,
            (false, None, _) => {
                let units = RateUnit::ALL.map(RateUnit::as_str).join(", ");
                return Err(format!("{field}.rate_limit.unit: {unit:?} is none of {units}"));
            }
            (false, Some(unit), 0) => RuleAllowance::Nothing(unit),
            (false, Some(unit), requests) => {
                let of_field = |error: String| format!("{field}.rate_limit: {error}");
                let rate = Rate {
                    requests: Requests::new(u64::from(requests))
                        .map_err(|error| of_field(error.to_string()))?,
                    period: Period::from_millis(unit.seconds() * 1000)
                        .map_err(|error| of_field(error.to_string()))?,
                    algorithm: options.algorithm.for_requests(u64::from(requests)),
                    soft: None,
                    count_denied: false,
                };
                let rate = rate.validated().map_err(|error| of_field(error.to_string()))?;
                let number = self.limits.len();
                if number >= MAX_LIMITS {
                    return Err(format!("{field}: more than {MAX_LIMITS} rules in a domain"));
                }
                let mode = if descriptor.shadow_mode { Mode::Shadow } else { Mode::Enforce };
                let key = path.iter().map(|level| of_descriptor(level.key)).collect();
                let limit_name = utf8_percent_encode(name, NOT_IN_NAMES).to_string();
                self.limits.push(limit(limit_name, key, mode, rate));
                RuleAllowance::Limit(u16::try_from(number).unwrap_or(u16::MAX))
            }
        };
        self.count += 1;
        let unit = known.map_or("UNKNOWN".to_owned(), |unit| unit.as_str().to_ascii_uppercase());
        // Writing to a string does not fail.
        let _ = writeln!(
            self.dump,
            "{}.{name}: unit={unit} requests_per_unit={requests_per_unit}, shadow_mode: {}, quota_mode: {}",
            self.domain, descriptor.shadow_mode, descriptor.quota_mode
        );
        Ok(Rule {
            allowance,
            name: rule_name.as_str().into(),
            replaces: replaces.iter().map(|replaced| replaced.name.as_str().into()).collect(),
            is_quota: descriptor.quota_mode,
            is_shadow: descriptor.shadow_mode,
        })
    }
}
