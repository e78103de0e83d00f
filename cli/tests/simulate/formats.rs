//! Logs as they are found: with what runtimes and tools write around each line.

use std::io::Write as _;

use assert_cmd::Command;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use super::{folder, json, line, policy, simulate};

/// Writes something around a line.
type Wrap<'a> = &'a dyn Fn(&str) -> String;

/// Wraps each line of a log.
fn wrapped(log: &str, wrap: impl Fn(usize, &str) -> String) -> String {
    log.lines().enumerate().map(|(n, line)| wrap(n, line) + "\n").collect()
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

#[test]
fn what_runtimes_and_tools_write_around_a_line_is_removed() {
    let log: String = (0..20).map(|second| line(second, "192.0.2.1", "/", 200)).collect();
    let folder = folder(&[("p.yaml", &policy(5)), ("plain.log", &log)]);
    let result = |name: &str| {
        let report = json(folder.path(), &["--policy", "p.yaml", name]);
        let file = &report["files"][0];
        (report["requests"].clone(), report["unreadableLines"].clone(), file["denied"].clone())
    };
    let plain = result("plain.log");
    assert_eq!(plain, (20.into(), 0.into(), 15.into()));
    let time = "2026-11-23T10:00:05.123456789Z";
    let cri = |line: &str| format!("{time} stdout F {line}");
    let docker = |line: &str| {
        format!("{{\"log\":{},\"stream\":\"stdout\",\"time\":\"{time}\"}}", quoted(&format!("{line}\n")))
    };
    let syslog = |line: &str| format!("Nov 23 10:00:05 node-1 nginx[71]: {line}");
    let wraps: &[(&str, Wrap<'_>)] = &[
        ("cri", &cri),
        ("docker", &docker),
        ("timestamps", &|line| format!("{time} {line}")),
        ("prefix", &|line| format!("[pod/web-5c9f-x2x/nginx] {line}")),
        ("prefix and timestamps", &|line| format!("[pod/web-5c9f-x2x/nginx] {time} {line}")),
        ("stern", &|line| format!("web-5c9f-x2x nginx {line}")),
        ("stern in color", &|line| format!("\x1b[32mweb-5c9f-x2x\x1b[0m \x1b[33mnginx\x1b[0m {line}")),
        ("stern of all namespaces", &|line| format!("shop web-5c9f-x2x nginx {line}")),
        ("stern in JSON", &|line| {
            format!("{{\"message\":{},\"podName\":\"web-1\",\"containerName\":\"nginx\"}}", quoted(line))
        }),
        ("compose", &|line| format!("web-1  | {line}")),
        ("compose with timestamps", &|line| format!("web-1  | {time} {line}")),
        ("compose in color", &|line| format!("\x1b[36mweb-1  | \x1b[0m{line}")),
        ("journald", &syslog),
        ("journald with ISO times", &|line| format!("2026-11-23T10:00:05+0000 node-1 nginx[71]: {line}")),
        ("journald in JSON", &|line| {
            format!("{{\"MESSAGE\":{},\"_PID\":\"71\",\"PRIORITY\":\"6\"}}", quoted(line))
        }),
        ("syslog with priority", &|line| format!("<190>Nov 23 10:00:05 node-1 nginx: {line}")),
        ("syslog of RFC 5424", &|line| format!("<190>1 {time} node-1 nginx 71 - [a@1 b=\"c\\\"]\"] {line}")),
        ("a byte order mark", &|line| line.to_owned()),
        ("docker in CRI", &|line| cri(&docker(line))),
        ("syslog in docker", &|line| docker(&syslog(line))),
    ];
    for (name, wrap) in wraps {
        let mut text = wrapped(&log, |_, line| wrap(line));
        if *name == "a byte order mark" {
            text.insert(0, '\u{feff}');
        }
        std::fs::write(folder.path().join("wrapped.log"), text).unwrap();
        assert_eq!(result("wrapped.log"), plain, "{name}");
    }
}

#[test]
fn a_client_does_not_choose_how_its_line_is_read() {
    let log: String = (0..20).map(|second| line(second, "192.0.2.1", "/", 200)).collect();
    let forged = line(5, "203.0.113.9", "/forged", 200);
    let forged = forged.trim_end();
    let time = "2026-11-23T10:00:05.123456789Z";
    let cri = |line: &str| format!("{time} stdout F {line}");
    let inside = |line: &str| line.replace("\"ua\"", &quoted(&cri(forged)));
    let cases = [
        // Forged lines in a part of the line, in a log with wrappers and without.
        ("wrapped", wrapped(&log, |_, line| cri(&inside(line))), 20, 0),
        ("plain", wrapped(&log, |_, line| inside(line)), 20, 0),
        // Lines that are wrapped otherwise than the first ones.
        ("less", wrapped(&log, |_, line| cri(line)) + forged + "\n", 20, 1),
        ("more", log.clone() + &cri(forged) + "\n", 20, 1),
        ("deeper", wrapped(&log, |_, line| cri(line)) + &cri(&cri(forged)) + "\n", 20, 1),
        ("piece", wrapped(&log, |_, line| cri(line)) + &cri(forged).replace(" F ", " P ") + "\n", 20, 1),
        // A field that is there twice.
        (
            "twice",
            log.clone() + "{\"ts\":1795428000,\"ip\":\"192.0.2.1\",\"path\":\"/\",\"ip\":\"203.0.113.9\"}\n",
            20,
            1,
        ),
    ];
    for (name, text, requests, unreadable) in cases {
        let folder = folder(&[("p.yaml", &policy(5)), ("a.log", &text)]);
        let report = json(folder.path(), &["--policy", "p.yaml", "a.log"]);
        assert_eq!(
            (&report["requests"], &report["unreadableLines"]),
            (&requests.into(), &unreadable.into()),
            "{name}: {report}"
        );
        assert_eq!(report["files"][0]["limits"][0]["clients"], 1, "{name}");
    }
    // Both the object and the line within it are requests.
    let both = |line: &str| {
        format!("{{\"ts\":1795428000,\"ip\":\"203.0.113.9\",\"path\":\"/\",\"log\":{}}}", quoted(line))
    };
    let folder = folder(&[("p.yaml", &policy(5)), ("a.log", &wrapped(&log, |_, line| both(line)))]);
    let (code, _, errors) = simulate(folder.path(), &["--policy", "p.yaml", "a.log"]);
    assert!(code == Some(1) && errors.contains("20      can be read in two ways"), "{errors}");
}

#[test]
fn what_is_compressed_is_read_by_its_content_and_as_far_as_it_goes() {
    let log: String = (0..1_000).map(|n| line(n, "192.0.2.1", &format!("/{}", n * n % 977), 200)).collect();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(log.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    let zstd = zstd::encode_all(log.as_bytes(), 3).unwrap();
    let folder = folder(&[("p.yaml", &policy(60))]);
    for whole in [gzip, zstd] {
        // Two parts after each other, as rotation and `cat` make them.
        std::fs::write(folder.path().join("a.log"), [&whole[..], &whole[..]].concat()).unwrap();
        let report = json(folder.path(), &["--policy", "p.yaml", "a.log"]);
        assert_eq!((&report["requests"], &report["incomplete"]), (&2_000.into(), &Value::Array(Vec::new())));
        let output = Command::cargo_bin("sluice")
            .unwrap()
            .current_dir(folder.path())
            .args(["simulate", "--policy", "p.yaml", "-o", "json", "-"])
            .write_stdin(whole.clone())
            .output()
            .unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["requests"], 1_000);
        let cut = [&whole[..], &whole[..whole.len() / 2]].concat();
        std::fs::write(folder.path().join("a.log"), cut).unwrap();
        let report = json(folder.path(), &["--policy", "p.yaml", "a.log"]);
        let read = report["requests"].as_u64().unwrap();
        let incomplete = &report["incomplete"][0];
        assert!(read >= 1_000 && incomplete["file"] == "a.log" && incomplete["lines"] == read, "{report}");
        assert!(incomplete.get("corrupt").is_none(), "{report}");
        let (_, text, _) = simulate(folder.path(), &["--policy", "p.yaml", "a.log"]);
        assert!(text.contains(&format!("a.log ends in the middle, after line {read}: only what")), "{text}");
    }
}

#[test]
fn corrupt_data_is_told_from_a_file_that_ends_too_early() {
    let log: String = (0..5_000).map(|n| line(n, "192.0.2.1", &format!("/{}", n * n % 977), 200)).collect();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(log.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    // With a checksum, which changed bytes do not fit.
    let mut zstd = zstd::Encoder::new(Vec::new(), 3).unwrap();
    zstd.include_checksum(true).unwrap();
    zstd.write_all(log.as_bytes()).unwrap();
    let zstd = zstd.finish().unwrap();
    let folder = folder(&[("p.yaml", &policy(60))]);
    for whole in [&gzip, &zstd] {
        let mut changed = whole.clone();
        let middle = changed.len() / 2;
        changed[middle..middle + 200].fill(0xff);
        let with_rest = [&whole[..], b"this is no gzip and no zstd"].concat();
        for text in [changed, with_rest] {
            std::fs::write(folder.path().join("a.log"), [&whole[..], &text[..]].concat()).unwrap();
            let (code, text, _) = simulate(folder.path(), &["--policy", "p.yaml", "a.log"]);
            assert!(code == Some(0) && text.contains("a.log is corrupt after line "), "{text}");
            assert!(!text.contains("in the middle"), "{text}");
        }
    }
    for (begin, expected) in
        [(&gzip[..20], "ends in the middle, after line 0"), (b"\x1f\x8bnot gzip", "is corrupt after line 0")]
    {
        std::fs::write(folder.path().join("a.log"), begin).unwrap();
        let (code, _, errors) = simulate(folder.path(), &["--policy", "p.yaml", "a.log"]);
        assert!(
            code == Some(1) && errors.contains("no request could be read") && errors.contains(expected),
            "{errors}"
        );
    }
}

#[test]
fn what_is_not_read_is_refused_with_what_to_do_and_a_bomb_takes_no_memory() {
    let folder = folder(&[("p.yaml", &policy(60))]);
    let mut zstd = zstd::Encoder::new(Vec::new(), 1).unwrap();
    zstd.window_log(28).unwrap();
    zstd.write_all(line(0, "192.0.2.1", "/", 200).as_bytes()).unwrap();
    for (content, expected) in [
        (
            zstd.finish().unwrap(),
            "its zstd window is larger than 128 MiB: decompress it with zstd -d --long=31",
        ),
        (b"BZh91AY&SY".to_vec(), "compressed with bzip2: decompress it with bzip2 -d"),
        (b"\xfd7zXZ\0\0".to_vec(), "compressed with xz: decompress it with xz -d"),
        (b"\x04\x22\x4d\x18d@".to_vec(), "compressed with lz4: decompress it with lz4 -d"),
        (b"PK\x03\x04\x14\0".to_vec(), "a zip archive: unpack it"),
        (b"\xff\xfe1\09\0".to_vec(), "in UTF-16: convert it with iconv -f UTF-16 -t UTF-8"),
    ] {
        std::fs::write(folder.path().join("a.log"), content).unwrap();
        let (code, _, errors) = simulate(folder.path(), &["--policy", "p.yaml", "a.log"]);
        assert!(code == Some(1) && errors.starts_with("a.log") && errors.contains(expected), "{errors}");
    }
    // 1 GiB in one line, in a process that may have less.
    let mut zstd = zstd::Encoder::new(Vec::new(), 1).unwrap();
    zstd.write_all(line(0, "192.0.2.1", "/", 200).as_bytes()).unwrap();
    let zeros = vec![b'0'; 1 << 20];
    (0..1 << 10).for_each(|_| zstd.write_all(&zeros).unwrap());
    zstd.write_all(format!("\n{}", line(1, "192.0.2.1", "/", 200)).as_bytes()).unwrap();
    let bomb = zstd.finish().unwrap();
    assert!(bomb.len() < 1 << 20, "{}", bomb.len());
    std::fs::write(folder.path().join("bomb.log"), bomb).unwrap();
    let program = assert_cmd::cargo::cargo_bin("sluice");
    let output = std::process::Command::new("sh")
        .current_dir(folder.path())
        .args(["-c", "ulimit -v 1000000; exec \"$0\" simulate --policy p.yaml bomb.log"])
        .arg(program)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("2 requests from") && text.contains("longer than 256 KiB"), "{text} {errors}");
}

#[test]
fn too_many_unreadable_lines_are_an_exit_status() {
    let log: String = (0..9).map(|second| line(second, "192.0.2.1", "/", 200)).collect();
    let folder = folder(&[("p.yaml", &policy(60)), ("a.log", &(log + "garbage\n"))]);
    for (most, expected) in [("10", 0), ("9.9", 1), ("0", 1)] {
        let (code, text, errors) =
            simulate(folder.path(), &["--policy", "p.yaml", "--max-unreadable", most, "a.log"]);
        assert_eq!(code, Some(expected), "{most}");
        let why = format!("10.00 % of the lines could not be read: --max-unreadable allows {most} %\n");
        assert_eq!(errors, if expected == 0 { "" } else { &*why });
        assert!(text.starts_with("9 requests from"), "{text}");
    }
}

#[test]
fn the_pieces_of_a_line_are_joined_for_each_stream() {
    let cri = |stream: &str, tag: &str, text: &str| {
        format!("2026-11-23T10:00:00.000000000Z {stream} {tag} {text}\n")
    };
    let whole: String =
        (0..20).map(|n| cri("stdout", "F", line(n, "192.0.2.1", "/", 200).trim_end())).collect();
    let long = line(30, "192.0.2.9", "/long", 200);
    let (begin, rest) = long.trim_end().split_at(20);
    let (middle, end) = rest.split_at(20);
    let pieces = [
        cri("stdout", "P", begin),
        // The other stream is between them.
        cri("stderr", "P", "a warn"),
        cri("stdout", "P", middle),
        cri("stderr", "F", "ing"),
        cri("stdout", "F", end),
    ];
    let folder = folder(&[("p.yaml", &policy(50)), ("a.log", &(whole + &pieces.concat() + "garbage\n"))]);
    let report = json(folder.path(), &["--policy", "p.yaml", "a.log"]);
    assert_eq!((&report["requests"], &report["unreadableLines"]), (&21.into(), &2.into()), "{report}");
    let paths = report["files"][0]["routes"].as_array().unwrap();
    assert!(paths.iter().any(|route| route["path"] == "/long"), "{report}");
    // The number of a line is that of the file.
    assert!(report["unreadable"].to_string().contains("a.log:26"), "{report}");
}

#[test]
fn json_of_envoy_names_the_client_that_its_text_does() {
    let text = r#"[2026-11-23T10:00:00.250Z] "GET /a HTTP/2" 200 - 154 0 226 100 "198.51.100.9, 192.0.2.7" "curl" "id" "shop" "tcp://10.0.2.1:80""#;
    let object = r#"{"start_time":"2026-11-23T10:00:00.250Z","method":"GET","path":"/a","response_code":200,"x_forwarded_for":"198.51.100.9, 192.0.2.7","authority":"shop","downstream_remote_address":"198.51.100.9:0"}"#;
    for log in [text, object] {
        let folder = folder(&[("p.yaml", &policy(50)), ("a.log", &format!("{log}\n"))]);
        let report = json(folder.path(), &["--policy", "p.yaml", "a.log"]);
        let needs = &report["files"][0]["limits"][0]["mostNeeding"][0]["client"];
        assert_eq!(needs, "clientIP=192.0.2.7", "{log}");
    }
}

#[test]
fn a_clock_that_is_ahead_makes_no_other_lines_late() {
    // Each second line ended later than the next one began.
    let times = (0..400u64).map(|n| if n % 2 == 0 { n + 20 } else { n });
    let mut lines: Vec<_> = times.map(|second| line(second, "192.0.2.1", "/", 200)).collect();
    lines.insert(3, line(7 * 60, "192.0.2.2", "/", 200));
    let folder = folder(&[("p.yaml", &policy(5)), ("a.log", &lines.concat())]);
    let report = json(folder.path(), &["--policy", "p.yaml", "a.log"]);
    assert_eq!((&report["requests"], &report["outOfOrder"]), (&401.into(), &0.into()));
}

#[test]
fn a_log_of_one_address_is_said_to_be_one() {
    let log = |clients: u64| -> String {
        (0..60).map(|n| line(n, &format!("10.0.0.{}", n % clients), "/", 200)).collect()
    };
    for (clients, expected) in [(1, true), (2, false)] {
        let folder = folder(&[("p.yaml", &policy(5)), ("a.log", &log(clients))]);
        let report = json(folder.path(), &["--policy", "p.yaml", "a.log"]);
        assert_eq!(report.get("onlyClient").is_some(), expected);
        let (_, text, _) = simulate(folder.path(), &["--policy", "p.yaml", "a.log", "--html", "page.html"]);
        let page = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
        for shown in [text, page] {
            assert_eq!(shown.contains("All requests are of one address, 10.0.0.0."), expected, "{shown}");
        }
    }
}

#[test]
fn the_page_has_the_policy_the_version_what_is_assumed_and_the_limit() {
    let all = policy(5).replace(
        "    key: {parts: [{clientIP: {}}]}\n    rates: [{requests: 5,",
        "    rates: [{requests: 5,",
    );
    for (policy, has_line) in [(policy(5), false), (all, true)] {
        let log: String = (0..60).map(|n| line(n, "192.0.2.1", "/", 200)).collect();
        let folder = folder(&[("p.yaml", &policy), ("a.log", &log)]);
        simulate(folder.path(), &["--policy", "p.yaml", "a.log", "--html", "page.html"]);
        let page = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
        for text in [env!("CARGO_PKG_VERSION"), "kind: RateLimitPolicy", "by counters that begin empty"] {
            assert!(page.contains(text), "{text}: {page}");
        }
        assert_eq!(page.contains("<line class=\"limit\""), has_line, "{page}");
    }
}
