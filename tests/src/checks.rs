//! An application that asks the service over HTTPS, with curl.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};

use crate::node::run;

/// The name in the certificate of the service.
const NAME: &str = "sluice-service";

/// The HTTP door of a service.
#[derive(Debug)]
pub struct Door<'a> {
    /// Its address.
    pub address: SocketAddr,
    /// The file with the authority of its certificate.
    pub authority: &'a Path,
    /// Arguments of curl that tell who asks.
    pub caller: Vec<String>,
}

impl Door<'_> {
    /// Posts a body. Returns the status and the answer, or 0 and the error of curl.
    #[must_use]
    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let Self { address, authority, caller } = self;
        let resolve = format!("{NAME}:{}:{}", address.port(), address.ip());
        let url = format!("https://{NAME}:{}{path}", address.port());
        let authority = authority.display().to_string();
        let mut arguments = vec![
            "-sS",
            "--max-time",
            "30",
            "--resolve",
            &resolve,
            "--cacert",
            &authority,
            "-w",
            "\n%{http_code}",
        ];
        arguments.extend(["-H", "content-type: application/json", "--data-binary", "@-"]);
        arguments.extend(caller.iter().map(String::as_str));
        arguments.push(&url);
        let (ok, text) = run("curl", &arguments, &body.to_string());
        let (body, status) = text.trim_end().rsplit_once('\n').unwrap_or((&text, "0"));
        if !ok {
            return (0, json!(text));
        }
        (status.parse().expect("a status"), serde_json::from_str(body).unwrap_or_else(|_| json!(body)))
    }
}
