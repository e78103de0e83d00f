//! The chart as a release of Helm 3 and of Helm 4, which applies on the server, on a real API server: installed, upgraded from one Helm
//! to the other and back, and uninstalled. What the operator writes stays.

use serde_json::{Value, json};
use sluice_tests::kubernetes::ControlPlane;
use sluice_tests::process::repository_root;

const SYSTEM: &str = "sluice-system";

struct Cluster {
    plane: ControlPlane,
}

impl Cluster {
    /// A control plane without the CRDs, which the chart brings.
    async fn start() -> Self {
        let this = Self { plane: ControlPlane::start().await };
        this.kubectl(&["delete", "crd", "--all"]);
        this
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.plane.kubectl().args(arguments).output().expect("kubectl");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn get(&self, object: &str) -> Value {
        let json = self.kubectl(&["-n", SYSTEM, "get", object, "-o", "json"]);
        serde_json::from_str(&json).expect("an object")
    }

    fn helm(&self, major: &str, arguments: &[&str]) {
        let mut helm = std::process::Command::new(self.plane.helm_of(major));
        helm.args(arguments).args(["--namespace", SYSTEM]).arg("--kubeconfig").arg(self.plane.kubeconfig());
        let output = helm.current_dir(repository_root()).output().expect("Helm");
        assert!(output.status.success(), "Helm {major} {arguments:?}: {output:?}");
    }

    fn upgrade(&self, major: &str, more: &[&str]) {
        let upgrade =
            ["upgrade", "--install", "sluice", "charts/sluice", "--create-namespace", "--reset-values"];
        self.helm(major, &[&upgrade, more].concat());
    }

    /// Writes the `caBundle` of a webhook as the operator does.
    fn trust(&self) {
        let patch =
            json!([{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": self.authority()}])
                .to_string();
        let patch = ["--type=json", "--field-manager=sluice-operator", "-p", &patch];
        self.kubectl(&[&["patch", "mutatingwebhookconfiguration", "sluice"], &patch[..]].concat());
    }

    fn authority(&self) -> String {
        use base64::Engine as _;
        let pem = std::fs::read(self.plane.directory().join("tls.crt")).expect("a certificate");
        base64::engine::general_purpose::STANDARD.encode(pem)
    }

    fn expect(&self, replicas: u64, network_policy: bool, because: &str) {
        assert_eq!(self.get("deployment/sluice-operator")["spec"]["replicas"], replicas, "{because}");
        let policies = self.get("networkpolicies")["items"].as_array().expect("a list").len();
        assert_eq!(policies > 0, network_policy, "{because}: {policies} NetworkPolicies");
        let webhooks = self.get("mutatingwebhookconfiguration/sluice");
        assert_eq!(webhooks["webhooks"][0]["clientConfig"]["caBundle"], self.authority(), "{because}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_3_and_helm_4_upgrade_what_the_other_has_installed() {
    let more = ["--set", "operator.networkPolicy.enabled=true", "--set", "operator.replicas=3"];
    let cluster = Cluster::start().await;
    for (first, second) in [("4", "3"), ("3", "4")] {
        // The second time the CRDs are there: Helm leaves them.
        cluster.upgrade(first, &more);
        cluster.trust();
        cluster.expect(3, true, &format!("installed by Helm {first}"));
        cluster.upgrade(first, &[]);
        cluster.expect(2, false, &format!("values removed by Helm {first}"));
        cluster.upgrade(second, &more);
        cluster.expect(3, true, &format!("upgraded by Helm {second}"));
        cluster.upgrade(second, &[]);
        cluster.expect(2, false, &format!("values removed by Helm {second} after Helm {first}"));
        cluster.upgrade("4", &["--server-side=true"]);
        cluster.expect(2, false, "applied on the server");
        cluster.helm(second, &["uninstall", "sluice"]);
        assert!(cluster.kubectl(&["get", "mutatingwebhookconfigurations", "-o", "name"]).is_empty());
        assert!(cluster.kubectl(&["get", "crd", "-o", "name"]).contains("ratelimitpolicies.sluice.dev"));
    }
}
