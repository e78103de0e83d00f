//! Credentials and certificates that belong to a store's URL but come from elsewhere: from files or a Secret.

use super::error::OptionsError;
use super::redis_options::{ClientCertificate, RedisOptions, Secret, Tls, Topology};

/// Credentials and certificates from outside of a store's URL.
#[derive(Debug, Default)]
pub struct StoreCredentials {
    /// User at the servers that hold counters. Replaces the user in the URL.
    pub username: Option<String>,
    /// Password at these servers.
    pub password: Option<Secret>,
    /// User at the sentinels.
    pub sentinel_username: Option<String>,
    /// Password at the sentinels.
    pub sentinel_password: Option<Secret>,
    /// See [`Tls::ca`].
    pub ca: Option<String>,
    /// See [`Tls::client_certificate`].
    pub client_certificate: Option<ClientCertificate>,
}

impl RedisOptions {
    /// Adds credentials and certificates to options from a URL.
    ///
    /// # Errors
    /// The URL has a password too, names no sentinels for their credentials, or does not use TLS for the
    /// certificates.
    pub fn with_credentials(mut self, credentials: StoreCredentials) -> Result<Self, OptionsError> {
        let StoreCredentials {
            username: user,
            password: secret,
            sentinel_username,
            sentinel_password,
            ca,
            client_certificate,
        } = credentials;
        if self.password.is_some() && secret.is_some() {
            return Err(OptionsError::TwoPasswords);
        }
        (self.username, self.password) = (user.or(self.username), secret.or(self.password));
        match &mut self.topology {
            Topology::Sentinel { username, password, .. } => {
                (*username, *password) = (sentinel_username, sentinel_password);
            }
            _ if sentinel_username.is_some() || sentinel_password.is_some() => {
                return Err(OptionsError::NoSentinels);
            }
            _ => {}
        }
        match &mut self.tls {
            Some(tls) => *tls = Tls { ca, client_certificate },
            None if ca.is_some() => return Err(OptionsError::CaWithoutTls),
            None if client_certificate.is_some() => return Err(OptionsError::ClientWithoutTls),
            None => {}
        }
        Ok(self)
    }
}
