use anyhow::anyhow;
use clap::Parser as _;
use rcgen::{CertificateParams, KeyPair};
use sluice_config::KeySecret;
use sluice_config::store_access::{StoreAccess, StoreChoice};
use sluice_store::redis::{ClientCertificate, Secret, Tls, Topology};

use super::StoreArgs;

#[derive(clap::Parser)]
struct Command {
    #[command(flatten)]
    store: StoreArgs,
}

fn choice(arguments: &[&str]) -> anyhow::Result<StoreAccess> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let command = Command::try_parse_from([&["sluice"], arguments].concat())?;
    match command.store.choice()? {
        StoreChoice::Access(access) => Ok(*access),
        other => Err(anyhow!("{other:?}")),
    }
}

#[test]
fn processes_with_the_same_password_derive_the_same_secret() {
    let secret = |url: &str| choice(&["--store", url]).unwrap().key_secret;
    assert_eq!(secret("redis://:p%40ss@a:6379"), secret("rediss://default:p%40s%73@b:6380/1"));
    assert_eq!(secret("redis://:p%40ss@a"), secret("redis+cluster://u:p%40ss@a:1,b:2"));
    assert_eq!(secret("redis://:p%40ss@a"), secret("rediss+sentinel://u:p%40ss@a,b/main"));
    assert_ne!(secret("redis://:one@a:6379"), secret("redis://:two@a:6379"));
}

#[test]
fn the_url_of_the_store_is_not_printed() {
    assert!(choice(&[]).unwrap_err().to_string().contains("Memory"));
    let command = Command::try_parse_from(["sluice", "--store", "redis://:secret@a"]).unwrap();
    let text = format!("{:?} {:?}", command.store, choice(&["--store", "redis://:secret@a"]));
    assert!(!text.contains("secret@"), "{text}");
}

#[test]
fn an_invalid_store_is_rejected_without_printing_its_password() {
    for text in ["Memory", "MEMORY", "memory:", "", "hunter2@a:6379", "redis:hunter2@a", "keydb://:hunter2@a"]
    {
        let error = format!("{:#}", choice(&["--store", text]).unwrap_err());
        assert!(
            error.starts_with("--store: must be memory, in lower case, or a URL that begins with redis://, "),
            "{error}"
        );
        assert!(!error.contains("hunter2"), "{error}");
    }
    let error = format!("{:#}", choice(&["--store", "redis://:hunter2@a:1,b:2"]).unwrap_err());
    assert!(error.starts_with("--store: ") && error.contains("several servers"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn arguments_for_redis_are_rejected_with_memory() {
    let rejected = |arguments: &[&str]| {
        let text = choice(arguments).unwrap_err().to_string();
        text.split_once(": not allowed with --store memory").map(|(names, _)| names.to_owned())
    };
    // The file is not even read.
    assert_eq!(rejected(&["--key-secret-file", "/nowhere"]).as_deref(), Some("--key-secret-file"));
    let memory = ["--store", "memory", "--store-ca", "a", "--store-cert", "b", "--store-key", "c"];
    assert_eq!(rejected(&memory).as_deref(), Some("--store-ca, --store-cert, --store-key"));
    let sentinel = ["--store-sentinel-username", "a", "--store-sentinel-password-file", "b"];
    let both = "--store-sentinel-username, --store-sentinel-password-file";
    assert_eq!(rejected(&sentinel).as_deref(), Some(both));
    assert_eq!(rejected(&["--latency-budget", "1s"]), None);
}

#[test]
fn a_key_secret_can_come_from_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("secret");
    let choice = || choice(&["--store", "redis://a", "--key-secret-file", file.to_str().unwrap()]);
    assert!(choice().unwrap_err().to_string().contains("--key-secret-file"));
    std::fs::write(&file, "AAAA\n").unwrap();
    assert!(choice().unwrap_err().to_string().contains("16 bytes"));
    std::fs::write(&file, "AAAAAAAAAAAAAAAAAAAAAA==\n").unwrap();
    assert_eq!(choice().unwrap().key_secret, KeySecret::new([0; 16]));
}

#[test]
fn certificates_and_the_password_for_the_sentinels_come_from_files() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let issued = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["a".to_owned()]).unwrap().self_signed(&issued).unwrap();
    let client = ClientCertificate { certificate: certificate.pem(), key: issued.serialize_pem() };
    let [ca, cert, key, password] = [
        ("ca", client.certificate.as_str()),
        ("cert", &client.certificate),
        ("key", &client.key),
        ("password", "hunter2\n"),
    ]
    .map(|(name, text)| file(name, text));
    let store = ["--store", "rediss+sentinel://a/main"];
    let files = ["--store-ca", &ca, "--store-cert", &cert, "--store-key", &key];
    let sentinel = ["--store-sentinel-username", "watcher", "--store-sentinel-password-file", &password];
    let redis = choice(&[&store[..], &files, &sentinel].concat()).unwrap().redis;
    let tls = Tls { ca: Some(client.certificate.clone()), client_certificate: Some(client) };
    assert_eq!(redis.tls, Some(tls));
    let (username, password) = (Some("watcher".into()), Some(Secret::new("hunter2")));
    assert_eq!(redis.topology, Topology::Sentinel { master: "main".into(), username, password });

    let swapped = ["--store-ca", &ca, "--store-cert", &key, "--store-key", &cert];
    let error = format!("{:#}", choice(&[&store[..], &swapped].concat()).unwrap_err());
    assert!(error.starts_with("--store: the store's client certificate cannot be used"), "{error}");

    for one in [&files[2..4], &files[4..]] {
        let error = choice(&[&store[..], one].concat()).unwrap_err().to_string();
        assert!(error.contains("--store-key") && error.contains("--store-cert"), "{error}");
    }
    let error = choice(&[&store[..], &["--store-ca", "/nowhere"]].concat()).unwrap_err();
    assert!(error.to_string().contains("--store-ca /nowhere"), "{error}");
}

#[test]
fn the_number_of_partitions_and_the_budget_are_checked() {
    let with = |argument: &str, value: &str| choice(&["--store", "redis://a", argument, value]);
    assert_eq!(choice(&["--store", "redis://a"]).unwrap().redis.partitions, 64);
    assert_eq!(with("--store-partitions", "1024").unwrap().redis.partitions, 1024);
    for number in ["0", "1025"] {
        let error = with("--store-partitions", number).unwrap_err().to_string();
        assert!(error.contains("--store-partitions") && error.contains("1..=1024"), "{error}");
    }
    let error = format!("{:#}", with("--latency-budget", "11s").unwrap_err());
    assert!(error.starts_with("--store: the store's latency budget is 11s"), "{error}");
}
