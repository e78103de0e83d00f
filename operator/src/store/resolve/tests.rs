use k8s_openapi::ByteString;
use rcgen::{CertificateParams, KeyPair};
use sluice_store::redis::{Tls, Topology};

use super::*;

fn fields(data: &[(&str, &str)]) -> Content {
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    let data = data.iter().map(|&(field, text)| (field.to_owned(), bytes(text))).collect();
    Content { name: "my-redis".to_owned(), type_: None, data }
}

fn access_from(url: &str, data: &[(&str, &str)]) -> anyhow::Result<StoreAccess> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let redis = RedisOptions { partitions: 96, ..RedisOptions::from_url(url)? };
    assemble(redis, KeySecret::new([0; 16]), Some(&fields(data)))
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
    .unwrap()
    .redis;
    let text = |text: &str| text.trim_end().to_owned();
    let secret = |text: &str| Some(redis::Secret::new(text));
    assert_eq!((access.username, access.password), (Some(text("me")), secret("one")));
    let (master, username) = ("main".to_owned(), Some(text("watcher")));
    assert_eq!(access.topology, Topology::Sentinel { master, username, password: secret("two") });
    let client = ClientCertificate { certificate: text(&certificate), key: text(&key) };
    let tls = Tls { ca: Some(text(&certificate)), client_certificate: Some(client) };
    assert_eq!((access.tls, access.partitions), (Some(tls), 96));

    // Empty fields, as some issuers write them, count as absent. A certificate is enough without a password.
    let data = [("tls.crt", certificate.as_str()), ("tls.key", &key), ("ca.crt", ""), ("password", "")];
    let access = access_from("rediss+cluster://a:1,b:2", &data).unwrap().redis;
    let tls = access.tls.unwrap();
    assert!(tls.ca.is_none() && access.password.is_none() && tls.client_certificate.is_some());
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
