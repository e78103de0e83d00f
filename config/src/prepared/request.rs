//! The attributes of a request that limits look at.

use std::borrow::Cow;
use std::net::IpAddr;

use http::{HeaderMap, Method};

use crate::path::normalize;

/// The attributes of a request that limits look at.
#[derive(Debug, Clone, Copy)]
pub struct RequestAttributes<'a> {
    /// Method of the request.
    pub method: &'a Method,
    /// Path as the client wrote it, without the query.
    pub path: &'a str,
    /// Headers of the request.
    pub headers: &'a HeaderMap,
    /// Address of the peer that opened the connection.
    pub peer: IpAddr,
}

impl<'a> RequestAttributes<'a> {
    /// Returns the path in the normal form in which limits compare it. Callers compute it once per request.
    #[must_use]
    pub fn normal_path(&self) -> Cow<'a, str> {
        normalize(self.path)
    }
}
