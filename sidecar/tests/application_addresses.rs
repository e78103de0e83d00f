//! Applications in a pod that listen on its addresses, or on `::1`. The pod is a network namespace of its own, in which this
//! binary runs again.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::process::Command;
use std::sync::{Arc, Mutex};

use sluice_sidecar::{Options, Route, Sidecar};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::{get, page};

/// Set where this binary runs in a network namespace of its own.
const INSIDE: &str = "SLUICE_TEST_POD";
const IPV4: &str = "10.55.0.5";
const IPV6: &str = "fd00:55::5";

/// Runs a test of this module in a network namespace with these addresses, as a pod has them.
fn in_pod(test: &str, addresses: &[&str]) {
    let mut setup =
        vec!["ip link set lo up".to_owned(), "ip link add eth0 type veth peer name node0".to_owned()];
    setup.push("ip link set node0 up && ip link set eth0 up".to_owned());
    setup.extend(addresses.iter().map(|address| match address.contains(':') {
        true => format!("ip addr add {address}/64 dev eth0 nodad"),
        false => format!("ip addr add {address}/24 dev eth0"),
    }));
    // An address cannot be reached before both ends of the link have noticed each other.
    setup.push("until ip link show eth0 | grep -q LOWER_UP; do sleep 0.01; done".to_owned());
    let program = std::env::current_exe().unwrap();
    let script =
        format!("{} && exec \"$0\" --exact application_addresses::{test} --nocapture", setup.join(" && "));
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "sh", "-c", &script])
        .arg(program)
        .env(INSIDE, addresses.join(","))
        .output()
        .unwrap_or_else(|error| panic!("unshare (package util-linux) cannot be run: {error}"));
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// Returns the addresses of the pod, if this runs in one.
fn pod() -> Option<Vec<IpAddr>> {
    let addresses = std::env::var(INSIDE).ok()?;
    Some(addresses.split(',').map(|address| address.parse().unwrap()).collect())
}

/// An application that answers every connection once, and notes where it came from.
async fn application(address: &str) -> (u16, Arc<Mutex<Vec<IpAddr>>>) {
    let listener = TcpListener::bind((address, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let peers = Arc::new(Mutex::new(Vec::new()));
    let seen = peers.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, peer) = listener.accept().await.unwrap();
            seen.lock().unwrap().push(peer.ip());
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).await;
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")
                .await;
        }
    });
    (port, peers)
}

/// Starts a sidecar as the operator configures it: the application is on 127.0.0.1, or at an address of the pod.
fn sidecar(port: u16, pod: &[IpAddr]) -> Sidecar {
    let upstream = format!("127.0.0.1:{port}").parse().unwrap();
    let route = Route { listen: SocketAddr::from(([127, 0, 0, 1], 0)), upstream };
    let mut options = Options::new(vec![route]);
    options.pod_addresses = pod.to_vec();
    Sidecar::start(options).unwrap()
}

/// Requests through a new sidecar, and returns the status and where the application saw it come from.
async fn request(listens_on: &str, pod: &[IpAddr]) -> (u16, Option<IpAddr>) {
    let (port, peers) = application(listens_on).await;
    let sidecar = sidecar(port, pod);
    let status = get(sidecar.addresses()[0], "").await.status;
    let again = get(sidecar.addresses()[0], "").await.status;
    assert_eq!(status, again);
    let peer = peers.lock().unwrap().first().copied();
    (status, peer)
}

const SOURCES: [&str; 3] = ["127.0.0.6", "127.0.0.7", "127.0.0.8"];

#[tokio::test]
async fn an_application_is_found_wherever_it_listens_in_its_pod() {
    let Some(pod) = pod() else {
        return in_pod("an_application_is_found_wherever_it_listens_in_its_pod", &[IPV4, IPV6]);
    };
    for address in ["127.0.0.1", "0.0.0.0", IPV4] {
        let (status, peer) = request(address, &pod).await;
        let peer = peer.unwrap().to_string();
        assert!(status == 200 && SOURCES.contains(&peer.as_str()), "{address}: {status}, from {peer}");
    }
    for address in [IPV6, "::1"] {
        let (status, peer) = request(address, &pod).await;
        assert_eq!((status, peer), (200, IPV6.parse().ok()), "{address}");
    }
}

#[tokio::test]
async fn without_an_ipv6_address_of_the_pod_the_trusted_one_of_the_loopback_is_not_used() {
    let Some(pod) = pod() else {
        let name = "without_an_ipv6_address_of_the_pod_the_trusted_one_of_the_loopback_is_not_used";
        return in_pod(name, &[IPV4]);
    };
    assert_eq!(request("::1", &pod).await, (502, None));
    assert_eq!(request(IPV4, &pod).await.0, 200);
}

#[tokio::test]
async fn a_pod_with_ipv6_alone_is_served() {
    let Some(pod) = pod() else {
        return in_pod("a_pod_with_ipv6_alone_is_served", &[IPV6]);
    };
    // Kubelet probes the address of the pod, and clients connect to it.
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let (port, _) = application("::").await;
    let route = Route { listen: any, upstream: format!("127.0.0.1:{port}").parse().unwrap() };
    let mut options = Options::new(vec![route]);
    (options.admin, options.pod_addresses) = (Some(any), pod.clone());
    let sidecar = Sidecar::start(options).unwrap();
    let own = |address: SocketAddr| SocketAddr::new(pod[0], address.port());
    assert_eq!(page(own(sidecar.admin().unwrap()), "/livez").await.status, 200);
    assert_eq!(get(own(sidecar.addresses()[0]), "").await.status, 200);
    for address in [IPV6, "::1", "::"] {
        let (status, peer) = request(address, &pod).await;
        let peer = peer.unwrap();
        let is_trusted = peer.to_string() == "127.0.0.1" || peer.to_string() == "::1";
        assert!(status == 200 && !is_trusted, "{address}: {status}, from {peer}");
    }
}

#[tokio::test]
async fn an_application_that_moves_is_found_again() {
    let elsewhere: IpAddr = "127.0.0.9".parse().unwrap();
    let first = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = first.local_addr().unwrap().port();
    let sidecar = sidecar(port, &[elsewhere]);
    let answer = async |listener: &TcpListener, response: &str| {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = [0; 4096];
        let _ = stream.read(&mut head).await;
        let _ = stream.write_all(response.as_bytes()).await;
    };
    let ok = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let (response, ()) = tokio::join!(get(sidecar.addresses()[0], ""), answer(&first, ok));
    assert_eq!(response.status, 200);
    drop(first);
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 502);
    let moved = TcpListener::bind((elsewhere, port)).await.unwrap();
    let (response, ()) = tokio::join!(get(sidecar.addresses()[0], ""), answer(&moved, ok));
    assert_eq!(response.status, 200);
    assert!(sidecar.applications().unreachable().is_empty());
}
