//! The service in place of envoyproxy/ratelimit.

use tempfile::TempDir;
use tokio::net::TcpStream;

use super::redis::Redis;
use crate::client::get;
use crate::process::{Process, binary, free_port};
use crate::wait::until;

/// The service as a process, by ratelimit's environment variables and a folder of rules.
#[derive(Debug)]
pub struct Service {
    /// The process.
    pub process: Process,
    /// Has the rules in `config/shop.yaml`.
    pub folder: TempDir,
    /// The gRPC port.
    pub grpc: u16,
    /// The port of `/json` and `/healthcheck`.
    pub http: u16,
    /// The port of `/readyz` and `/metrics`.
    pub admin: u16,
}

impl Service {
    /// Starts it with these rules and a Redis, and waits until it is ready.
    ///
    /// # Panics
    /// The files cannot be written, or it does not become ready.
    pub async fn start(rules: &str, redis: &Redis) -> Self {
        Self::start_with(rules, redis, &[]).await
    }

    /// Starts it with more variables.
    ///
    /// # Panics
    /// The files cannot be written, or it does not become ready.
    pub async fn start_with(rules: &str, redis: &Redis, more: &[(&'static str, String)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(folder.path().join("config")).expect("a folder of rules");
        std::fs::write(folder.path().join("config/shop.yaml"), rules).expect("a file of rules");
        let [grpc, http, debug, admin, clients] = [(); 5].map(|()| free_port());
        let mut environment = vec![
            ("RUNTIME_ROOT", folder.path().display().to_string()),
            ("REDIS_SOCKET_TYPE", "tcp".to_owned()),
            ("REDIS_URL", redis.url.replace("redis://", "")),
            ("GRPC_HOST", "127.0.0.1".to_owned()),
            ("GRPC_PORT", grpc.to_string()),
            ("PORT", http.to_string()),
            ("DEBUG_PORT", debug.to_string()),
            ("USE_STATSD", "false".to_owned()),
            ("SLUICE_ADMIN", format!("127.0.0.1:{admin}")),
            ("SLUICE_DEBUG", format!("127.0.0.1:{clients}")),
            ("SLUICE_LATENCY_BUDGET", "500ms".to_owned()),
        ];
        environment.extend_from_slice(more);
        let arguments = ["--compat", "ratelimit"].map(str::to_owned);
        let log = folder.path().join("log");
        let process = Process::start(&binary("sluice-service"), &arguments, &environment, &log, "TERM");
        let service = Self { process, folder, grpc, http, admin };
        until("the service is ready", async || {
            TcpStream::connect(("127.0.0.1", admin)).await.ok()?;
            (get(&service.at(admin), "/readyz", &[]).await.status == 200).then_some(())
        })
        .await;
        service
    }

    /// Returns the address of a port.
    #[must_use]
    pub fn at(&self, port: u16) -> String {
        format!("127.0.0.1:{port}")
    }
}
