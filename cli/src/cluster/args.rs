//! Flags that choose the cluster and the pods.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

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
