//! Connections to the application that belong to one client.
//!
//! NTLM and Negotiate authenticate a connection and not a request (RFC 4559): whoever sends the next request on it is the same
//! user. Such a connection serves one connection of a client, and ends with it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName};
use hyper::client::conn::http1::SendRequest;

/// The connection to the application that belongs to a client's connection.
#[derive(Debug)]
pub(crate) struct Pinned<B>(Mutex<State<B>>);

#[derive(Debug)]
enum State<B> {
    /// Any connection serves the client.
    Shared,
    /// Only its own serves it, which is idle here unless it is in use or has ended.
    Own(Option<SendRequest<B>>),
}

impl<B> Default for Pinned<B> {
    fn default() -> Self {
        Self(Mutex::new(State::Shared))
    }
}

impl<B> Pinned<B> {
    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports whether the client has a connection of its own.
    pub(crate) fn is_own(&self) -> bool {
        matches!(*self.lock(), State::Own(_))
    }

    /// Gives the client a connection of its own from now on.
    pub(crate) fn pin(&self) {
        let mut state = self.lock();
        if matches!(*state, State::Shared) {
            *state = State::Own(None);
        }
    }

    /// Takes the idle connection. It may still be about to finish its last exchange.
    pub(crate) fn take(&self) -> Option<SendRequest<B>> {
        match &mut *self.lock() {
            State::Shared => None,
            State::Own(idle) => idle.take().filter(|idle| !idle.is_closed()),
        }
    }

    /// Keeps the connection for the client's next request.
    pub(crate) fn give_back(&self, sender: SendRequest<B>) {
        *self.lock() = State::Own(Some(sender));
    }
}

/// Reports whether a request authenticates its connection.
pub(crate) fn authenticates(headers: &HeaderMap) -> bool {
    has_scheme(headers, &AUTHORIZATION)
}

/// Reports whether a response asks for a connection to be authenticated, or goes on with it.
pub(crate) fn asks_to_authenticate(headers: &HeaderMap) -> bool {
    has_scheme(headers, &WWW_AUTHENTICATE)
}

fn has_scheme(headers: &HeaderMap, name: &HeaderName) -> bool {
    let values = headers.get_all(name).iter();
    values.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).any(|challenge| {
        let scheme = challenge.trim_ascii_start().split(u8::is_ascii_whitespace).next().unwrap_or_default();
        [&b"ntlm"[..], b"negotiate"].iter().any(|known| scheme.eq_ignore_ascii_case(known))
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn schemes_that_authenticate_a_connection_are_found() {
        let asks = |values: &[&'static str]| {
            let values = values.iter().map(|value| (WWW_AUTHENTICATE, HeaderValue::from_static(value)));
            asks_to_authenticate(&values.collect())
        };
        assert!(asks(&["NTLM"]) && asks(&["ntlm TlRMTVNTUAAC"]) && asks(&["Basic realm=\"a\"", "Negotiate"]));
        assert!(asks(&["Basic realm=\"a\", negotiate"]));
        assert!(!asks(&[]) && !asks(&["Bearer"]) && !asks(&["Basic realm=\"ntlm\""]) && !asks(&["NTLMv3 a"]));
        let header = |value| [(AUTHORIZATION, HeaderValue::from_static(value))].into_iter().collect();
        assert!(authenticates(&header("Negotiate YIIGhg")) && !authenticates(&header("Bearer ntlm")));
    }
}
