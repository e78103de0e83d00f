//! Gateways, the service and a sidecar as processes.

use std::path::Path;
use std::time::Duration;

use sluice_tests::client::get;
use sluice_tests::components::Redis;
use sluice_tests::process::{Process, binary, free_port, repository_root};
use sluice_tests::wait::until;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Envoy,
    EnvoyHttp,
    Nginx,
    /// The newest.
    NginxMainline,
    Haproxy,
    Caddy,
    Traefik,
}

impl Kind {
    /// Returns all, Traefik and a second nginx only if they are there, because the build of Traefik takes many minutes.
    pub(crate) fn all() -> Vec<Self> {
        let mut all = vec![Self::Envoy, Self::EnvoyHttp, Self::Nginx, Self::Haproxy, Self::Caddy];
        all.extend(std::env::var_os("SLUICE_TRAEFIK").map(|_| Self::Traefik));
        all.extend(std::env::var_os("SLUICE_NGINX").map(|_| Self::NginxMainline));
        all
    }

    /// Reports whether its configuration shows the state of limits to clients that are admitted.
    pub(crate) fn reports(self) -> bool {
        match self {
            Self::Envoy | Self::EnvoyHttp | Self::Nginx | Self::NginxMainline | Self::Haproxy => true,
            Self::Caddy | Self::Traefik => false,
        }
    }

    /// Reports whether its configuration lets requests pass while no service answers.
    pub(crate) fn opens(self) -> bool {
        self.reports()
    }

    /// Reports whether it shows how long a body is.
    pub(crate) fn shows_length(self) -> bool {
        match self {
            Self::Envoy | Self::Nginx | Self::NginxMainline | Self::Haproxy => true,
            Self::EnvoyHttp | Self::Caddy | Self::Traefik => false,
        }
    }

    /// Returns its name, as a policy may have it.
    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    fn file(self) -> &'static str {
        match self {
            Self::Envoy => "envoy.yaml",
            Self::EnvoyHttp => "envoy-http.yaml",
            Self::Nginx | Self::NginxMainline => "nginx.conf",
            Self::Haproxy => "haproxy.cfg",
            Self::Caddy => "Caddyfile",
            Self::Traefik => "traefik.yaml",
        }
    }
}

/// A gateway as a process, with its configuration in `examples/gateways`.
pub(crate) struct Gateway {
    _process: Process,
    _folder: TempDir,
    pub(crate) address: String,
    /// Its address for clients that speak HTTP/2 at once.
    pub(crate) http2: String,
    /// Its port of HTTP/3, if it has one.
    pub(crate) http3: u16,
}

