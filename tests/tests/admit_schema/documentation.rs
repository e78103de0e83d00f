//! Every block of YAML in the documentation, applied to a real API server or given to Helm.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use sluice_tests::documentation::{Block, blocks, complete_policy, pages};
use sluice_tests::kubernetes::ControlPlane;
use sluice_tests::process::repository_root;

/// Kinds of objects that the API server of the tests does not have.
const FOREIGN: [&str; 1] = ["argoproj.io/v1alpha1"];

/// Where a block belongs.
enum Use {
    /// Objects to apply.
    Apply(Vec<Value>),
    /// Values of the chart.
    Values,
    /// Objects of other projects.
    Foreign,
}

/// Returns the documents of a text.
fn documents(text: &str) -> Vec<Value> {
    text.split("\n---\n").map(|document| serde_saphyr::from_str(document).expect(document)).collect()
}

/// Sets the fields of an object that it lacks, at every depth.
fn add_missing(object: &mut Value, defaults: &Value) {
    match (object, defaults) {
        (Value::Object(object), Value::Object(defaults)) => {
            for (name, value) in defaults {
                add_missing(object.entry(name).or_insert(Value::Null), value);
            }
        }
        (object @ Value::Null, defaults) => *object = defaults.clone(),
        _ => {}
    }
}

/// Completes a part of a pod or of a Deployment.
fn complete_workload(mut part: Value) -> Value {
    let app = json!({"name": "app", "image": "app"});
    let containers = |spec: &mut Value| {
        for container in spec["containers"].as_array_mut().into_iter().flatten() {
            add_missing(container, &app);
        }
    };
    let labels = json!({"app": "a"});
    if part["kind"] == "Deployment" {
        let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [app]}});
        let spec = json!({"selector": {"matchLabels": labels}, "template": template});
        add_missing(&mut part, &json!({"apiVersion": "apps/v1", "metadata": {"name": "d"}, "spec": spec}));
        containers(&mut part["spec"]["template"]["spec"]);
    } else {
        add_missing(
            &mut part,
            &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [app]}}),
        );
        containers(&mut part["spec"]);
    }
    part
}

fn use_of(block: &Block, values: &Value) -> Use {
    if let Some(policy) = complete_policy(&block.text) {
        return Use::Apply(documents(&policy));
    }
    let found = documents(&block.text);
    let first = &found[0];
    if first["apiVersion"].as_str().is_some_and(|version| FOREIGN.contains(&version)) {
        return Use::Foreign;
    }
    if first["apiVersion"].is_string() {
        return Use::Apply(found);
    }
    let is_value = |name: &String| values.get(name).is_some();
    if first.as_object().is_some_and(|fields| fields.keys().all(is_value)) {
        return Use::Values;
    }
    Use::Apply(found.into_iter().map(complete_workload).collect())
}

fn succeeds(output: Output, block: &Block) {
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{}:{}: {text}\n{}", block.page.display(), block.line, block.text);
}

fn render(plane: &ControlPlane, file: &Path) -> Output {
    let mut helm = Command::new(plane.helm());
    helm.args([
        "template",
        "sluice",
        "charts/sluice",
        "--namespace",
        "sluice-system",
        "--kube-version",
        "1.37.0",
    ]);
    helm.args(["--api-versions", "monitoring.coreos.com/v1", "--api-versions", "cert-manager.io/v1"]);
    helm.arg("--values").arg(file).current_dir(repository_root()).output().expect("helm")
}

#[tokio::test]
async fn admit_accepts_every_block_of_yaml_in_the_documentation_or_helm_renders_it() {
    let plane = ControlPlane::shared().await;
    let folder = tempfile::tempdir().unwrap();
    let values = std::fs::read_to_string(repository_root().join("charts/sluice/values.yaml")).unwrap();
    let values: Value = serde_saphyr::from_str(&values).unwrap();
    for namespace in ["documentation", "shop", "sluice-system", "quickstart"] {
        plane.kubectl().args(["create", "namespace", namespace]).output().unwrap();
    }
    let (mut applied, mut rendered) = (0, 0);
    for block in pages().iter().flat_map(|page| blocks(page)).filter(|block| block.language == "yaml") {
        let file = folder.path().join("block.json");
        match use_of(&block, &values) {
            Use::Foreign => {}
            Use::Values => {
                std::fs::write(&file, &block.text).unwrap();
                succeeds(render(plane, &file), &block);
                rendered += 1;
            }
            Use::Apply(objects) => {
                for object in objects {
                    std::fs::write(&file, object.to_string()).unwrap();
                    let mut kubectl = plane.kubectl();
                    // Strict validation refuses unknown fields.
                    kubectl.args([
                        "apply",
                        "--server-side",
                        "--force-conflicts",
                        "--dry-run=server",
                        "--validate=strict",
                    ]);
                    succeeds(kubectl.arg("--filename").arg(&file).output().unwrap(), &block);
                    applied += 1;
                }
            }
        }
    }
    assert!(applied >= 50 && rendered >= 6, "{applied} objects, {rendered} files of values");
}
