//! An API of language models: what it answers is in the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use sluice_tests::wait::until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A running API. A request has these fields: `tokens` that it uses; `stream`; `tools`, for a stream of calls of tools; `end`,
/// which is `nothing` for a response without usage and `cut` for one that breaks; `held`, so that it ends only when the API is
/// released; and `status`.
pub(crate) struct Models {
    pub(crate) port: u16,
    released: watch::Sender<bool>,
    abandoned: Arc<AtomicUsize>,
}

impl Models {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (released, watched) = watch::channel(false);
        let abandoned = Arc::<AtomicUsize>::default();
        let left = abandoned.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (watched, left) = (watched.clone(), left.clone());
                tokio::spawn(async move {
                    if !serve(stream, watched).await {
                        left.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        Self { port, released, abandoned }
    }

    /// Lets all streams end.
    pub(crate) fn release(&self) {
        self.released.send_replace(true);
    }

    /// Waits until so many requests were given up while they were held.
    pub(crate) async fn until_abandoned(&self, requests: usize) {
        until("requests are given up", async || {
            (self.abandoned.load(Ordering::SeqCst) >= requests).then_some(())
        })
        .await;
    }
}

/// Answers the requests of a connection. Returns false if the caller has left while it was held.
async fn serve(mut stream: TcpStream, mut released: watch::Receiver<bool>) -> bool {
    while let Some(ask) = read(&mut stream).await {
        let tokens = ask["tokens"].as_u64().unwrap_or(400);
        let end = ask["end"].as_str().unwrap_or("usage").to_owned();
        if let Some(status) = ask["status"].as_u64() {
            let head = format!(
                "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            continue;
        }
        if ask["stream"] != true {
            let mut answer =
                json!({"object": "chat.completion", "choices": [{"message": {"content": "Hello"}}]});
            if end == "usage" {
                answer["usage"] = json!({"total_tokens": tokens});
            }
            let body = answer.to_string();
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json; charset=utf-8\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            continue;
        }
        // A stream has its usage only if the request asks for it.
        let has_usage = end == "usage" && ask["stream_options"]["include_usage"] == true;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let delta = if ask["tools"] == true {
            json!({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{\"usage\":"}}]})
        } else {
            json!({"content": "word"})
        };
        let part = json!({"object": "chat.completion.chunk", "choices": [{"delta": delta}], "usage": null});
        for _ in 0..3 {
            event(&mut stream, &part.to_string()).await;
        }
        if ask["held"] == true {
            let mut byte = [0; 1];
            tokio::select! {
                _ = released.wait_for(|released| *released) => {}
                _ = stream.read(&mut byte) => return false,
            }
        }
        if end == "cut" {
            return true;
        }
        if has_usage {
            let last =
                json!({"object": "chat.completion.chunk", "choices": [], "usage": {"total_tokens": tokens}});
            event(&mut stream, &last.to_string()).await;
        }
        event(&mut stream, "[DONE]").await;
        let _ = stream.write_all(b"0\r\n\r\n").await;
    }
    true
}

async fn event(stream: &mut TcpStream, data: &str) {
    let text = format!("data: {data}\n\n");
    let chunk = format!("{:x}\r\n{text}\r\n", text.len());
    let _ = stream.write_all(chunk.as_bytes()).await;
}

/// Reads a request, and returns its JSON; `None` at the end of the connection.
async fn read(stream: &mut TcpStream) -> Option<Value> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let mut body = Vec::new();
    if head.contains("transfer-encoding: chunked") {
        while !body.ends_with(b"0\r\n\r\n") {
            body.push(stream.read_u8().await.ok()?);
        }
        let text = String::from_utf8_lossy(&body).into_owned();
        // Chunks alternate with lines that have their length.
        let data: String =
            text.split("\r\n").enumerate().filter(|(n, _)| n % 2 == 1).map(|(_, data)| data).collect();
        return Some(serde_json::from_str(&data).unwrap_or_default());
    }
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    body.resize(length, 0);
    stream.read_exact(&mut body).await.ok()?;
    Some(serde_json::from_slice(&body).unwrap_or_default())
}