impl Gateway {
    pub(crate) async fn start(kind: Kind, service: &Service, application: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [port, http2, http3] = [(); 3].map(|()| free_port());
        let address = format!("127.0.0.1:{port}");
        let http2 = match kind {
            Kind::Nginx | Kind::NginxMainline | Kind::Haproxy => format!("127.0.0.1:{http2}"),
            Kind::Envoy | Kind::EnvoyHttp | Kind::Caddy | Kind::Traefik => address.clone(),
        };
        let names = [
            ("sluice:8081", format!("127.0.0.1:{}", service.grpc)),
            ("sluice:8080", format!("127.0.0.1:{}", service.http)),
            (
                "address: sluice, port_value: 8081",
                format!("address: 127.0.0.1, port_value: {}", service.grpc),
            ),
            (
                "address: sluice, port_value: 8080",
                format!("address: 127.0.0.1, port_value: {}", service.http),
            ),
            ("application:80", application.to_owned()),
            ("address: application, port_value: 80", {
                let (_, port) = application.rsplit_once(':').unwrap();
                format!("address: 127.0.0.1, port_value: {port}")
            }),
            ("0.0.0.0, port_value: 8000", format!("127.0.0.1, port_value: {port}")),
            ("listen 8000", format!("listen {address}; listen {http2} http2")),
            ("bind :8000", format!("bind {address}\n    bind {http2} proto h2")),
            ("\n:8000 {", {
                let options = "admin off\nlocal_certs\nskip_install_trust\nservers {\nprotocols h1 h2 h2c h3\n}";
                format!("\n{{\n{options}\n}}\nhttp://:{port}, https://localhost:{http3} {{\n\tbind 127.0.0.1")
            }),
            ("\nhttp {", {
                let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
                let paths: String = paths.iter().map(|name| format!(" {name}_temp_path {name};")).collect();
                format!("\nhttp {{ access_log off;{paths}")
            }),
            // A header of an authorizer, as the page says.
            ("copy_headers Sluice-Charged", "copy_headers Sluice-Charged X-Auth-Request-User".to_owned()),
            ("{ \"sluice-charged\" }", "{ \"sluice-charged\", \"x-auth-request-user\" }".to_owned()),
            ("[Sluice-Charged]", "[Sluice-Charged, X-Auth-Request-User]".to_owned()),
            ("[{exact: sluice-charged}]", "[{exact: sluice-charged}, {exact: x-auth-request-user}]".to_owned()),
            ("proxy_set_header Sluice-Charged", "proxy_set_header X-Auth-Request-User $user;\nproxy_set_header Sluice-Charged".to_owned()),
            ("auth_request_set $sluice_charged", "auth_request_set $user $upstream_http_x_auth_request_user;\nauth_request_set $sluice_charged".to_owned()),
            ("STRICT_DNS", "STATIC".to_owned()),
            ("timeout: 0.2s", "timeout: 10s".to_owned()),
            ("proxy_read_timeout 500ms", "proxy_read_timeout 10s".to_owned()),
            ("proxy_connect_timeout 200ms", "proxy_connect_timeout 10s".to_owned()),
            ("TIMEOUT = 500", "TIMEOUT = 10000".to_owned()),
        ];
        for file in std::fs::read_dir(repository_root().join("examples/gateways")).unwrap() {
            let file = file.unwrap();
            let mut text = std::fs::read_to_string(file.path()).unwrap();
            for (name, value) in &names {
                text = text.replace(name, value);
            }
            std::fs::write(folder.path().join(file.file_name()), text).unwrap();
        }
        let file = folder.path().join(kind.file()).display().to_string();
        let variable = |name: &str| {
            std::env::var(name).unwrap_or_else(|_| panic!("{name} is the path of a gateway: run `make test`"))
        };
        let entry = format!("--entryPoints.web.address={address}");
        let provider = format!("--providers.file.filename={file}");
        let (program, arguments) = match kind {
            Kind::Envoy | Kind::EnvoyHttp => (
                variable("SLUICE_ENVOY"),
                vec!["-c", &file, "--use-dynamic-base-id", "--concurrency", "1", "-l", "warning"],
            ),
            Kind::Nginx | Kind::NginxMainline => {
                let program = match kind {
                    Kind::Nginx => "/usr/sbin/nginx".to_owned(),
                    _ => variable("SLUICE_NGINX"),
                };
                let prefix = folder.path().to_str().unwrap();
                let more = "daemon off; master_process off; pid nginx.pid; error_log stderr;";
                (program, vec!["-p", prefix, "-c", &file, "-g", more])
            }
            Kind::Haproxy => {
                // It reads the script beside its configuration.
                (
                    "/usr/sbin/haproxy".to_owned(),
                    vec!["-db", "-C", folder.path().to_str().unwrap(), "-f", &file],
                )
            }
            Kind::Traefik => (variable("SLUICE_TRAEFIK"), vec![&*entry, &*provider]),
            Kind::Caddy => {
                (variable("SLUICE_CADDY"), vec!["run", "--config", &file, "--adapter", "caddyfile"])
            }
        };
        let arguments: Vec<_> = arguments.into_iter().map(str::to_owned).collect();
        let home = [("HOME", folder.path().display().to_string())];
        let mut process =
            Process::start(Path::new(&program), &arguments, &home, &folder.path().join("log"), "KILL");
        until("the gateway listens", async || {
            assert!(process.is_running(), "{kind:?} has ended:\n{}", process.output());
            TcpStream::connect(&address).await.ok()?;
            // Traefik reads its routes when it listens.
            (kind != Kind::Traefik || get(&address, "/", &[]).await.status != 404).then_some(())
        })
        .await;
        Self { _process: process, _folder: folder, address, http2, http3 }
    }

    /// Sends these bytes, and returns the first status that is answered, 0 for none. A gateway may answer before it has read all of them.
    pub(crate) async fn first_status(&self, request: &[u8]) -> u16 {
        let (mut read, mut write) = TcpStream::connect(&self.address).await.unwrap().into_split();
        let request = request.to_vec();
        let writing = tokio::spawn(async move {
            let _ = write.write_all(&request).await;
            write
        });
        let mut answer = [0; 12];
        let read = tokio::time::timeout(Duration::from_secs(30), read.read_exact(&mut answer)).await;
        drop(writing);
        let status = read.ok().and_then(|read| read.ok()).and_then(|_| str::from_utf8(&answer[9..]).ok());
        status.and_then(|status| status.parse().ok()).unwrap_or(0)
    }
}

