//! A server that is not Redis, or replies that are damaged on their way.

use std::time::Duration;

use sluice_store::failure::StoreFault::{self, Nonsense, ReadOnly, Refused, Slow, Unreachable};
use sluice_store::{CheckRequest, Counter, RedisOptions, RedisStore, Store as _, StoreError};

use super::case::{BUDGET, Case};
use super::load::{UNLIMITED, counter, limits};
use super::proxy::{Damage, Mode, Proxy};
use super::verdict::Timeouts;
use super::{Server, permit};
use crate::support::eventually;

const LOADED: Duration = Duration::from_millis(1_500);

fn run(name: &'static str, faults: Vec<(&str, StoreFault, Mode)>) {
    let _permit = permit();
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.redis.port);
    let mut case = Case::start(name, [proxy.url(), proxy.url()], BUDGET);
    case.run_for(LOADED);
    let allowed: Vec<_> = faults.iter().map(|(_, fault, _)| *fault).collect();
    for (description, fault, mode) in faults {
        proxy.set(mode);
        case.fault_begins();
        println!("{name}: {}", description.escape_debug());
        case.wait_until_reported(fault);
        let back = case.fault_ends();
        proxy.set(Mode::Pass);
        case.wait_until_recovered(back);
    }
    case.run_for(LOADED);
    case.judge(&mut server.redis.connection(), &allowed, Timeouts::MayBeCounted);
}

#[test]
fn store_survives_a_server_that_is_not_redis() {
    let replies = [
        (Nonsense, &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..]),
        (Nonsense, &[0xff; 4096]),
        (Nonsense, b"\r\n\r\n\r\n"),
        (Nonsense, b"+OK\r\n"),
        (Nonsense, b":1\r\n:2\r\n:3\r\n"),
        (Nonsense, b"$5\r\nhello\r\n"),
        (Nonsense, b"$-1\r\n"),
        (Nonsense, b"*-1\r\n"),
        (Nonsense, b"*0\r\n"),
        (Nonsense, b"*1\r\n:-1\r\n"),
        (Nonsense, b"*1\r\n$13\r\n1700000000000\r\n"),
        (Nonsense, b"*1\r\n*1\r\n:1700000000000\r\n"),
        (Nonsense, b"*3\r\n:1\r\n:2\r\n:3\r\n"),
        (Nonsense, b"*2\r\n:99999999999999999\r\n:9\r\n"),
        (Nonsense, b"%1\r\n:1\r\n:2\r\n"),
        (Nonsense, b"$99999999999999999999\r\n"),
        (Slow, b"*99999999\r\n"),
        (Slow, b"$1000\r\nhel"),
        (Unreachable, b""),
        (Unreachable, b"-LOADING Redis is loading the dataset in memory\r\n"),
        (Unreachable, b"-MASTERDOWN Link with MASTER is down\r\n"),
        (Refused, b"-NOAUTH Authentication required.\r\n"),
        (ReadOnly, b"-MISCONF Redis is configured to save RDB snapshots\r\n"),
        (Slow, b"-BUSY Redis is busy running a script.\r\n"),
        (Nonsense, b"-ERR unknown command 'EVALSHA'\r\n"),
        (Nonsense, b"-NOSCRIPT No matching script.\r\n"),
    ];
    let faults = replies.map(|(fault, bytes)| {
        let description = std::str::from_utf8(&bytes[..bytes.len().min(40)]).unwrap_or("0xff");
        (description, fault, Mode::Reply(bytes.to_vec()))
    });
    run("not Redis", faults.into());
}

fn array<'a>(elements: impl IntoIterator<Item = &'a i64>) -> Vec<u8> {
    let elements: Vec<_> = elements.into_iter().map(|n| format!(":{n}\r\n")).collect();
    format!("*{}\r\n{}", elements.len(), elements.concat()).into_bytes()
}

fn half(reply: &[i64]) -> Vec<u8> {
    let whole = array(reply);
    whole[..whole.len() / 2].to_vec()
}

#[test]
fn store_survives_replies_that_are_cut_or_mixed() {
    let damages: [(&str, StoreFault, Damage); 12] = [
        ("cut, connection closed", Unreachable, |_| vec![]),
        ("half a reply, then a whole one", Nonsense, |reply| [half(reply), array(reply)].concat()),
        ("all but the last element", Nonsense, |reply| array(&reply[..reply.len() - 1])),
        ("one element too many", Nonsense, |reply| array(reply.iter().chain([&0]))),
        ("two replies in one", Nonsense, |reply| array(reply.iter().chain(reply))),
        ("only the time", Slow, |reply| array(&reply[..1])),
        ("an announced element is missing", Slow, |reply| {
            let whole = String::from_utf8(array(reply)).unwrap();
            whole.replacen(&format!("*{}", reply.len()), &format!("*{}", reply.len() + 1), 1).into_bytes()
        }),
        ("strings", Nonsense, |reply| {
            let elements = reply.iter().map(|n| format!("${}\r\n{n}\r\n", n.to_string().len()));
            format!("*{}\r\n{}", reply.len(), elements.collect::<String>()).into_bytes()
        }),
        ("a nil", Nonsense, |reply| {
            let whole = String::from_utf8(array(&reply[..reply.len() - 1])).unwrap();
            let head = format!("*{}", reply.len());
            format!("{}$-1\r\n", whole.replacen(&format!("*{}", reply.len() - 1), &head, 1)).into_bytes()
        }),
        ("an array in an array", Nonsense, |reply| [b"*1\r\n".to_vec(), array(reply)].concat()),
        ("negative numbers", Nonsense, |reply| array(reply.iter().map(|n| -n).collect::<Vec<_>>().iter())),
        ("numbers that are too large", Nonsense, |reply| {
            array(reply.iter().map(|n| n | 1 << 60).collect::<Vec<_>>().iter())
        }),
    ];
    let damage = |(description, fault, damage)| (description, fault, Mode::Damage(damage));
    let mut faults: Vec<_> = damages.map(damage).into();
    faults.push(("cut, then silence", Slow, Mode::Cut));
    run("replies cut or mixed", faults);
}

/// Such a reply has a valid form.
#[tokio::test]
async fn a_reply_that_admits_more_callers_than_there_are_is_invalid() {
    let _permit = permit();
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.redis.port);
    let latency_budget = Duration::from_secs(5);
    let options = RedisOptions { latency_budget, ..RedisOptions::from_url(&proxy.url()).unwrap() };
    let store = RedisStore::start(options).unwrap();
    // The reply to a check of cost 2 contains the number of admitted callers.
    let limit = limits()[UNLIMITED].clone();
    let check = || CheckRequest::from_iter([Counter { cost: 2, ..counter(&limit) }]);
    eventually("the store responds", || async { store.check(check()).await.is_ok() }).await;
    proxy.set(Mode::Damage(|reply| {
        let mut reply = reply.to_vec();
        reply[1] += 1;
        array(&reply)
    }));
    assert_eq!(store.check(check()).await, Err(StoreError::Unavailable(Nonsense)));
}
