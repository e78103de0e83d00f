//! The validation of all options. Everything after it works on a [`ConnectPlan`] and validates nothing again.

use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, ProtocolVersion,
    RedisConnectionInfo, TlsCertificates,
};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::sentinel::Sentinels;
use super::target::{PasswordFile, Target, TargetTemplate};
use crate::redis::options::{
    ClientCertificate, Endpoint, MAX_PARTITIONS, OptionsError, RedisOptions, Secret, Tls, Topology,
};

#[cfg(test)]
mod tests;

/// Validated options.
pub(crate) enum ConnectPlan {
    /// A single server.
    Standalone(Target),
    /// The sentinels of a master.
    Sentinel(Sentinels),
    /// Some servers of a cluster, and how to reach the others.
    Cluster { seeds: Vec<Target>, template: TargetTemplate },
}

impl RedisOptions {
    /// Checks the options as far as possible without a connection. For TLS the process must have installed
    /// the default rustls provider.
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
        if !(1..=MAX_PARTITIONS).contains(&self.partitions) {
            return Err(OptionsError::Partitions(self.partitions));
        }
        if self.password.is_some() && self.password_file.is_some() {
            return Err(OptionsError::TwoPasswords);
        }
        let servers = |database| -> Result<TargetTemplate, OptionsError> {
            let file = self.password_file.as_ref();
            let template =
                self.template(database, self.username.as_deref(), self.password.as_ref(), file.is_some())?;
            match file {
                None => Ok(template),
                Some(file) => {
                    let login = PasswordFile::new(file.clone(), self.username.clone());
                    login.read_now().map_err(|error| OptionsError::PasswordFile(error.to_string()))?;
                    Ok(template.with_login(login))
                }
            }
        };
        match &self.topology {
            Topology::Standalone { .. } if self.endpoints.len() > 1 => Err(OptionsError::Several),
            Topology::Standalone { database } => {
                let target = self.targets(&servers(*database)?).pop();
                target.map(ConnectPlan::Standalone).ok_or(OptionsError::NoEndpoint)
            }
            Topology::Sentinel { master, username, password } => {
                if master.is_empty() || master.bytes().any(|b| !b.is_ascii_graphic()) {
                    return Err(OptionsError::Master(master.clone()));
                }
                let sentinels =
                    self.targets(&self.template(0, username.as_deref(), password.as_ref(), false)?);
                Ok(ConnectPlan::Sentinel(Sentinels::new(sentinels, master.clone(), servers(0)?)))
            }
            Topology::Cluster => {
                let template = servers(0)?;
                Ok(ConnectPlan::Cluster { seeds: self.targets(&template), template })
            }
        }
    }

    fn targets(&self, template: &TargetTemplate) -> Vec<Target> {
        let target = |Endpoint { host, port }: &Endpoint| template.target(host, *port);
        self.endpoints.iter().filter_map(target).collect()
    }

    /// Returns how to reach servers with these credentials.
    fn template(
        &self,
        database: u32,
        username: Option<&str>,
        password: Option<&Secret>,
        has_file: bool,
    ) -> Result<TargetTemplate, OptionsError> {
        // With RESP2 and without CLIENT SETINFO, the user needs no right to HELLO and CLIENT.
        let settings = RedisConnectionInfo::default().set_db(database.into());
        let mut settings = settings.set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name();
        match password {
            Some(password) => settings = settings.set_password(password.expose()),
            None if username.is_some() && !has_file => return Err(OptionsError::NoPassword),
            None => {}
        }
        if let Some(username) = username {
            settings = settings.set_username(username);
        }
        let Endpoint { host, port } = self.endpoints.first().ok_or(OptionsError::NoEndpoint)?.clone();
        let address = match self.tls {
            None if host.starts_with('/') => ConnectionAddr::Unix(host.into()),
            None => ConnectionAddr::Tcp(host, port),
            Some(_) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        };
        let info = address.into_connection_info().map_err(|error| OptionsError::Url(error.to_string()))?;
        let info =
            info.set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_nodelay(true));
        Ok(TargetTemplate::new(match &self.tls {
            None => info,
            Some(tls) => tls.add_to(&info)?,
        }))
    }
}

impl Tls {
    /// Adds the certificates to an address that uses TLS.
    fn add_to(&self, info: &ConnectionInfo) -> Result<ConnectionInfo, OptionsError> {
        let Some(provider) = CryptoProvider::get_default() else { return Err(OptionsError::NoTlsProvider) };
        let ca = self.ca.as_deref().map(str::as_bytes);
        if let Some(ca) = ca
            && CertificateDer::pem_slice_iter(ca).next().is_none()
        {
            return Err(OptionsError::Ca("it contains no certificate".into()));
        }
        if let Some(client) = &self.client_certificate {
            client.validate(provider).map_err(OptionsError::ClientCertificate)?;
        }
        // The authority is tried alone first, so that an error names the right one of the two.
        let build = |client_tls| {
            let certificates = TlsCertificates { client_tls, root_cert: ca.map(<[u8]>::to_vec) };
            Client::build_with_tls(info.clone(), certificates)
        };
        build(None).map_err(|error| OptionsError::Ca(error.to_string()))?;
        let client_tls = self.client_certificate.as_ref().map(|client| ClientTlsConfig {
            client_cert: client.certificate.clone().into_bytes(),
            client_key: client.key.clone().into_bytes(),
        });
        let client = build(client_tls).map_err(|error| OptionsError::ClientCertificate(error.to_string()))?;
        Ok(client.get_connection_info().clone())
    }
}

impl ClientCertificate {
    /// Checks that the certificate and the key can be read and belong together. The error repeats nothing of
    /// either.
    fn validate(&self, provider: &CryptoProvider) -> Result<(), String> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(self.certificate.as_bytes()).collect();
        let chain = chain.map_err(|_| "its certificate is not PEM")?;
        if chain.is_empty() {
            return Err("it contains no certificate".into());
        }
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|_| "its key is not PEM")?;
        match CertifiedKey::from_der(chain, key, provider) {
            Ok(_) => Ok(()),
            Err(rustls::Error::InconsistentKeys(_)) => Err("its key belongs to another certificate".into()),
            Err(_) => Err("its certificate or its key is damaged or of an unknown type".into()),
        }
    }
}
