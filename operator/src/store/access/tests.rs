use clap::Parser as _;
use k8s_openapi::ByteString;
use rcgen::{CertificateParams, KeyPair};

use super::*;

fn fields(data: &[(&str, &str)]) -> SecretFields {
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    SecretFields::new("my-redis", data.iter().map(|&(field, text)| (field.to_owned(), bytes(text))).collect())
}

fn access_from(url: &str, data: &[(&str, &str)]) -> anyhow::Result<StoreAccess> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let args = Args::parse_from(["operator", "--store-url", url, "--store-secret", "my-redis"]);
    assemble(&args, &fields(&[("key", "AAAAAAAAAAAAAAAAAAAAAA==\n")]), &fields(data))
}

fn certificate() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["sluice".to_owned()]).unwrap().self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

#[test]
fn every_field_of_the_secret_reaches_the_sidecars() {
    let (certificate, key) = certificate();
    let access = access_from(
        "rediss+sentinel://a,b,c/main",
        &[
            ("username", "me"),
            ("password", "one\n"),
            ("sentinel-username", "watcher"),
            ("sentinel-password", "two"),
            ("ca.crt", &certificate),
            ("tls.crt", &certificate),
            ("tls.key", &key),
        ],
    )
    .unwrap();
    let text = |text: &str| Some(text.trim_end().to_owned());
    assert_eq!((access.username, access.password), (text("me"), text("one")));
    assert_eq!((access.sentinel_username, access.sentinel_password), (text("watcher"), text("two")));
    assert_eq!(access.ca, text(&certificate));
    let client = access.client.unwrap();
    assert_eq!((Some(client.certificate), Some(client.key)), (text(&certificate), text(&key)));

    // Empty fields, as some issuers write them, count as absent. A certificate is enough without a password.
    let data = [("tls.crt", certificate.as_str()), ("tls.key", &key), ("ca.crt", ""), ("password", "")];
    let access = access_from("rediss+cluster://a:1,b:2", &data).unwrap();
    assert!(access.ca.is_none() && access.password.is_none() && access.client.is_some());
}

#[test]
fn an_unusable_secret_is_named_without_its_content() {
    let (certificate, key) = certificate();
    let (_, other) = self::certificate();
    let password = ("password", "hunter2");
    for (url, data, expected) in [
        ("redis://a", &[("pasword", "hunter2")][..], "add the field `password`"),
        ("rediss://a", &[password, ("tls.crt", &certificate)], "has `tls.crt` but no `tls.key`"),
        ("rediss://a", &[password, ("tls.key", "hunter2")], "has `tls.key` but no `tls.crt`"),
        ("rediss://a", &[password, ("tls.key", "hunter2"), ("tls.crt", "hunter2")], "client certificate"),
        ("rediss://a", &[("tls.crt", &certificate), ("tls.key", &other)], "belongs to another certificate"),
        ("redis://a", &[("tls.crt", &certificate), ("tls.key", &key)], "does not begin with rediss"),
        ("rediss://a", &[password, ("ca.crt", "hunter2")], "certificate authority"),
        ("redis://a", &[password, ("sentinel-password", "hunter2")], "for sentinels"),
        ("redis+sentinel://a/m", &[password, ("sentinel-username", "hunter2")], "without a password"),
        ("redis+cluster://:hunter2@a", &[password], "both in its URL and beside it"),
    ] {
        let error = format!("{:#}", access_from(url, data).unwrap_err());
        assert!(error.contains("the Secret my-redis") && error.contains(expected), "{url}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn an_unusable_url_is_refused_at_startup() {
    let check = |url: &str| check_url(&Args::parse_from(["operator", "--store-url", url]));
    for url in ["redis://a", "rediss+cluster://a:1,b:2", "redis+sentinel://a,b/main", "memory:"] {
        assert!(check(url).is_ok(), "{url}");
    }
    for (url, expected) in [
        ("http://:hunter2@a", "must begin with redis://"),
        ("redis://:hunter2@a:1,b:2", "redis+cluster:// or redis+sentinel://"),
        ("redis+sentinel://:hunter2@a,b", "master name"),
        ("redis+cluster://:hunter2@a,b:x", "server 2 of 2 has a port"),
    ] {
        let error = format!("{:#}", check(url).unwrap_err());
        assert!(error.starts_with("--store-url: ") && error.contains(expected), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}
