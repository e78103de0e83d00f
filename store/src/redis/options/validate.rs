//! The validation of all options. Everything after it works on a [`ConnectPlan`] and validates nothing again.

use std::time::Duration;

use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, ProtocolVersion, TlsCertificates};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::error::OptionsError;
use super::redis_options::{ClientCertificate, RedisOptions, Secret, Topology};
use super::server_url::{parse, parse_all};
use crate::redis::connect::{Target, TargetTemplate};

/// Validated options.
pub(crate) enum ConnectPlan {
    /// A single server.
    Standalone(Target),
    /// The sentinels, the name of the master, and how to reach the master.
    Sentinel { sentinels: Vec<Target>, master: String, template: TargetTemplate },
    /// Some servers of a cluster, and how to reach the others.
    Cluster { seeds: Vec<Target>, template: TargetTemplate },
}

const PEM_BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";

impl RedisOptions {
    /// Checks the options as far as possible without a connection. For `rediss` the process must have
    /// installed the default rustls provider.
    pub fn check(&self) -> Result<(), OptionsError> {
        self.validate().map(drop)
    }

    /// Validates every field.
    pub(crate) fn validate(&self) -> Result<ConnectPlan, OptionsError> {
        if !(Duration::from_millis(1)..=Duration::from_secs(10)).contains(&self.latency_budget) {
            return Err(OptionsError::Budget(self.latency_budget));
        }
        let visible = |b: u8| b.is_ascii_graphic() && b != b'{' && b != b'}';
        if self.prefix.is_empty() || self.prefix.len() > 64 || !self.prefix.bytes().all(visible) {
            return Err(OptionsError::Prefix(self.prefix.clone()));
        }
        if self.partitions == 0 {
            return Err(OptionsError::Partitions);
        }
        match &self.topology {
            Topology::Standalone { url } => {
                let info = with_credentials(parse(url)?, self.username.as_deref(), self.password.as_ref())?;
                Ok(ConnectPlan::Standalone(target(self.with_tls(info)?)?))
            }
            Topology::Sentinel { urls, master, username, password } => {
                if master.is_empty() || master.bytes().any(|b| !b.is_ascii_graphic()) {
                    return Err(OptionsError::Master(master.clone()));
                }
                let mut sentinels = Vec::new();
                for info in parse_all(urls)? {
                    let info = with_credentials(info, username.as_deref(), password.as_ref())?;
                    sentinels.push(target(self.with_tls(info)?)?);
                }
                let first = parse(urls.first().ok_or(OptionsError::NoUrl)?)?;
                // The credentials of the sentinels are not those of the master.
                let settings = without_credentials(first.redis_settings());
                let info = first.set_redis_settings(settings);
                let info = with_credentials(info, self.username.as_deref(), self.password.as_ref())?;
                Ok(ConnectPlan::Sentinel {
                    sentinels,
                    master: master.clone(),
                    template: TargetTemplate::new(self.with_tls(info)?),
                })
            }
            Topology::Cluster { urls } => {
                let mut seeds = Vec::new();
                for info in parse_all(urls)? {
                    let info = with_credentials(info, self.username.as_deref(), self.password.as_ref())?;
                    seeds.push(self.with_tls(info)?);
                }
                let first = seeds.first().ok_or(OptionsError::NoUrl)?.clone();
                let credentials = |info: &ConnectionInfo| {
                    let settings = info.redis_settings();
                    (settings.username().map(str::to_owned), settings.password().map(str::to_owned))
                };
                if seeds.iter().any(|seed| credentials(seed) != credentials(&first)) {
                    return Err(OptionsError::Differ);
                }
                let seeds = seeds.into_iter().map(target).collect::<Result<_, _>>()?;
                Ok(ConnectPlan::Cluster { seeds, template: TargetTemplate::new(first) })
            }
        }
    }

    /// Adds the certificates to an address that uses TLS. Without TLS, certificates are an error.
    fn with_tls(&self, info: ConnectionInfo) -> Result<ConnectionInfo, OptionsError> {
        if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            return match (&self.ca_pem, &self.client_certificate) {
                (Some(_), _) => Err(OptionsError::CaWithoutTls),
                (None, Some(_)) => Err(OptionsError::ClientWithoutTls),
                (None, None) => Ok(info),
            };
        }
        let Some(provider) = CryptoProvider::get_default() else { return Err(OptionsError::NoTlsProvider) };
        if self.ca_pem.as_ref().is_some_and(|pem| !pem.windows(PEM_BEGIN.len()).any(|at| at == PEM_BEGIN)) {
            return Err(OptionsError::Ca("it contains no certificate".into()));
        }
        if let Some(client) = &self.client_certificate {
            client.validate(provider).map_err(OptionsError::ClientCertificate)?;
        }
        // The authority is tried alone first, so that an error names the right one of the two.
        let build = |root_cert, client_tls| {
            Client::build_with_tls(info.clone(), TlsCertificates { client_tls, root_cert })
        };
        build(self.ca_pem.clone(), None).map_err(|error| OptionsError::Ca(error.to_string()))?;
        let client_tls = self.client_certificate.as_ref().map(|client| ClientTlsConfig {
            client_cert: client.certificate_pem.clone(),
            client_key: client.key_pem.clone(),
        });
        let client = build(self.ca_pem.clone(), client_tls)
            .map_err(|error| OptionsError::ClientCertificate(error.to_string()))?;
        Ok(client.get_connection_info().clone())
    }
}

impl ClientCertificate {
    /// Checks that the certificate and the key can be read and belong together. The error repeats nothing of
    /// either.
    fn validate(&self, provider: &CryptoProvider) -> Result<(), String> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.certificate_pem).collect();
        let chain = chain.map_err(|_| "its certificate is not PEM")?;
        if chain.is_empty() {
            return Err("it contains no certificate".into());
        }
        let key = PrivateKeyDer::from_pem_slice(&self.key_pem).map_err(|_| "its key is not PEM")?;
        match CertifiedKey::from_der(chain, key, provider) {
            Ok(_) => Ok(()),
            Err(rustls::Error::InconsistentKeys(_)) => Err("its key belongs to another certificate".into()),
            Err(_) => Err("its certificate or its key is damaged or of an unknown type".into()),
        }
    }
}

fn target(info: ConnectionInfo) -> Result<Target, OptionsError> {
    Target::new(info).map_err(|error| OptionsError::Url(error.to_string()))
}

fn without_credentials(settings: &redis::RedisConnectionInfo) -> redis::RedisConnectionInfo {
    redis::RedisConnectionInfo::default()
        .set_db(settings.db())
        .set_protocol(ProtocolVersion::RESP2)
        .set_skip_set_lib_name()
}

/// Adds the user and the password to those in the URL.
fn with_credentials(
    info: ConnectionInfo,
    username: Option<&str>,
    password: Option<&Secret>,
) -> Result<ConnectionInfo, OptionsError> {
    let mut settings = info.redis_settings().clone();
    if let Some(password) = password {
        if settings.password().is_some() {
            return Err(OptionsError::TwoPasswords);
        }
        settings = settings.set_password(password.expose());
    }
    if let Some(username) = username {
        settings = settings.set_username(username);
    }
    if settings.username().is_some() && settings.password().is_none() {
        return Err(OptionsError::NoPassword);
    }
    Ok(info.set_redis_settings(settings))
}
