//! Tests.

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
