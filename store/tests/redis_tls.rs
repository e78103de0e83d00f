//! The Redis store over TLS: the authorities that it trusts, and the certificate that it presents.

use sluice_store::failure::StoreFault;
use sluice_store::redis::{ClientCertificate, Endpoint, OptionsError, Tls, Topology};
use sluice_store::{RedisOptions, RedisStore, Store as _, StoreError};

use crate::checks::{admitted, check, counter, failing, limit, patient};
use crate::cluster;
use crate::tls::{Authority, Files, serve};

crate::servers::pass_with_other_servers!();

fn options(port: u16, authority: &Authority) -> RedisOptions {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let tls = Tls { ca: Some(authority.pem.clone()), client_certificate: None };
    RedisOptions { tls: Some(tls), ..patient(&format!("rediss://127.0.0.1:{port}")) }
}

fn with_client_certificate(mut options: RedisOptions, (certificate, key): (String, String)) -> RedisOptions {
    options.tls.as_mut().unwrap().client_certificate = Some(ClientCertificate { certificate, key });
    options
}

async fn is_refused(options: RedisOptions) {
    let store = RedisStore::start(options).unwrap();
    failing(&store, StoreFault::Refused).await;
    let response = store.check(check(&[counter(&limit("refused", 1), 1)])).await;
    assert_eq!(response, Err(StoreError::Unavailable(StoreFault::Refused)));
}

#[tokio::test]
async fn store_trusts_only_the_configured_authority() {
    let authority = Authority::new();
    let (_redis, port) = serve(&Files::new(&authority, "127.0.0.1"), "no");
    let store = RedisStore::start(options(port, &authority)).unwrap();
    assert_eq!(admitted(&store, &[counter(&limit("tls", 3), 1)], 5).await, 3);
    is_refused(options(port, &Authority::new())).await;
    // No public authority signed the server's certificate.
    is_refused(RedisOptions { tls: Some(Tls::default()), ..options(port, &authority) }).await;
}

#[tokio::test]
async fn store_rejects_a_server_with_another_name() {
    let authority = Authority::new();
    let (_redis, port) = serve(&Files::new(&authority, "other.example"), "no");
    is_refused(options(port, &authority)).await;
}

#[tokio::test]
async fn store_presents_its_certificate_to_a_server_that_requires_one() {
    let authority = Authority::new();
    let (_redis, port) = serve(&Files::new(&authority, "127.0.0.1"), "yes");
    is_refused(options(port, &authority)).await;
    is_refused(with_client_certificate(options(port, &authority), Authority::new().issue("client"))).await;
    let store =
        RedisStore::start(with_client_certificate(options(port, &authority), authority.issue("client")))
            .unwrap();
    assert_eq!(admitted(&store, &[counter(&limit("tls", 3), 1)], 5).await, 3);
}

#[tokio::test]
async fn store_reaches_all_servers_of_a_cluster_over_tls() {
    let authority = Authority::new();
    let files = Files::new(&authority, "127.0.0.1");
    let path = |file: &str| files.0.path().join(file).to_string_lossy().into_owned();
    let cli_arguments =
        ["--tls", "--cacert", &path("ca"), "--cert", &path("certificate"), "--key", &path("key")];
    let cli_arguments = cli_arguments.map(str::to_owned);
    let (cluster, ports) = cluster::Cluster::start_with_tls(&files.arguments("yes"), &cli_arguments);
    let endpoint = |&port| Endpoint { host: "127.0.0.1".into(), port };
    let options = RedisOptions {
        topology: Topology::Cluster,
        endpoints: ports.iter().map(endpoint).collect(),
        ..with_client_certificate(options(1, &authority), authority.issue("client"))
    };
    let store = RedisStore::start(options).unwrap();
    let limit = limit("tls", 3);
    // The partitions of these keys lie all over the hash slots.
    for key in (0..64).step_by(3) {
        assert_eq!(admitted(&store, &[counter(&limit, key)], 5).await, 3);
    }
    let connected: usize = cluster.servers[..3]
        .iter()
        .map(|server| {
            let clients: String = redis::cmd("CLIENT").arg("LIST").query(&mut server.connection()).unwrap();
            usize::from(clients.contains("cmd=evalsha"))
        })
        .sum();
    assert_eq!(connected, 3, "the store has a connection to every master");
    assert_eq!(store.metrics().errors, 0);
}

#[tokio::test]
async fn unreadable_certificates_are_rejected_without_repeating_them() {
    let authority = Authority::new();
    let good = authority.issue("client");
    let start = |certificate: &str, key: &str| {
        let options =
            with_client_certificate(options(1, &authority), (certificate.to_owned(), key.to_owned()));
        let error = RedisStore::start(options).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        error
    };
    let unreadable = |error| matches!(error, OptionsError::ClientCertificate(_));
    assert!(unreadable(start("hunter2", &good.1)));
    assert!(unreadable(start(&good.0, "hunter2")));
    let other = authority.issue("other");
    assert!(start(&good.0, &other.1).to_string().contains("belongs to another certificate"));
    assert!(unreadable(start(&good.0, "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n")));
    for pem in ["hunter2", "-----BEGIN CERTIFICATE-----\nhunter2\n-----END CERTIFICATE-----\n"] {
        let mut unreadable = Authority::new();
        unreadable.pem = pem.to_owned();
        let error = RedisStore::start(options(1, &unreadable)).unwrap_err();
        assert!(matches!(error, OptionsError::Ca(_)) && !error.to_string().contains("hunter2"), "{error}");
    }
}
