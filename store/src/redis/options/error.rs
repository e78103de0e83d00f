//! Options that cannot be used.

use std::time::Duration;

use super::redis_options::MAX_PARTITIONS;

/// Options that cannot be used, and what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// The store was started outside of a tokio runtime.
    #[error("the Redis store was started outside of a tokio runtime: start it within one")]
    NoRuntime,
    /// The URL has another scheme than Redis's.
    #[error(
        "the store's URL must begin with redis://, redis+cluster:// or redis+sentinel://, with rediss for TLS, or with unix:///"
    )]
    Scheme,
    /// The URL cannot be parsed.
    #[error("the store's URL cannot be used: {0}; special characters in it are written as %XX")]
    Url(String),
    /// A single server has several endpoints.
    #[error("the store's URL has several servers: begin it with redis+cluster:// or redis+sentinel://")]
    Several,
    /// The options name no server.
    #[error("the store has no endpoint: name at least one server")]
    NoEndpoint,
    /// A database number for a cluster or for sentinels.
    #[error("the store's URL names a database: clusters and sentinels only support 0, so leave it out")]
    Database,
    /// The master's name is empty or invalid.
    #[error(
        "the store's master name is {0:?}: use the name from `sentinel monitor`, in a URL after the sentinels"
    )]
    Master(String),
    /// The URL ends in `#insecure`.
    #[error(
        "the store's URL ends in #insecure, which would accept any certificate: \
         configure the certificate authority instead"
    )]
    Insecure,
    /// The password is given twice.
    #[error("the store's password is given both in its URL and beside it: remove one")]
    TwoPasswords,
    /// A user without a password.
    #[error("the store's username is given without a password: add the password or remove the username")]
    NoPassword,
    /// The file with the password cannot be read.
    #[error("the file with the store's password cannot be read ({0}): correct its path, or its rights")]
    PasswordFile(String),
    /// A user or a password for sentinels, but the URL names none.
    #[error("the store has a user or a password for sentinels, but its URL names no sentinels: remove them")]
    NoSentinels,
    /// The certificate authority cannot be read.
    #[error("the store's certificate authority cannot be used ({0}): provide certificates in PEM")]
    Ca(String),
    /// A certificate authority for a connection without TLS.
    #[error(
        "the store has a certificate authority, but its URL does not begin with rediss: \
         change the URL, or remove the certificate authority"
    )]
    CaWithoutTls,
    /// The client's certificate or its key cannot be read.
    #[error(
        "the store's client certificate cannot be used ({0}): provide the certificate and its key in PEM"
    )]
    ClientCertificate(String),
    /// A client certificate for a connection without TLS.
    #[error(
        "the store has a client certificate, but its URL does not begin with rediss: \
         change the URL, or remove the client certificate"
    )]
    ClientWithoutTls,
    /// The process has no cryptography provider for TLS.
    #[error("the store uses TLS, but this process has no default rustls provider: install one at startup")]
    NoTlsProvider,
    /// The latency budget is out of range.
    #[error("the store's latency budget is {0:?}: it must be from 1 ms to 10 s")]
    Budget(Duration),
    /// The prefix cannot be part of a key.
    #[error("the store's key prefix is {0:?}: it must be 1 to 64 visible ASCII characters without {{ and }}")]
    Prefix(String),
    /// The number of partitions is out of range.
    #[error("the store has {0} partitions: it must have 1 to {MAX_PARTITIONS}")]
    Partitions(u16),
}
