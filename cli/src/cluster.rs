//! The cluster that a command asks, with the rights of the user of the kubeconfig: the flags of all such commands, and the sidecars, whose
//! pages are on the loopback addresses of their pods.

use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use bytes::Bytes;
use clap::Args;
use futures::{StreamExt as _, stream};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sluice_config::DEBUG_PORT;
use sluice_crds::{SERVICE_LABEL, SIDECAR_CONTAINER};
use sluice_host::logging::told;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::output::printable;

/// The cluster.
#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    /// Namespace; by default that of the kubeconfig's context
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Kubeconfig file; by default that of KUBECONFIG, or ~/.kube/config
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

/// The sidecars that are asked.
#[derive(Debug, Args)]
pub(crate) struct SidecarArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Ask only this pod
    #[arg(long, value_name = "POD", conflicts_with_all = ["selector", "address"])]
    pub(crate) pod: Option<String>,
    /// Ask only pods with these labels, such as app=checkout
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "address")]
    pub(crate) selector: Option<String>,
    /// Ask this debug port and no cluster, such as that of sluice run --debug. Nobody can be reset there
    #[arg(long, value_name = "IP:PORT", value_parser = address)]
    pub(crate) address: Option<SocketAddr>,
}

impl ClusterArgs {
    /// Connects, and returns the namespace that the user means.
    pub(crate) async fn connect(&self) -> anyhow::Result<(Client, String)> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let config = match &self.kubeconfig {
            Some(file) => {
                let kubeconfig = Kubeconfig::read_from(file);
                let kubeconfig =
                    kubeconfig.with_context(|| format!("cannot read the kubeconfig {}", file.display()))?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await
            }
            None => Config::from_kubeconfig(&options).await,
        };
        let config = config.context(
            "cannot read the kubeconfig: set KUBECONFIG or pass --kubeconfig. A sluice run or serve on this machine is asked \
             with --address and its --debug port",
        )?;
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).context("cannot connect to the cluster")?;
        Ok((client, namespace))
    }
}

/// Reads the address of a debug port.
fn address(text: &str) -> Result<SocketAddr, String> {
    let text = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    let text =
        text.strip_prefix("localhost:").map_or_else(|| text.to_owned(), |port| format!("127.0.0.1:{port}"));
    text.parse().map_err(|_| "write IP:PORT, such as 127.0.0.1:8793".to_owned())
}

/// Longest time for which a sidecar is asked.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer, in bytes.
const MAX_ANSWER: usize = 64 << 20;

/// Asks the sidecar with this debug port.
async fn ask_address<A: DeserializeOwned>(
    address: SocketAddr,
    path: &str,
    question: Option<&impl Serialize>,
) -> Result<A> {
    let connect = async { TcpStream::connect(address).await.context("cannot connect to the debug port") };
    in_time(async { exchange(connect.await?, path, question).await }).await
}

/// Asks the sidecar of a pod, by a forwarded port.
async fn ask_pod<A: DeserializeOwned>(
    pods: &Api<Pod>,
    name: &str,
    path: &str,
    question: Option<&impl Serialize>,
) -> Result<A> {
    in_time(async {
        let forwarded = pods.portforward(name, &[DEBUG_PORT]).await;
        let mut forwarded = forwarded.map_err(|error| not_forwarded(name, error))?;
        let stream = forwarded.take_stream(DEBUG_PORT).ok_or_else(|| anyhow!("no port was forwarded"))?;
        let answer = exchange(stream, path, question).await;
        // The error of the port forward tells more than the connection that it ended.
        match (answer, forwarded.take_error(DEBUG_PORT)) {
            (Err(error), Some(reason)) => {
                forwarded.abort();
                Err(reason.await.map_or(error, |reason| anyhow!("{}", reason.trim())))
            }
            (answer, _) => answer,
        }
    })
    .await
}

/// Says why a port of a pod cannot be forwarded.
fn not_forwarded(pod: &str, error: kube::Error) -> anyhow::Error {
    match &error {
        kube::Error::Api(status) if status.code == 404 => anyhow!("there is no pod {pod} in the namespace"),
        kube::Error::Api(status) if status.code == 403 => anyhow!(
            "cannot forward port {DEBUG_PORT} of the pod: this needs the right to create pods/portforward in the namespace: {}",
            status.message
        ),
        kube::Error::Api(status) => {
            anyhow!("cannot forward port {DEBUG_PORT} of the pod: {}", status.message)
        }
        _ => anyhow::Error::new(error).context(format!("cannot forward port {DEBUG_PORT} of the pod")),
    }
}

async fn in_time<A>(asking: impl Future<Output = Result<A>>) -> Result<A> {
    match tokio::time::timeout(TIMEOUT, asking).await {
        Ok(answer) => answer,
        Err(_) => bail!("no answer within {} seconds", TIMEOUT.as_secs()),
    }
}

