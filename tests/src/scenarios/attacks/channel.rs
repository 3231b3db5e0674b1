//! Evidence that came another way than its hello: over another connection, another host, or through
//! somebody who ends TLS.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use attest_wire::v1::{ATTEST_SERVER_NAME, Binding};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::liar::Liar;
use super::scene::{Scene, When};
use crate::exchange::{Connection, say_hello, send_evidence};
use crate::sim::ATTEST;

const LIMIT: Duration = Duration::from_secs(20);

pub fn attack_06_evidence_relayed_through_another_host(liar: &mut Liar<'_, '_>) -> Result<()> {
    // The honest machine's host carries our hello; we sign for the connection that we see.
    let mut theirs = liar.scene.honest.ns.enter(|| Connection::open(ATTEST))?;
    let body = serde_json::to_vec(&liar.hello)?;
    let (status, answer) = theirs.post(attest_wire::v1::HELLO_PATH, &body)?;
    ensure!(status == 200, "hello refused: {status}");
    let challenge: attest_wire::v1::Challenge = serde_json::from_slice(&answer)?;
    let own = Connection::open(ATTEST)?;
    let binding = Binding::new(&body, &answer, own.exporter(&challenge.session.0)?);
    let evidence = liar.node.evidence(&liar.hello, &challenge, &binding)?;
    let result = send_evidence(&mut theirs, &evidence)?;
    liar.scene.refused(
        "our evidence through their connection",
        "ak.activation",
        When::Unproven,
        &result,
    )
}

pub fn attack_53_hello_and_evidence_on_two_connections(liar: &mut Liar<'_, '_>) -> Result<()> {
    for (lie, says_hello) in [
        ("a connection without a hello", false),
        ("a connection with a hello of its own", true),
    ] {
        let mut first = Connection::open(ATTEST)?;
        let (challenge, binding) = say_hello(&mut first, &liar.hello)?
            .map_err(|refusal| anyhow::anyhow!("hello refused: {}", refusal.code))?;
        let evidence = liar.node.evidence(&liar.hello, &challenge, &binding)?;
        let mut second = Connection::open(ATTEST)?;
        if says_hello {
            say_hello(&mut second, &liar.hello)?
                .map_err(|refusal| anyhow::anyhow!("second hello refused: {}", refusal.code))?;
        }
        let result = send_evidence(&mut second, &evidence)?;
        liar.scene
            .refused(lie, "channel.mismatch", When::Unproven, &result)?;
    }
    Ok(())
}

pub fn attack_53_a_proxy_that_ends_tls(liar: &mut Liar<'_, '_>) -> Result<()> {
    let proxy = Proxy::start()?;
    let mut connection = Connection::open(proxy.addr)?;
    let (challenge, binding) = say_hello(&mut connection, &liar.hello)?
        .map_err(|refusal| anyhow::anyhow!("hello refused: {}", refusal.code))?;
    let evidence = liar.node.evidence(&liar.hello, &challenge, &binding)?;
    let result = send_evidence(&mut connection, &evidence)?;
    ensure!(
        proxy.requests() == 2,
        "{} requests went through",
        proxy.requests()
    );
    liar.scene.refused(
        "through a proxy, by a node that pins nothing",
        "ak.activation",
        When::Unproven,
        &result,
    )
}

pub fn attack_53_the_real_attester_tells_a_proxy_nothing(scene: &mut Scene<'_>) -> Result<()> {
    let honest = &scene.honest;
    let proxy = honest.ns.enter(Proxy::start)?;
    let options = attester::Options::default();
    match honest.attest_at(proxy.addr, &options, &mut |_, _| {}) {
        Ok(other) => bail!("through the proxy: {other:?}"),
        Err(error) => ensure!(
            error
                .downcast_ref::<attester::AttestError>()
                .is_some_and(|e| matches!(e, attester::AttestError::Client(_))),
            "not for the server's certificate: {error:#}"
        ),
    }
    ensure!(proxy.requests() == 0, "it said something to the proxy");
    scene.honest_passes()
}

/// Ends TLS with a certificate of its own and carries the requests of one connection to the gateway.
struct Proxy {
    addr: SocketAddr,
    requests: Arc<AtomicUsize>,
}

impl Proxy {
    /// Listens in the calling thread's namespace.
    fn start() -> Result<Self> {
        let key = rcgen::KeyPair::generate()?;
        let params = rcgen::CertificateParams::new(vec![ATTEST_SERVER_NAME.to_owned()])?;
        let cert = params.self_signed(&key)?.der().clone();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(vec![cert], key)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let addr = listener.local_addr()?;
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        // A new thread is in the namespace of the one that makes it.
        std::thread::spawn(move || {
            if let Ok((tcp, _)) = listener.accept() {
                // How it ends is seen at the other end.
                let _ = carry(tcp, Arc::new(config), &count);
            }
        });
        Ok(Self { addr, requests })
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

fn carry(tcp: TcpStream, config: Arc<ServerConfig>, requests: &AtomicUsize) -> Result<()> {
    tcp.set_read_timeout(Some(LIMIT))?;
    let mut node = StreamOwned::new(ServerConnection::new(config)?, tcp);
    let mut gateway: Option<Connection> = None;
    loop {
        let (path, body) = request(&mut node)?;
        requests.fetch_add(1, Ordering::SeqCst);
        let gateway = match &mut gateway {
            Some(open) => open,
            None => gateway.insert(Connection::open(ATTEST)?),
        };
        let (status, answer) = gateway.post(&path, &body)?;
        let head = format!(
            "HTTP/1.1 {status} Carried\r\nContent-Length: {}\r\n\r\n",
            answer.len()
        );
        node.write_all(head.as_bytes())?;
        node.write_all(&answer)?;
        node.flush()?;
    }
}

/// One request: its path and body.
fn request(stream: &mut StreamOwned<ServerConnection, TcpStream>) -> Result<(String, Vec<u8>)> {
    let mut raw = Vec::new();
    let mut chunk = [0u8; 16 * 1024];
    loop {
        if let Some(end) = raw.windows(4).position(|w| w == b"\r\n\r\n") {
            let head = std::str::from_utf8(&raw[..end])?.to_owned();
            let path = head.split(' ').nth(1).context("no path")?.to_owned();
            let length: usize = head
                .lines()
                .find_map(|line| line.strip_prefix("Content-Length: "))
                .context("no length")?
                .parse()?;
            if raw.len() >= end + 4 + length {
                return Ok((path, raw.split_off(end + 4)));
            }
        }
        let n = stream.read(&mut chunk)?;
        ensure!(n > 0, "the node hung up");
        raw.extend_from_slice(&chunk[..n]);
    }
}
