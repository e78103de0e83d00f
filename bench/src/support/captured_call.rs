//! The script call that the store sends for one check, captured on its way to Redis and sent again for other
//! keys. It stands for a program that calls the script once a check, and needs no knowledge of the script's
//! arguments.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use sluice_store::Counter;
use smallvec::smallvec;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpListener, TcpStream};

use super::redis_server::patient_store;

/// A captured call whose key can be replaced. The script rejects it once it is older than the store's latency
/// budget.
#[derive(Debug)]
pub(crate) struct CapturedCall {
    words: Vec<Vec<u8>>,
    /// Index of the key among the words.
    key: usize,
}

impl CapturedCall {
    /// Checks a counter in the Redis at `address` through a proxy, and captures the script call.
    pub(crate) async fn capture(address: &str, counter: &Counter) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("redis://{}", listener.local_addr()?);
        let (captured, address) = (Arc::new(Mutex::new(Vec::new())), address.to_owned());
        let writer = captured.clone();
        let proxy = tokio::spawn(async move {
            while let Ok((store, _)) = listener.accept().await {
                tokio::spawn(forward(store, address.clone(), writer.clone()));
            }
        });
        let store = patient_store(&url).await?;
        store.check(smallvec![counter.clone()]).await?;
        let name = store.key(counter);
        drop(store);
        proxy.abort();
        let bytes = std::mem::take(&mut *captured.lock().unwrap_or_else(PoisonError::into_inner));
        for words in parse_commands(&bytes).context("the store sent something other than RESP")? {
            let key = words.iter().position(|word| word == name.as_bytes());
            if let Some(key) = key.filter(|_| words[0] == b"EVALSHA") {
                return Ok(Self { words, key });
            }
        }
        anyhow::bail!("the store sent no script call with the counter's key {name}")
    }

    /// Returns the call with another key.
    pub(crate) fn with_key(&self, key: &str) -> redis::Cmd {
        let mut command = redis::Cmd::new();
        for (index, word) in self.words.iter().enumerate() {
            command.arg(if index == self.key { key.as_bytes() } else { word });
        }
        command
    }
}

/// Forwards a connection both ways, and keeps what the store sends.
async fn forward(store: TcpStream, address: String, captured: Arc<Mutex<Vec<u8>>>) -> std::io::Result<()> {
    let (mut from_redis, mut to_redis) = TcpStream::connect(address).await?.into_split();
    let (mut from_store, mut to_store) = store.into_split();
    tokio::spawn(async move { copy(&mut from_redis, &mut to_store).await });
    let mut buffer = vec![0; 65_536];
    loop {
        let n = from_store.read(&mut buffer).await?;
        if n == 0 {
            return Ok(());
        }
        captured.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..n]);
        to_redis.write_all(&buffer[..n]).await?;
    }
}

/// Parses RESP commands: arrays of bulk strings.
fn parse_commands(mut bytes: &[u8]) -> anyhow::Result<Vec<Vec<Vec<u8>>>> {
    fn number(bytes: &mut &[u8], mark: u8) -> anyhow::Result<usize> {
        let end = bytes.windows(2).position(|at| at == b"\r\n").context("a line has no end")?;
        let (line, rest) = (&bytes[..end], &bytes[end + 2..]);
        ensure!(line.first() == Some(&mark), "unexpected line {:?}", String::from_utf8_lossy(line));
        *bytes = rest;
        Ok(std::str::from_utf8(&line[1..])?.parse()?)
    }
    let mut commands = Vec::new();
    while !bytes.is_empty() {
        let mut words = Vec::new();
        for _ in 0..number(&mut bytes, b'*')? {
            let length = number(&mut bytes, b'$')?;
            words.push(bytes.get(..length).context("a string is cut off")?.to_owned());
            bytes = bytes.get(length + 2..).context("a string is cut off")?;
        }
        commands.push(words);
    }
    Ok(commands)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_split_into_words() {
        let found = parse_commands(b"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n").unwrap();
        assert_eq!(found, [vec![b"PING".to_vec()], vec![b"GET".to_vec(), b"a\r\nb".to_vec()]]);
        assert!(parse_commands(b"*1\r\n$4\r\nPI").is_err());
        assert!(parse_commands(b"+OK\r\n").is_err());
    }
}
