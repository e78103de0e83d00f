//! Who may ask, and about what: the callers of a file, which is read again when it changes.
//!
//! A caller shows a client certificate, or the token of a Kubernetes service account. What its question names is a claim, which is
//! checked against what the file grants to it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::{ArcSwap, ArcSwapOption};
use http::{HeaderMap, Method, Uri};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use rustls::pki_types::CertificateDer;
use serde::Deserialize;
use sluice_config::client_pages::{CallerState, CallersPage, RefusedQuestions};
use sluice_config::jwt::{CompiledJwt, JwtVerifier, Verification, VerificationKeys};
use sluice_config::message::TokenKeys;
use sluice_config::{RequestAttributes, SERVICE_AUDIENCE};
use sluice_engine::FollowedFiles;
use sluice_engine::per_second::LogSampler;
use tokio::sync::watch;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

/// Interval at which the file is read.
const READ_EVERY: Duration = Duration::from_secs(5);
/// Most callers of a file.
const MAX_CALLERS: usize = 1000;
/// Refusals that are remembered.
const MAX_REFUSALS: usize = 64;
/// Longest text of a caller in a page or a log, in characters.
const MAX_TEXT: usize = 253;
/// The claim of a token that names its service account.
const SUBJECT: &str = "sub";

/// A caller in the file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CallerConfig {
    /// A name in its certificate: a URI such as `spiffe://cluster.local/ns/gateways/sa/envoy`, or `dns:` and a DNS name. Or its
    /// service account as `NAMESPACE/NAME`.
    pub subject: String,
    /// Namespaces whose domains it may name; `*` for all.
    #[serde(default)]
    pub namespaces: BTreeSet<String>,
    /// Other domains that it may name.
    #[serde(default)]
    pub domains: BTreeSet<String>,
}

/// The contents of a file of callers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CallersFile {
    callers: Vec<CallerConfig>,
}

/// A file of callers that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {reason}")]
pub struct CallersError {
    file: String,
    reason: String,
}

/// A question that is refused because of who asks it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotPermitted {
    /// The caller shows neither a certificate nor a token.
    #[error(
        "show a client certificate, or a token for the audience {SERVICE_AUDIENCE} as `authorization: Bearer`"
    )]
    Unidentified,
    /// Its token proves nothing.
    #[error(
        "the token is not valid for the audience {SERVICE_AUDIENCE}, has expired, or is of another issuer"
    )]
    Token,
    /// The keys that verify tokens have not come.
    #[error("the service has no keys yet that verify tokens: the operator sends them; try again")]
    WithoutKeys,
    /// No entry is for it.
    #[error("the caller {0} is not listed: add it to service.callers")]
    Unknown(String),
    /// It may not name the domain.
    #[error(
        "the caller {subject} may not ask about the domain {domain:?}: grant it the namespace or the domain in service.callers"
    )]
    Domain {
        /// The caller.
        subject: String,
        /// The domain.
        domain: String,
    },
    /// It may not name the namespace.
    #[error(
        "the caller {subject} may not ask about the namespace {namespace:?}: grant it the namespace in service.callers"
    )]
    Namespace {
        /// The caller.
        subject: String,
        /// The namespace.
        namespace: String,
    },
}

impl NotPermitted {
    /// Returns the answer over gRPC.
    pub(crate) fn to_status(&self) -> tonic::Status {
        match self {
            Self::Unidentified | Self::Token => tonic::Status::unauthenticated(self.to_string()),
            Self::WithoutKeys => tonic::Status::unavailable(self.to_string()),
            Self::Unknown(_) | Self::Domain { .. } | Self::Namespace { .. } => {
                tonic::Status::permission_denied(self.to_string())
            }
        }
    }
}

/// The sender of a connection's requests.
#[derive(Debug, Clone)]
pub(crate) struct Sender {
    /// Names in its certificate, if callers are checked.
    pub(crate) names: Arc<[String]>,
    /// Its address.
    pub(crate) peer: SocketAddr,
}