/// Starts Caddy in front of another, to which it speaks HTTP/3. Returns it with its address.
pub(crate) async fn over_http3(gateway: &Gateway) -> (Process, TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let (port, file) = (free_port(), folder.path().join("Caddyfile"));
    let transport = "versions 3\ntls_insecure_skip_verify\ntls_server_name localhost";
    let text = format!(
        "{{\nadmin off\n}}\nhttp://:{port} {{\nbind 127.0.0.1\nreverse_proxy https://127.0.0.1:{} {{\nheader_up Host localhost\n\
         transport http {{\n{transport}\n}}\n}}\n}}\n",
        gateway.http3
    );
    std::fs::write(&file, text).unwrap();
    let program = std::env::var("SLUICE_CADDY").expect("SLUICE_CADDY is the path of Caddy: run `make test`");
    let arguments = ["run", "--adapter=caddyfile", "--config"].map(str::to_owned);
    let arguments = [&arguments[..], &[file.display().to_string()]].concat();
    let home = [("HOME", folder.path().display().to_string())];
    let process = Process::start(Path::new(&program), &arguments, &home, &folder.path().join("log"), "KILL");
    let address = format!("127.0.0.1:{port}");
    until("Caddy listens", async || TcpStream::connect(&address).await.ok()).await;
    (process, folder, address)
}

/// `sluice serve`, which waits long for the store of a busy machine.
pub(crate) struct Service {
    process: Process,
    _folder: TempDir,
    pub(crate) grpc: u16,
    pub(crate) http: u16,
    admin: String,
}

impl Service {
    pub(crate) async fn start(policy: &str, redis: &Redis) -> Self {
        Self::start_with(policy, redis, &[]).await
    }

    pub(crate) async fn start_with(policy: &str, redis: &Redis, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policy.yaml");
        std::fs::write(&file, policy).unwrap();
        let [grpc, http, admin] = [(); 3].map(|()| free_port());
        let mut arguments = vec![
            "serve".to_owned(),
            format!("--policy={}", file.display()),
            format!("--store={}", redis.url),
            "--latency-budget=10s".to_owned(),
            "--auth-timeout=20s".to_owned(),
            format!("--grpc=127.0.0.1:{grpc}"),
            format!("--http=127.0.0.1:{http}"),
            format!("--admin=127.0.0.1:{admin}"),
        ];
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        let process = Process::start(&binary("sluice"), &arguments, &[], &folder.path().join("log"), "TERM");
        let admin = format!("127.0.0.1:{admin}");
        until("the service is ready", async || {
            TcpStream::connect(&admin).await.ok()?;
            (get(&admin, "/readyz", &[]).await.status == 200).then_some(())
        })
        .await;
        Self { process, _folder: folder, grpc, http, admin }
    }

    pub(crate) fn log(&self) -> String {
        self.process.output()
    }

    pub(crate) async fn metrics(&self) -> String {
        get(&self.admin, "/metrics", &[]).await.body
    }

    /// Returns the number of questions that got no decision.
    pub(crate) async fn errors(&self) -> u64 {
        let metrics = self.metrics().await;
        let lines = metrics.lines().filter(|line| line.starts_with("sluice_authorizations_total"));
        let errors = lines.filter(|line| line.contains("answer=\"error\""));
        errors.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
    }
}

/// A sidecar with the same policy and counters.
pub(crate) struct Behind {
    _process: Process,
    _folder: TempDir,
    pub(crate) address: String,
}

/// Starts a sidecar in front of an application.
pub(crate) async fn sidecar(policy: &str, redis: &Redis, application: &str, _service: &Service) -> Behind {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, policy).unwrap();
    let [listen, admin] = [(); 2].map(|()| free_port());
    let arguments = [
        "run".to_owned(),
        format!("--policy={}", file.display()),
        format!("--store={}", redis.url),
        "--latency-budget=10s".to_owned(),
        format!("--upstream=http://{application}"),
        format!("--listen=127.0.0.1:{listen}"),
        format!("--admin=127.0.0.1:{admin}"),
    ];
    let process = Process::start(&binary("sluice"), &arguments, &[], &folder.path().join("log"), "TERM");
    let (address, admin) = (format!("127.0.0.1:{listen}"), format!("127.0.0.1:{admin}"));
    until("the sidecar is ready", async || {
        TcpStream::connect(&admin).await.ok()?;
        (get(&admin, "/readyz", &[]).await.status == 200).then_some(())
    })
    .await;
    Behind { _process: process, _folder: folder, address }
}
