//! The reports of one session, which arrive as lines of JSON on the connection that carries its events.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use sluice_config::message::{Report, VERSION};
use sluice_crds::policy::Enforcer;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, timeout_at};

/// Maximum size of a report, in bytes. Reports contain hashes and reasons only. The service reports about the policies of all
/// namespaces.
const MAX_REPORT: usize = 256 << 10;
const MAX_SERVICE_REPORT: usize = 16 << 20;
/// Time in which a report must arrive, from its first byte.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that are read at once.
const CHUNK: usize = 4096;

/// Why no more reports are read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReportsEnd {
    #[error("the sidecar has closed the connection")]
    Closed,
    #[error("the connection failed: {0}")]
    Connection(#[from] io::Error),
    #[error("the session has ended")]
    Ended,
    #[error("{0}")]
    Refused(String),
}

impl ReportsEnd {
    fn refused(reason: impl Into<String>) -> Self {
        Self::Refused(reason.into())
    }
}

/// Passes each report to `take`, which returns false if the session has ended. Between reports it holds no memory.
pub(super) async fn receive(
    mut reader: impl AsyncRead + Unpin,
    enforcer: Enforcer,
    mut take: impl FnMut(Report) -> bool,
) -> ReportsEnd {
    let max = match enforcer {
        Enforcer::Sidecar => MAX_REPORT,
        Enforcer::Service => MAX_SERVICE_REPORT,
    };
    let mut read = Vec::new();
    loop {
        match next(&mut reader, &mut read, max).await {
            Ok(report) => {
                if !take(report) {
                    return ReportsEnd::Ended;
                }
            }
            Err(end) => return end,
        }
    }
}

/// Reads a report. `read` has what was read of it, and then of the next.
async fn next(
    reader: &mut (impl AsyncRead + Unpin),
    read: &mut Vec<u8>,
    max: usize,
) -> Result<Report, ReportsEnd> {
    let mut searched = 0;
    let mut deadline = (!read.is_empty()).then(|| Instant::now() + REPORT_TIMEOUT);
    loop {
        let end = read[searched..].iter().position(|byte| *byte == b'\n').map(|at| searched + at);
        if end.unwrap_or(read.len()) > max {
            return Err(ReportsEnd::refused(format!("a report is longer than {max} bytes")));
        }
        if let Some(end) = end {
            let report = parse(&read[..end]);
            read.drain(..=end);
            if read.is_empty() {
                *read = Vec::new();
            }
            return report;
        }
        searched = read.len();
        let filled = match deadline {
            None => fill(reader, read).await?,
            Some(deadline) => timeout_at(deadline, fill(reader, read))
                .await
                .map_err(|_| ReportsEnd::refused("a report did not arrive in time"))??,
        };
        if filled == 0 {
            return Err(ReportsEnd::Closed);
        }
        deadline.get_or_insert_with(|| Instant::now() + REPORT_TIMEOUT);
    }
}

/// Appends what has arrived, and returns its length, which is 0 at the end. Nothing is allocated while it waits.
async fn fill(reader: &mut (impl AsyncRead + Unpin), read: &mut Vec<u8>) -> io::Result<usize> {
    poll_fn(|cx| {
        let mut chunk = [MaybeUninit::uninit(); CHUNK];
        let mut chunk = ReadBuf::uninit(&mut chunk);
        ready!(Pin::new(&mut *reader).poll_read(cx, &mut chunk))?;
        read.extend_from_slice(chunk.filled());
        Poll::Ready(Ok(chunk.filled().len()))
    })
    .await
}

fn parse(line: &[u8]) -> Result<Report, ReportsEnd> {
    let report: Report = serde_json::from_slice(line)
        .map_err(|error| ReportsEnd::refused(format!("a report is not valid: {error}")))?;
    if report.version == VERSION {
        return Ok(report);
    }
    let remedy = if report.version < VERSION {
        "restart the pod to update its sidecar"
    } else {
        "update the operator before the sidecars"
    };
    let text =
        format!("reports of version {} are not supported, only version {VERSION}: {remedy}", report.version);
    Err(ReportsEnd::refused(text))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, duplex};

    use super::*;

    /// Sends bytes to a session, in pieces of this length, and then closes the connection. Returns the number of reports, and the end.
    async fn send(bytes: Vec<u8>, piece: usize) -> (usize, String) {
        let (mut client, server) = duplex(64);
        let sending = async move {
            for piece in bytes.chunks(piece) {
                if client.write_all(piece).await.is_err() {
                    break;
                }
            }
        };
        let mut reports = 0;
        let receiving = receive(server, Enforcer::Sidecar, |_| {
            reports += 1;
            true
        });
        let ((), end) = tokio::join!(sending, receiving);
        (reports, end.to_string())
    }

    fn line() -> Vec<u8> {
        let mut line = serde_json::to_vec(&Report { version: VERSION, ..Report::default() }).unwrap();
        line.push(b'\n');
        line
    }

    #[tokio::test]
    async fn reports_arrive_in_any_pieces() {
        for piece in [1, 3, 64, 5000] {
            let (reports, end) = send(line().repeat(5), piece).await;
            assert_eq!((reports, end.as_str()), (5, "the sidecar has closed the connection"), "{piece}");
        }
        let cut = [line(), line()[..9].to_vec()].concat();
        assert_eq!(send(cut, 7).await, (1, "the sidecar has closed the connection".into()));
    }

    #[tokio::test]
    async fn what_is_no_report_ends_the_session_with_the_reason() {
        let of_version = |version| {
            let text = String::from_utf8(line()).unwrap();
            text.replace(&format!("\"version\":{VERSION}"), &format!("\"version\":{version}")).into_bytes()
        };
        for (bytes, reason) in [
            (b"\n".to_vec(), "a report is not valid: EOF"),
            (b"{}\n".to_vec(), "a report is not valid: missing field"),
            (b"\xff\xfe\n".to_vec(), "a report is not valid: "),
            (of_version(99), "reports of version 99 are not supported, only version 2: update the operator"),
            (of_version(1), "reports of version 1 are not supported, only version 2: restart the pod to"),
            (b"[".repeat(1_000_000), "a report is longer than 262144 bytes"),
            ([b"[".repeat(300_000), b"\n".to_vec()].concat(), "a report is longer than 262144 bytes"),
            ([b"[".repeat(200_000), b"\n".to_vec()].concat(), "a report is not valid: "),
        ] {
            let (reports, end) = send([line(), bytes].concat(), 4096).await;
            assert!(reports == 1 && end.starts_with(reason), "{end}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_must_arrive_in_time_and_there_may_be_none_for_long() {
        let (mut client, server) = duplex(1024);
        let receiving = tokio::spawn(receive(server, Enforcer::Sidecar, |_| true));
        tokio::time::sleep(Duration::from_secs(3600)).await;
        client.write_all(&line()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(!receiving.is_finished());
        for _ in 0..20 {
            // Each byte comes in time, but not the report.
            let _ = client.write_all(b" ").await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(receiving.await.unwrap().to_string(), "a report did not arrive in time");
    }

    #[tokio::test]
    async fn a_session_that_has_ended_takes_no_reports() {
        let (mut client, server) = duplex(1024);
        client.write_all(&line().repeat(2)).await.unwrap();
        let end = receive(server, Enforcer::Sidecar, |_| false).await;
        assert_eq!(end.to_string(), "the session has ended");
    }
}
