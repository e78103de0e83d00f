//! Somebody answers who is no Redis, or answers are garbled on their way.

use std::time::Duration;

use sluice_store::failure::StoreFault::{self, Nonsense, ReadOnly, Refused, Slow, Unreachable};
use sluice_store::{CheckRequest, Counter, RedisOptions, RedisStore, StoreError};

use crate::case::{BUDGET, Case};
use crate::load::{UNLIMITED, counter, limits};
use crate::proxy::{Garble, Mode, Proxy};
use crate::support::eventually;
use crate::verdict::Lost;
use crate::{Server, turn};

const LOADED: Duration = Duration::from_millis(1_500);

fn spoilt(name: &'static str, ways: Vec<(&str, StoreFault, Mode)>) {
    let _turn = turn();
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.redis.port);
    let mut case = Case::start(name, [proxy.url(), proxy.url()], BUDGET);
    case.goes_on(LOADED);
    let allowed: Vec<_> = ways.iter().map(|(_, fault, _)| *fault).collect();
    for (what, fault, mode) in ways {
        proxy.set(mode);
        case.broke();
        println!("{name}: {}", what.escape_debug());
        case.is_named(fault);
        let back = case.ends();
        proxy.set(Mode::Pass);
        case.recovers(back);
    }
    case.goes_on(LOADED);
    case.judge(&mut server.redis.connection(), &allowed, Lost::Replies);
}

#[test]
fn store_survives_a_server_that_is_no_redis() {
    let ways = [
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
    let ways = ways.map(|(fault, bytes)| {
        let what = std::str::from_utf8(&bytes[..bytes.len().min(40)]).unwrap_or("0xff");
        (what, fault, Mode::CheckResponse(bytes.to_vec()))
    });
    spoilt("no Redis", ways.into());
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
fn store_survives_answers_that_are_cut_or_mixed() {
    let ways: [(&str, StoreFault, Garble); 12] = [
        ("cut, and closed", Unreachable, |_| vec![]),
        ("half of one, then a whole one", Nonsense, |reply| [half(reply), array(reply)].concat()),
        ("all but the last element", Nonsense, |reply| array(&reply[..reply.len() - 1])),
        ("an element too many", Nonsense, |reply| array(reply.iter().chain([&0]))),
        ("a second reply in the first", Nonsense, |reply| array(reply.iter().chain(reply))),
        ("the time and nothing else", Slow, |reply| array(&reply[..1])),
        ("an element announced that never comes", Slow, |reply| {
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
        ("all negative", Nonsense, |reply| array(reply.iter().map(|n| -n).collect::<Vec<_>>().iter())),
        ("all too large", Nonsense, |reply| {
            array(reply.iter().map(|n| n | 1 << 60).collect::<Vec<_>>().iter())
        }),
    ];
    let mut ways: Vec<_> = ways.map(|(what, fault, garble)| (what, fault, Mode::Garble(garble))).into();
    ways.push(("cut, and silence", Slow, Mode::Cut));
    spoilt("answers cut or mixed", ways);
}

/// Such a reply has the right shape, and would admit everybody.
#[tokio::test]
async fn store_does_not_believe_that_more_were_admitted_than_asked() {
    let _turn = turn();
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.redis.port);
    let options = RedisOptions { latency_budget: Duration::from_secs(5), ..RedisOptions::new(proxy.url()) };
    let store = RedisStore::start(options).unwrap();
    // A check of cost 2 is answered by how many are admitted.
    let limit = limits()[UNLIMITED].clone();
    let check = || CheckRequest::from_iter([Counter { cost: 2, ..counter(&limit) }]);
    eventually("it answers", || async { store.check(check()).await.is_ok() }).await;
    proxy.set(Mode::Garble(|reply| {
        let mut reply = reply.to_vec();
        reply[1] += 1;
        array(&reply)
    }));
    assert_eq!(store.check(check()).await, Err(StoreError::Unavailable(Nonsense)));
}
