use serde_json::json;

use super::*;
use crate::injection::inject::tests::config;

/// Returns the settings of a pod, where the installation has 10m to 1 CPU and 32 to 128 MiB.
fn settings(annotations: &[(&str, &str)]) -> (PodSettings, Vec<String>) {
    let resources = r#"{"requests":{"cpu":"10m","memory":"32Mi"},"limits":{"cpu":"1","memory":"128Mi"}}"#;
    let config =
        InjectConfig { resources: crate::injection::config::resources(resources).unwrap(), ..config(true) };
    let annotations = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    PodSettings::new(&config, &annotations.collect())
}

#[test]
fn annotations_change_the_settings_of_the_installation() {
    let (changed, warnings) = settings(&[
        ("sluice.dev/log-level", "info,sluice_store=debug"),
        ("sluice.dev/log-format", "json"),
        ("sluice.dev/workers", "3"),
        ("sluice.dev/cpu-request", "200m"),
        ("sluice.dev/cpu-limit", "2.5"),
        ("sluice.dev/memory-request", "64Mi"),
        ("sluice.dev/memory-limit", "512Mi"),
        ("sluice.dev/ports", "http"),
        ("example.com/other", "x"),
    ]);
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(changed.log.to_string(), "info,sluice_store=debug");
    assert_eq!((changed.log_format, changed.workers), (LogFormat::Json, Some(3)));
    let resources = serde_json::to_value(&changed.resources).unwrap();
    let expected =
        json!({"requests": {"cpu": "200m", "memory": "64Mi"}, "limits": {"cpu": "2.5", "memory": "512Mi"}});
    assert_eq!(resources, expected);
}

#[test]
fn an_annotation_that_cannot_be_used_has_no_effect_and_a_warning_with_its_name() {
    let (unchanged, _) = settings(&[]);
    for (name, bad) in [
        ("sluice.dev/log-level", "inof"),
        ("sluice.dev/log-format", "JSON"),
        ("sluice.dev/workers", "0"),
        ("sluice.dev/workers", "257"),
        ("sluice.dev/cpu-request", "one"),
        ("sluice.dev/cpu-limit", "0"),
        ("sluice.dev/memory-request", "128m"),
        ("sluice.dev/memory-limit", "64"),
        ("sluice.dev/loglevel", "info"),
    ] {
        let (settings, warnings) = settings(&[(name, bad)]);
        assert_eq!(settings, unchanged, "{name}: {bad}");
        assert!(warnings.len() == 1 && warnings[0].contains(name), "{name}: {warnings:?}");
    }
}

#[test]
fn a_request_is_never_above_its_limit_because_the_api_server_would_refuse_the_pod() {
    let of = |annotations: &[(&str, &str)]| {
        let (settings, warnings) = settings(annotations);
        let part = |part: &Option<BTreeMap<String, Quantity>>| part.as_ref().unwrap()["memory"].0.clone();
        (part(&settings.resources.requests), part(&settings.resources.limits), warnings.len())
    };
    let (request, limit) = ("sluice.dev/memory-request", "sluice.dev/memory-limit");
    assert_eq!(of(&[(request, "256Mi")]), ("256Mi".into(), "256Mi".into(), 0));
    assert_eq!(of(&[(limit, "24Mi")]), ("24Mi".into(), "24Mi".into(), 0));
    assert_eq!(of(&[(limit, "1Gi")]), ("32Mi".into(), "1Gi".into(), 0));
    assert_eq!(of(&[(request, "1Gi"), (limit, "24Mi")]), ("32Mi".into(), "128Mi".into(), 1));
}

#[test]
fn warnings_are_few_and_short() {
    let long = "x".repeat(10_000);
    let names: Vec<String> = (0..100).map(|number| format!("sluice.dev/unknown-{number}")).collect();
    let mut annotations: Vec<(&str, &str)> =
        names.iter().map(|name| (name.as_str(), long.as_str())).collect();
    for name in
        ["sluice.dev/log-level", "sluice.dev/log-format", "sluice.dev/workers", "sluice.dev/cpu-limit"]
    {
        annotations.push((name, &long));
    }
    let (_, warnings) = settings(&annotations);
    assert_eq!(warnings.len(), MAX_WARNINGS);
    for annotation in annotations {
        let (_, warnings) = settings(&[annotation]);
        assert!(warnings.len() == 1 && warnings[0].len() < 300, "{warnings:?}");
    }
}

#[test]
fn a_resource_without_a_limit_keeps_none() {
    let none = InjectConfig { resources: ResourceRequirements::default(), ..config(true) };
    let annotations = [("sluice.dev/cpu-request".to_owned(), "2".to_owned())].into();
    let (settings, warnings) = PodSettings::new(&none, &annotations);
    assert!(warnings.is_empty() && settings.resources.limits.unwrap().is_empty());
}