impl Sender {
    /// Somebody in this process.
    pub(crate) fn local() -> Self {
        Self { names: Arc::default(), peer: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// The callers. Clones share them.
#[derive(Debug, Clone)]
pub struct Callers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    file: PathBuf,
    table: ArcSwap<Table>,
    verifier: ArcSwapOption<JwtVerifier>,
    refused: Family<ReasonLabels, Counter>,
    log: LogSampler,
    refusals: Mutex<VecDeque<RefusedQuestions>>,
}

/// The callers of a version of the file.
#[derive(Debug, Default)]
struct Table {
    text: String,
    by_subject: HashMap<String, Arc<Caller>>,
}

/// A caller.
#[derive(Debug)]
pub(crate) struct Caller {
    config: CallerConfig,
    asked: AtomicU64,
    refused: AtomicU64,
}

impl CallerConfig {
    fn check(&self) -> Result<(), String> {
        let is_account = self.subject.split_once('/').is_some_and(|(namespace, name)| {
            !namespace.is_empty() && !name.is_empty() && !name.contains('/') && !namespace.contains(':')
        });
        if !is_account && !self.subject.contains("://") && !self.subject.starts_with("dns:") {
            return Err(format!(
                "the subject {:?} is neither a URI such as spiffe://..., nor dns:NAME, nor NAMESPACE/SERVICEACCOUNT",
                self.subject
            ));
        }
        if self.namespaces.is_empty() && self.domains.is_empty() {
            return Err(format!(
                "the caller {:?} may name nothing: grant it namespaces or domains",
                self.subject
            ));
        }
        Ok(())
    }

    /// Reports whether the caller may ask about a domain: one of its namespaces, this name and a slash with more, or a granted one.
    fn permits(&self, domain: &[u8]) -> bool {
        let Ok(domain) = std::str::from_utf8(domain) else { return false };
        let namespace = domain.split_once('/').map_or(domain, |(namespace, _)| namespace);
        self.permits_namespace(namespace) || self.domains.contains(domain)
    }

    /// Reports whether the caller may ask about the policies of a namespace.
    fn permits_namespace(&self, namespace: &str) -> bool {
        self.namespaces.contains("*") || self.namespaces.contains(namespace)
    }
}

impl Caller {
    /// Returns the namespace of a caller that may name one alone.
    pub(crate) fn only_namespace(&self) -> Option<&str> {
        let mut namespaces = self.config.namespaces.iter().filter(|namespace| *namespace != "*");
        let one = namespaces.next().filter(|_| self.config.namespaces.len() == 1);
        one.map(String::as_str)
    }
}

impl Table {
    fn parse(text: String, before: &Self) -> Result<Self, String> {
        let file: CallersFile = serde_saphyr::from_str(&text).map_err(|error| error.to_string())?;
        if file.callers.len() > MAX_CALLERS {
            return Err(format!("more than {MAX_CALLERS} callers"));
        }
        let mut by_subject = HashMap::new();
        for config in file.callers {
            config.check()?;
            let subject = config.subject.clone();
            let count = |of: fn(&Caller) -> &AtomicU64| {
                AtomicU64::new(
                    before.by_subject.get(&subject).map_or(0, |known| of(known).load(Ordering::Relaxed)),
                )
            };
            let (asked, refused) = (count(|known| &known.asked), count(|known| &known.refused));
            if by_subject.insert(subject.clone(), Arc::new(Caller { config, asked, refused })).is_some() {
                return Err(format!("the subject {subject:?} is there twice"));
            }
        }
        Ok(Self { text, by_subject })
    }
}

impl Callers {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is wrong.
    pub fn read(file: PathBuf) -> Result<Self, CallersError> {
        let table = parse(&file, read(&file)?, &Table::default())?;
        Ok(Self(Arc::new(Shared {
            file,
            table: ArcSwap::from_pointee(table),
            verifier: ArcSwapOption::empty(),
            refused: Family::default(),
            log: LogSampler::default(),
            refusals: Mutex::default(),
        })))
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "callers_refused",
            "Questions that were refused because of who asked them, by the reason",
            self.0.refused.clone(),
        );
    }

    /// Takes changes of the file over. Never returns.
    pub(crate) async fn follow(self, files: FollowedFiles) {
        let Shared { file, table, .. } = &*self.0;
        let text = table.load().text.clone();
        let read = || read(file).map_err(|error| error.to_string());
        let apply = |text: &String| {
            let new = parse(file, text.clone(), &table.load()).map_err(|error| error.to_string())?;
            tracing::info!(callers = new.by_subject.len(), "the callers are in force");
            table.store(Arc::new(new));
            Ok(())
        };
        files.follow(&file.display().to_string(), READ_EVERY, text, read, apply).await;
    }

    /// Verifies tokens with the keys of the operator, as they come. Never returns.
    pub async fn verify_with(self, mut keys: watch::Receiver<Option<TokenKeys>>) {
        loop {
            if let Some(keys) = keys.borrow_and_update().clone() {
                self.set_keys(keys);
            }
            if keys.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn set_keys(&self, TokenKeys { issuer, jwks }: TokenKeys) {
        let keys = VerificationKeys { issuer, audiences: vec![SERVICE_AUDIENCE.to_owned()], jwks };
        let jwt = CompiledJwt { name: "callers".to_owned(), verification: Verification::Keys(keys) };
        match JwtVerifier::new(&jwt, vec![SUBJECT.to_owned()]) {
            Ok(verifier) => self.0.verifier.store(Some(Arc::new(verifier))),
            Err(nack) => tracing::error!(reason = nack.0, "the keys of the operator verify no tokens"),
        }
    }

    /// Checks that a caller may ask about a domain, and returns it. `names` are those of its certificate; `headers` may have its token.
    pub(crate) fn check(
        &self,
        names: &[String],
        headers: &HeaderMap,
        domain: &[u8],
    ) -> Result<Arc<Caller>, NotPermitted> {
        let caller = self.identify(names, headers)?;
        if caller.config.permits(domain) {
            caller.asked.fetch_add(1, Ordering::Relaxed);
            return Ok(caller);
        }
        caller.refused.fetch_add(1, Ordering::Relaxed);
        let domain = String::from_utf8_lossy(domain).chars().take(MAX_TEXT).collect();
        let refused = NotPermitted::Domain { subject: caller.config.subject.clone(), domain };
        self.note(&refused);
        Err(refused)
    }

    /// Checks that a caller may ask about the policies of a namespace.
    pub(crate) fn check_namespace(&self, caller: &Caller, namespace: &str) -> Result<(), NotPermitted> {
        if caller.config.permits_namespace(namespace) {
            caller.asked.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        caller.refused.fetch_add(1, Ordering::Relaxed);
        let namespace = namespace.chars().take(MAX_TEXT).collect();
        let refused = NotPermitted::Namespace { subject: caller.config.subject.clone(), namespace };
        self.note(&refused);
        Err(refused)
    }

    /// Returns who asks. `names` are those of its certificate; `headers` may have its token.
    pub(crate) fn identify(
        &self,
        names: &[String],
        headers: &HeaderMap,
    ) -> Result<Arc<Caller>, NotPermitted> {
        let table = self.0.table.load();
        self.find(&table, names, headers).inspect_err(|refused| self.note(refused))
    }

    fn find(
        &self,
        table: &Table,
        names: &[String],
        headers: &HeaderMap,
    ) -> Result<Arc<Caller>, NotPermitted> {
        if let Some(caller) = names.iter().find_map(|name| table.by_subject.get(name)) {
            return Ok(caller.clone());
        }
        let account = self.subject(headers)?;
        if let Some(caller) = account.as_ref().and_then(|account| table.by_subject.get(account)) {
            return Ok(caller.clone());
        }
        let name = account.as_ref().or(names.first()).ok_or(NotPermitted::Unidentified)?;
        Err(NotPermitted::Unknown(name.chars().take(MAX_TEXT).collect()))
    }

    /// Returns the service account of a token, if the call has one.
    fn subject(&self, headers: &HeaderMap) -> Result<Option<String>, NotPermitted> {
        if !headers.contains_key(http::header::AUTHORIZATION) {
            return Ok(None);
        }
        let verifier = self.0.verifier.load();
        let verifier = verifier.as_ref().ok_or(NotPermitted::WithoutKeys)?;
        let uri = Uri::from_static("/");
        let request =
            RequestAttributes::new(&Method::POST, &uri, headers, std::net::Ipv4Addr::UNSPECIFIED.into());
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let account = |subject: &str| {
            let (namespace, name) = subject.strip_prefix("system:serviceaccount:")?.split_once(':')?;
            Some(format!("{namespace}/{name}"))
        };
        let account = verifier.read_claim(&request, SUBJECT, now, account).value().flatten();
        account.map(Some).ok_or(NotPermitted::Token)
    }

    /// Counts, logs and remembers a refusal.
    fn note(&self, refused: &NotPermitted) {
        let reason = match refused {
            NotPermitted::Unidentified => "unidentified",
            NotPermitted::Token => "token",
            NotPermitted::WithoutKeys => "without_keys",
            NotPermitted::Unknown(_) => "unknown_caller",
            NotPermitted::Domain { .. } => "domain",
            NotPermitted::Namespace { .. } => "namespace",
        };
        self.0.refused.get_or_create(&ReasonLabels { reason }).inc();
        if let Some(left_out) = self.0.log.take() {
            tracing::warn!(reason = %refused, left_out, "a question was refused");
        }
        let text = refused.to_string();
        let last_seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut refusals = self.refusals();
        let times = match refusals.iter().position(|known| known.reason == text) {
            Some(at) => refusals.remove(at).map_or(0, |known| known.times),
            None => 0,
        };
        refusals.truncate(MAX_REFUSALS - 1);
        refusals.push_front(RefusedQuestions { reason: text, times: times + 1, last_seconds });
    }

    fn refusals(&self) -> MutexGuard<'_, VecDeque<RefusedQuestions>> {
        // No statement that changes them can panic halfway.
        self.0.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns who has asked and what was refused, in JSON.
    pub(crate) fn page(&self) -> String {
        let table = self.0.table.load();
        let mut callers: Vec<_> = table
            .by_subject
            .values()
            .map(|caller| CallerState {
                subject: caller.config.subject.clone(),
                namespaces: caller.config.namespaces.iter().cloned().collect(),
                domains: caller.config.domains.iter().cloned().collect(),
                asked: caller.asked.load(Ordering::Relaxed),
                refused: caller.refused.load(Ordering::Relaxed),
            })
            .collect();
        callers.sort_unstable_by(|one, other| one.subject.cmp(&other.subject));
        let page = CallersPage { callers, refused: self.refusals().iter().cloned().collect() };
        // It consists of texts and numbers, which always serialize.
        serde_json::to_string(&page).unwrap_or_default()
    }
}

fn read(file: &Path) -> Result<String, CallersError> {
    std::fs::read_to_string(file).map_err(|error| failed(file, error.to_string()))
}

fn parse(file: &Path, text: String, before: &Table) -> Result<Table, CallersError> {
    Table::parse(text, before).map_err(|reason| failed(file, reason))
}

fn failed(file: &Path, reason: String) -> CallersError {
    CallersError { file: file.display().to_string(), reason }
}

/// Returns the names of a certificate by which callers are known.
pub(crate) fn names_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    let name = |name: &GeneralName<'_>| match name {
        // Only with a scheme: another text could be taken for a DNS name or a service account.
        GeneralName::URI(uri) if uri.contains("://") => Some((*uri).to_owned()),
        GeneralName::DNSName(name) => Some(format!("dns:{name}")),
        _ => None,
    };
    names.value.general_names.iter().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use rcgen::KeyPair;

    use super::*;

    impl Callers {
        fn permit(&self, names: &[String], headers: &HeaderMap, domain: &[u8]) -> Result<(), NotPermitted> {
            self.check(names, headers, domain).map(drop)
        }
    }

    fn callers(text: &str) -> (tempfile::NamedTempFile, Result<Callers, CallersError>) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let callers = Callers::read(file.path().to_owned());
        (file, callers)
    }

    const TEXT: &str = "callers:
- subject: spiffe://cluster.local/ns/gateways/sa/envoy
  namespaces: [shop]
  domains: [legacy.example]
- subject: dns:all.example
  namespaces: ['*']
";

    #[test]
    fn a_caller_names_the_domains_of_its_namespaces_and_those_granted_to_it() {
        let (_file, callers) = callers(TEXT);
        let callers = callers.unwrap();
        let check = |name: &str, domain: &[u8]| callers.permit(&[name.to_owned()], &HeaderMap::new(), domain);
        let envoy = "spiffe://cluster.local/ns/gateways/sa/envoy";
        for domain in ["shop", "shop/checkout", "legacy.example"] {
            assert_eq!(check(envoy, domain.as_bytes()), Ok(()), "{domain}");
        }
        for domain in ["shopping", "other", "legacy.example/x", "", "shop\u{fffd}"] {
            assert!(matches!(check(envoy, domain.as_bytes()), Err(NotPermitted::Domain { .. })), "{domain}");
        }
        assert!(matches!(check(envoy, b"shop/\xff"), Err(NotPermitted::Domain { .. })));
        assert_eq!(check("dns:all.example", b"anything"), Ok(()));
        assert_eq!(
            check("dns:other.example", b"shop"),
            Err(NotPermitted::Unknown("dns:other.example".to_owned()))
        );
        assert_eq!(callers.permit(&[], &HeaderMap::new(), b"shop"), Err(NotPermitted::Unidentified));
        let page: serde_json::Value = serde_json::from_str(&callers.page()).unwrap();
        assert_eq!(page["callers"][1]["subject"], envoy);
        assert_eq!((&page["callers"][1]["asked"], &page["callers"][1]["refused"]), (&3.into(), &6.into()));
        assert!(page["refused"][0]["reason"].as_str().unwrap().starts_with("show a client certificate"));
    }

    /// Signs a token with the key `a`.
    fn sign(key: &KeyPair, claims: &serde_json::Value) -> HeaderMap {
        let header = jsonwebtoken::Header {
            kid: Some("a".to_owned()),
            ..jsonwebtoken::Header::new(jsonwebtoken::Algorithm::ES256)
        };
        let key = jsonwebtoken::EncodingKey::from_ec_der(&key.serialize_der());
        let token = jsonwebtoken::encode(&header, claims, &key).unwrap();
        let bearer = format!("Bearer {token}").parse().unwrap();
        HeaderMap::from_iter([(http::header::AUTHORIZATION, bearer)])
    }

    #[test]
    fn a_token_identifies_its_service_account_if_it_is_for_the_service_and_has_not_expired() {
        let (_file, callers) = callers(
            "callers: [{subject: apps/web, namespaces: [apps]}, {subject: 'dns:a.example', namespaces: [shop]}]",
        );
        let callers = callers.unwrap();
        let [key, other] = [(); 2].map(|()| KeyPair::generate().unwrap());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let claims = |audience: &str, issuer: &str, expires: u64, subject: &str| serde_json::json!({"aud": [audience], "iss": issuer, "exp": expires, "sub": subject});
        let (audience, issuer, subject) =
            (SERVICE_AUDIENCE, "https://issuer", "system:serviceaccount:apps:web");
        let good = sign(&key, &claims(audience, issuer, now + 600, subject));
        assert_eq!(callers.permit(&[], &good, b"apps"), Err(NotPermitted::WithoutKeys));
        let point = |range: std::ops::Range<usize>| URL_SAFE_NO_PAD.encode(&key.public_key_raw()[range]);
        let jwk = serde_json::json!({"kty": "EC", "crv": "P-256", "alg": "ES256", "kid": "a", "x": point(1..33), "y": point(33..65)});
        let jwks = serde_json::json!({"keys": [jwk]}).to_string();
        callers.set_keys(TokenKeys { issuer: issuer.to_owned(), jwks });
        assert_eq!(callers.permit(&[], &good, b"apps"), Ok(()));
        assert!(matches!(callers.permit(&[], &good, b"shop"), Err(NotPermitted::Domain { .. })));
        for (key, claims, what) in [
            (&key, claims("sluice.dev", issuer, now + 600, subject), "another audience"),
            (&key, claims(audience, "https://other", now + 600, subject), "another issuer"),
            (&key, claims(audience, issuer, now - 600, subject), "expired"),
            (&key, claims(audience, issuer, now + 600, "apps:web"), "no service account"),
            (&other, claims(audience, issuer, now + 600, subject), "another key"),
        ] {
            assert_eq!(callers.permit(&[], &sign(key, &claims), b"apps"), Err(NotPermitted::Token), "{what}");
        }
        let account = claims(audience, issuer, now + 600, "system:serviceaccount:apps:other");
        let unknown = Err(NotPermitted::Unknown("apps/other".to_owned()));
        assert_eq!(callers.permit(&[], &sign(&key, &account), b"apps"), unknown);
        // A gateway may pass on what its client has sent: its own certificate comes first.
        let names = ["dns:a.example".to_owned()];
        assert_eq!(callers.permit(&names, &sign(&other, &account), b"shop"), Ok(()));
    }

    #[test]
    fn refusals_are_bounded_in_number_and_counted() {
        let (_file, callers) = callers(TEXT);
        let callers = callers.unwrap();
        for n in 0..500 {
            let _ = callers.permit(&[format!("dns:{n}.example")], &HeaderMap::new(), b"shop");
            let _ = callers.permit(&[], &HeaderMap::new(), b"shop");
        }
        let page: serde_json::Value = serde_json::from_str(&callers.page()).unwrap();
        assert_eq!(page["refused"].as_array().unwrap().len(), MAX_REFUSALS);
        assert_eq!(page["refused"][0]["times"], 500);
    }

    #[test]
    fn a_file_that_is_wrong_is_refused_with_what_is_wrong() {
        for (text, reason) in [
            ("callers: [{subject: envoy, namespaces: [a]}]", "neither a URI"),
            ("callers: [{subject: a/b}]", "may name nothing"),
            ("callers: [{subject: a/b, namespaces: [a]}, {subject: a/b, namespaces: [b]}]", "there twice"),
            ("callers: [{subject: a/b, namespace: [a]}]", "namespace"),
            ("callers: 7", "callers"),
        ] {
            let error = callers(text).1.unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
