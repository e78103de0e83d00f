//! The call that the store sends for one check, as seen on its way to Redis, to be sent again for other clients: what a
//! program would send that calls the store's script once a check. So this knows nothing of the script's arguments.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use sluice_store::{Counter, RedisOptions, RedisStore, StoreHealth};
use sluice_tests::wait::until;
use smallvec::smallvec;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Duration;

/// A call of which the key can be changed. It holds for as long as the store's longest latency budget: 10 s.
#[derive(Debug)]
pub(crate) struct Call {
    words: Vec<Vec<u8>>,
    /// Which of the words is the key.
    key: usize,
}

impl Call {
    /// Asks a store at `address` for a counter, and looks at what it sends.
    pub(crate) async fn see(address: &str, counter: &Counter) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("redis://{}", listener.local_addr()?);
        let (seen, address) = (Arc::new(Mutex::new(Vec::new())), address.to_owned());
        let writer = seen.clone();
        let between = tokio::spawn(async move {
            while let Ok((store, _)) = listener.accept().await {
                tokio::spawn(pass(store, address.clone(), writer.clone()));
            }
        });
        let mut options = RedisOptions::new(url);
        options.latency_budget = Duration::from_secs(10);
        let store = RedisStore::start(options)?;
        until("the store is healthy", async || (store.health() == StoreHealth::Healthy).then_some(())).await;
        store.check(smallvec![counter.clone()]).await?;
        let name = store.key(counter);
        drop(store);
        between.abort();
        let bytes = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
        for words in commands(&bytes).context("the store did not speak RESP")? {
            let key = words.iter().position(|word| word == name.as_bytes());
            if let Some(key) = key.filter(|_| words[0] == b"EVALSHA") {
                return Ok(Self { words, key });
            }
        }
        anyhow::bail!("the store did not call its script with the key of the counter alone")
    }

    /// The same call for another key.
    pub(crate) fn with_key(&self, key: &str) -> redis::Cmd {
        let mut command = redis::Cmd::new();
        for (at, word) in self.words.iter().enumerate() {
            command.arg(if at == self.key { key.as_bytes() } else { word });
        }
        command
    }
}

/// Passes on both ways, and keeps what the store says.
async fn pass(store: TcpStream, address: String, seen: Arc<Mutex<Vec<u8>>>) -> std::io::Result<()> {
    let (mut from_redis, mut to_redis) = TcpStream::connect(address).await?.into_split();
    let (mut from_store, mut to_store) = store.into_split();
    tokio::spawn(async move { copy(&mut from_redis, &mut to_store).await });
    let mut buffer = vec![0; 65_536];
    loop {
        let n = from_store.read(&mut buffer).await?;
        if n == 0 {
            return Ok(());
        }
        seen.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..n]);
        to_redis.write_all(&buffer[..n]).await?;
    }
}

/// The commands in bytes of RESP: arrays of bulk strings.
fn commands(mut bytes: &[u8]) -> anyhow::Result<Vec<Vec<Vec<u8>>>> {
    fn number(bytes: &mut &[u8], mark: u8) -> anyhow::Result<usize> {
        let end = bytes.windows(2).position(|at| at == b"\r\n").context("an open line")?;
        let (line, rest) = (&bytes[..end], &bytes[end + 2..]);
        ensure!(line.first() == Some(&mark), "{:?} is not expected", String::from_utf8_lossy(line));
        *bytes = rest;
        Ok(std::str::from_utf8(&line[1..])?.parse()?)
    }
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let mut words = Vec::new();
        for _ in 0..number(&mut bytes, b'*')? {
            let length = number(&mut bytes, b'$')?;
            words.push(bytes.get(..length).context("an open string")?.to_owned());
            bytes = bytes.get(length + 2..).context("an open string")?;
        }
        all.push(words);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_apart() {
        let found = commands(b"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n").unwrap();
        assert_eq!(found, [vec![b"PING".to_vec()], vec![b"GET".to_vec(), b"a\r\nb".to_vec()]]);
        assert!(commands(b"*1\r\n$4\r\nPI").is_err());
        assert!(commands(b"+OK\r\n").is_err());
    }
}
