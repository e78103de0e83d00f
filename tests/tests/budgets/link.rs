//! A link to a server, whose answers can be held back while questions still pass.

use std::sync::Arc;

use sluice_tests::process::free_port;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How many answers pass, counted by pieces. All of them, unless some are held back.
const ALL: usize = usize::MAX;

/// A link to a server on this machine.
pub(crate) struct Link {
    pub(crate) port: u16,
    passes: Arc<watch::Sender<usize>>,
}

impl Link {
    pub(crate) async fn to(server: String) -> Self {
        let port = free_port();
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let passes = Arc::new(watch::Sender::new(ALL));
        let all = passes.clone();
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(carry(client, server.clone(), all.clone()));
            }
        });
        Self { port, passes }
    }

    /// Holds all answers back after so many more.
    pub(crate) fn hold_after(&self, answers: usize) {
        self.passes.send_replace(answers);
    }

    /// Lets all answers pass again, also those that were held back.
    pub(crate) fn release(&self) {
        self.passes.send_replace(ALL);
    }
}

async fn carry(client: TcpStream, server: String, passes: Arc<watch::Sender<usize>>) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
    let mut answer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from_server.read(&mut answer).await {
        let mut changes = passes.subscribe();
        let has_room = |passes: &mut usize| match *passes {
            ALL => true,
            0 => false,
            _ => {
                *passes -= 1;
                true
            }
        };
        let mut is_let = false;
        while !is_let {
            passes.send_if_modified(|passes| {
                is_let = has_room(passes);
                false
            });
            if !is_let && changes.changed().await.is_err() {
                return;
            }
        }
        if to_client.write_all(&answer[..length]).await.is_err() {
            return;
        }
    }
}
