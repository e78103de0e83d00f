//! The URL of one server.

use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

use super::error::OptionsError;

/// Parses the URL of one server.
pub(super) fn parse(url: &str) -> Result<ConnectionInfo, OptionsError> {
    if !url.starts_with("redis://") && !url.starts_with("rediss://") {
        return Err(OptionsError::Scheme);
    }
    let info = url.into_connection_info().map_err(|error| {
        // The parser's message names a part of the URL. Only the detail repeats text from it.
        OptionsError::Url(match error.detail() {
            Some(_) => "it has an unknown part".into(),
            None => error.to_string(),
        })
    })?;
    if matches!(info.addr(), ConnectionAddr::TcpTls { insecure: true, .. }) {
        return Err(OptionsError::Insecure);
    }
    // With RESP2 and without CLIENT SETINFO, the user needs no right to HELLO and CLIENT.
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name();
    Ok(info.set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_nodelay(true)))
}

/// Parses the URLs of several servers, which must all use TLS or all not, and name no database.
pub(super) fn parse_all(urls: &[String]) -> Result<Vec<ConnectionInfo>, OptionsError> {
    let infos = urls.iter().map(|url| parse(url)).collect::<Result<Vec<_>, _>>()?;
    let tls = |info: &ConnectionInfo| matches!(info.addr(), ConnectionAddr::TcpTls { .. });
    let Some(first) = infos.first() else { return Err(OptionsError::NoUrl) };
    if infos.iter().any(|info| tls(info) != tls(first)) {
        return Err(OptionsError::Differ);
    }
    if infos.iter().any(|info| info.redis_settings().db() != 0) {
        return Err(OptionsError::Database);
    }
    Ok(infos)
}
