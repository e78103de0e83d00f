//! Stores whose URL names one server, behind which there are several: a server of a cluster, and proxies that send each call to
//! the server of its first key.

use std::sync::Arc;

use crate::checks::{admitted, counter, failing, healthy, limit, patient, patient_store};
use crate::cluster::Cluster;
use crate::log;
use crate::support::{Redis, eventually};
use redis::{FromRedisValue as _, Value};
use sluice_store::failure::StoreFault;
use sluice_store::{Eviction, FaultCause, RedisOptions, RedisStore, Store as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Which part of a key decides about its server.
#[derive(Clone, Copy)]
enum Hashed {
    Key,
    Tag,
    /// The tag; and like twemproxy, the proxy ends a connection upon a command that it does not know, or that has no key.
    TagStrictly,
}

/// Starts a proxy that sends each command to one of two servers, by its first key. Returns its port.
async fn proxy(servers: Arc<[Redis; 2]>, hashed: Hashed) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let servers = servers.clone();
            tokio::spawn(async move { serve(client, &servers, hashed).await });
        }
    });
    port
}

async fn serve(mut client: TcpStream, servers: &[Redis; 2], hashed: Hashed) -> Option<()> {
    let mut connections = Vec::new();
    for server in servers {
        let client = redis::Client::open(server.url()).ok()?;
        connections.push(client.get_multiplexed_async_connection().await.ok()?);
    }
    let mut received = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let count = client.read(&mut chunk).await.ok().filter(|&count| count > 0)?;
        received.extend_from_slice(&chunk[..count]);
        while let Some((words, length)) = command(&received) {
            received.drain(..length);
            let first = match &words[0].to_ascii_uppercase()[..] {
                b"EVAL" | b"EVALSHA" => words.get(3),
                _ => words.get(1),
            };
            if matches!(hashed, Hashed::TagStrictly) {
                let is_known = |name: &[u8]| [&b"EVAL"[..], b"EVALSHA", b"GET", b"SETRANGE"].contains(&name);
                let has_keys =
                    !words[0].starts_with(b"EVAL") || words.get(2).is_some_and(|count| count != b"0");
                if !is_known(&words[0]) || !has_keys {
                    return None;
                }
            }
            let first = String::from_utf8_lossy(first.map_or(&[][..], Vec::as_slice)).into_owned();
            let tag = first.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
            let part = match hashed {
                Hashed::Key => first.as_str(),
                Hashed::Tag | Hashed::TagStrictly => tag.unwrap_or(&first),
            };
            let at = part.bytes().fold(7u32, |sum, byte| sum.wrapping_mul(31) ^ u32::from(byte)) % 2;
            let mut command = redis::Cmd::new();
            words.iter().for_each(|word| {
                command.arg(word.as_slice());
            });
            let reply: Value =
                command.query_async(&mut connections[at as usize]).await.unwrap_or_else(|error| {
                    Value::SimpleString(format!(
                        "\u{0}{} {}",
                        error.code().unwrap_or("ERR"),
                        error.detail().unwrap_or("")
                    ))
                });
            client.write_all(&encode(&reply)).await.ok()?;
        }
    }
}

/// Reads a command of bulk strings, and the number of its bytes.
fn command(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let value = redis::parse_redis_value(bytes).ok()?;
    let words = Vec::<Vec<u8>>::from_redis_value(value).ok()?;
    let mut command = redis::Cmd::new();
    words.iter().for_each(|word| {
        command.arg(word.as_slice());
    });
    Some((words, command.get_packed_command().len()))
}

fn encode(value: &Value) -> Vec<u8> {
    match value {
        Value::Nil => b"$-1\r\n".to_vec(),
        Value::Int(n) => format!(":{n}\r\n").into_bytes(),
        Value::BulkString(bytes) => [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat(),
        Value::Okay => b"+OK\r\n".to_vec(),
        Value::SimpleString(text) => match text.strip_prefix('\u{0}') {
            Some(error) => format!("-{error}\r\n").into_bytes(),
            None => format!("+{text}\r\n").into_bytes(),
        },
        Value::Array(values) => {
            let mut bytes = format!("*{}\r\n", values.len()).into_bytes();
            values.iter().for_each(|value| bytes.extend(encode(value)));
            bytes
        }
        other => panic!("{other:?}"),
    }
}

async fn cause(store: &RedisStore, cause: FaultCause) {
    eventually(&format!("{cause:?}"), || async { store.fault_cause() == Some(cause) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_before_several_shards_is_named_before_it_admits_too_much() {
    log::keep();
    let servers = Arc::new([Redis::start(&[]), Redis::start(&[])]);
    let url = |port: u16| format!("redis://127.0.0.1:{port}");
    let with = |port: u16, partitions: u16| {
        RedisStore::start(RedisOptions { partitions, ..patient(&url(port)) }).unwrap()
    };
    let by_tag = proxy(servers.clone(), Hashed::Tag).await;
    cause(&with(by_tag, 64), FaultCause::SeveralShards).await;
    // All keys have one tag, so they are on one server.
    let single = with(by_tag, 1);
    healthy(&single).await;
    assert_eq!(admitted(&single, &[counter(&limit("proxy", 7), 1)], 9).await, 7);
    let by_key = proxy(servers, Hashed::Key).await;
    for partitions in [1, 64] {
        cause(&with(by_key, partitions), FaultCause::TagsSpread).await;
    }
    assert!(!log::lines(&["WARN", "enable_hashtagging", &format!("127.0.0.1:{by_key}")]).is_empty());
    assert!(!log::lines(&["WARN", "redis+cluster://", &format!("127.0.0.1:{by_tag}")]).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_knows_few_commands_is_used_without_a_fault() {
    log::keep();
    let servers = Arc::new([Redis::start(&[]), Redis::start(&[])]);
    let port = proxy(servers.clone(), Hashed::TagStrictly).await;
    let url = format!("redis://127.0.0.1:{port}");
    let processes: Vec<_> =
        (0..2).map(|_| RedisStore::start(RedisOptions { partitions: 1, ..patient(&url) }).unwrap()).collect();
    for store in &processes {
        healthy(store).await;
        assert_eq!(store.eviction(), Eviction::NotSeen);
    }
    let limit = limit("strict", 7);
    for (store, expected) in processes.iter().zip([5, 2]) {
        assert_eq!(admitted(store, &[counter(&limit, 1)], 5).await, expected);
    }
    assert!(log::lines(&["WARN", &format!("127.0.0.1:{port}")]).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_a_cluster_is_named_where_the_url_names_one_server() {
    let cluster = Cluster::start(&[]);
    let store = patient_store(&cluster.servers[0].url());
    failing(&store, StoreFault::Nonsense).await;
    assert_eq!(store.fault_cause(), Some(FaultCause::SeveralShards));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keys_of_the_probe_vanish_and_a_single_server_passes() {
    let redis = Redis::start(&[]);
    let store = patient_store(&redis.url());
    healthy(&store).await;
    assert_eq!(admitted(&store, &[counter(&limit("one", 5), 1)], 7).await, 5);
    eventually("only the counter is left", || async { crate::support::keys(&mut redis.connection()) == 1 })
        .await;
}