async fn exchange<A: DeserializeOwned>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    path: &str,
    question: Option<&impl Serialize>,
) -> Result<A> {
    let unreachable = "the sidecar does not answer";
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.context(unreachable)?;
    let connection = tokio::spawn(connection);
    let method = if question.is_some() { Method::POST } else { Method::GET };
    let body = question.map(serde_json::to_vec).transpose()?.unwrap_or_default();
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
        .header("connection", "close")
        .body(Full::new(Bytes::from(body)))?;
    let response = sender.send_request(request).await.context(unreachable)?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
    connection.abort();
    let body = body.map_err(|error| anyhow!("the answer is not whole: {error}"))?.to_bytes();
    match status {
        StatusCode::OK => serde_json::from_slice(&body)
            .context("cannot read the answer: this is no debug port, or that of another version of Sluice"),
        StatusCode::BAD_REQUEST => bail!("{}", String::from_utf8_lossy(&body).trim_end()),
        StatusCode::NOT_FOUND => bail!(
            "no page {path}: this is not a debug port of Sluice (sluice run opens one with --debug), or the sidecar is too old: restart its pod"
        ),
        status => bail!("the sidecar answered {status}"),
    }
}

/// Number of pods that are asked at the same time.
const MAX_CONCURRENT: usize = 16;

/// The sidecars that a command asks.
pub(crate) enum Sidecars {
    /// Those of pods, by their names.
    Pods(Box<Api<Pod>>, Vec<String>),
    /// The one with this debug port.
    Address(SocketAddr),
}

/// The answer of one sidecar.
pub(crate) struct SidecarAnswer<T> {
    /// The pod, or the address.
    pub(crate) source: String,
    pub(crate) result: Result<T>,
}

impl Sidecars {
    /// Finds the sidecars of the pods that run, and fails if there are none.
    pub(crate) async fn find(args: &SidecarArgs) -> Result<Self> {
        if let Some(address) = args.address {
            return Ok(Self::Address(address));
        }
        let (client, namespace) = args.cluster.connect().await?;
        let pods = Api::<Pod>::namespaced(client, &namespace);
        if let Some(name) = &args.pod {
            let name = name.strip_prefix("pod/").unwrap_or(name);
            return Ok(Self::Pods(Box::new(pods), vec![name.to_owned()]));
        }
        let mut params = ListParams::default();
        if let Some(selector) = &args.selector {
            params = params.labels(selector);
        }
        let found = pods.list(&params).await;
        let found = found.with_context(|| format!("cannot list the pods of namespace {namespace}"))?;
        let running = found.items.iter().filter(|pod| runs(pod) && (has_sidecar(pod) || is_of_service(pod)));
        let names: Vec<_> = running.filter_map(|pod| pod.metadata.name.clone()).collect();
        if names.is_empty() {
            let labels = args.selector.as_ref().map(|selector| format!(" with the labels {selector}"));
            let labels = labels.unwrap_or_default();
            bail!(
                "no running pod{labels} in namespace {namespace} has a sidecar. To add sidecars, run kubectl label namespace \
                 {namespace} sluice.dev/injection=enabled, and restart the workloads. For another namespace, pass -n"
            );
        }
        Ok(Self::Pods(Box::new(pods), names))
    }

    /// Asks all sidecars, several at a time, and returns the answers in the order of the names.
    pub(crate) async fn ask<Q, A>(&self, path: &str, question: Option<&Q>) -> Vec<SidecarAnswer<A>>
    where
        Q: Serialize + Sync,
        A: DeserializeOwned,
    {
        match self {
            Self::Address(address) => {
                let result = ask_address(*address, path, question).await;
                vec![SidecarAnswer { source: address.to_string(), result }]
            }
            Self::Pods(pods, names) => {
                let asked = names.iter().map(async |name| SidecarAnswer {
                    source: format!("pod {name}"),
                    result: ask_pod(pods, name, path, question).await,
                });
                stream::iter(asked).buffered(MAX_CONCURRENT).collect().await
            }
        }
    }
}

/// The pods that did not answer, one in a line.
pub(crate) struct Silent<'a, T>(pub(crate) &'a [SidecarAnswer<T>]);

impl<T> Display for Silent<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for answer in self.0 {
            if let Err(error) = &answer.result {
                writeln!(f, "{}: {}", answer.source, printable(&told(error.as_ref())))?;
            }
        }
        Ok(())
    }
}

fn runs(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
}

/// Reports whether a pod is one of the service, whose pages are those of a sidecar.
fn is_of_service(pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(SERVICE_LABEL.0)).is_some_and(|value| value == SERVICE_LABEL.1)
}

fn has_sidecar(pod: &Pod) -> bool {
    let Some(PodSpec { containers, init_containers, .. }) = &pod.spec else { return false };
    let mut all = containers.iter().chain(init_containers.iter().flatten());
    all.any(|container| container.name == SIDECAR_CONTAINER)
}
