use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use boot::catalog::Artefact;
use boot::plan::HttpBoot;
use gateway_core::reason::Reason;
use tokio_util::sync::CancellationToken;

use crate::handle::Request;
use crate::images::tests::artefact;
use crate::images::{ImageStore, Images};
use crate::metrics::{BOOT_BYTES, CONNECTIONS, Metrics, REQUESTS_REFUSED, TLS_REFUSED};
use crate::shell::https_boot::{self, BootService};
use crate::shell::listen::{BOOT, Listener};
use crate::shell::tls::{self, BootCertificates};
use crate::testing::{TestCa, counted, driver, text_of};

/// Both boot listeners with one artefact, and what the driver was asked.
pub(super) struct Site {
    pub(super) plain: SocketAddr,
    pub(super) https: SocketAddr,
    pub(super) metrics: Arc<Metrics>,
    pub(super) ca: TestCa,
    pub(super) ca_file: PathBuf,
    pub(super) certificates: BootCertificates,
    asked: Arc<Mutex<Vec<String>>>,
    entry: Artefact,
    pub(super) bytes: Vec<u8>,
    pub(super) dir: tempfile::TempDir,
    cancel: CancellationToken,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// A site whose owner allows plain HTTP.
pub(super) async fn site() -> Site {
    site_with(HttpBoot::UkiOverHttp).await
}

pub(super) async fn site_with(http_boot: HttpBoot) -> Site {
    let dir = tempfile::tempdir().expect("dir");
    // Larger than any buffer on the way, and no two blocks alike.
    let bytes: Vec<u8> = (0u32..800_000).flat_map(u32::to_le_bytes).collect();
    let entry = artefact("attester.efi", &bytes);
    std::fs::write(dir.path().join("attester.efi"), &bytes).expect("written");
    let images = Images::read(dir.path(), std::slice::from_ref(&entry)).expect("images");
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    let handle = driver(move |request| match request {
        Request::Script(query, answer) => {
            let mac = query.mac.map(|mac| mac.to_string()).unwrap_or_default();
            let arch = query.arch.unwrap_or_default();
            log.lock()
                .expect("lock")
                .push(format!("script {mac} {arch}"));
            let _ = answer.send("#!ipxe\nexit\n".to_owned());
        }
        Request::Fetch(query, answer) => {
            log.lock()
                .expect("lock")
                .push(format!("fetch {}", query.what));
            let withheld = query.mac.is_some_and(|mac| mac.0[5] == 0xff);
            let verdict = if withheld {
                Err(Reason::new("boot.withheld", "a", "b", "c", "d"))
            } else {
                Ok(())
            };
            let _ = answer.send(verdict);
        }
        Request::Missing(query, answer) => {
            let mac = query.mac.map(|mac| mac.to_string()).unwrap_or_default();
            log.lock()
                .expect("lock")
                .push(format!("missing {mac} {}", query.what));
            let _ = answer.send(());
        }
        _ => panic!("the boot listeners ask nothing else"),
    });
    let metrics = Arc::new(Metrics::default());
    let service = BootService {
        handle,
        images: ImageStore::new(images),
        http_boot,
        talos: None,
        metrics: metrics.clone(),
    };
    let ca = TestCa::new("boot CA");
    let ca_file = dir.path().join("boot-ca.pem");
    std::fs::write(&ca_file, &ca.pem).expect("written");
    let certificates = BootCertificates {
        p256: ca.server(false).slot(),
        rsa: ca.server(true).slot(),
    };
    let config = tls::boot_config(certificates.clone()).expect("TLS");
    let any: SocketAddr = "127.0.0.1:0".parse().expect("address");
    let plain = Listener::bind("http", any, BOOT, metrics.clone())
        .await
        .expect("bound");
    let https = Listener::bind("boot", any, BOOT, metrics.clone())
        .await
        .expect("bound");
    let cancel = CancellationToken::new();
    let site = Site {
        plain: plain.address().expect("address"),
        https: https.address().expect("address"),
        metrics,
        ca,
        ca_file,
        certificates,
        asked,
        entry,
        bytes,
        dir,
        cancel: cancel.clone(),
    };
    tokio::spawn(https_boot::run_plain(
        plain,
        service.clone(),
        cancel.clone(),
    ));
    tokio::spawn(https_boot::run_https(https, config, service, cancel));
    site
}

impl Site {
    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("lock").clone()
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.https)
    }

    pub(super) fn image(&self) -> String {
        format!("/boot/{}/attester.efi", self.entry.sha256)
    }

    pub(super) fn etag(&self) -> String {
        format!("\"{}\"", self.entry.sha256)
    }

    pub(super) async fn curl(&self, args: &[&str]) -> String {
        let ca = self.ca_file.to_string_lossy();
        let mut all = vec!["-sS", "--max-time", "30", "--cacert", &ca];
        all.extend_from_slice(args);
        text_of("curl", &all).await
    }

    /// The body of a GET through a file, so that bytes stay bytes.
    pub(super) async fn body(&self, args: &[&str]) -> Vec<u8> {
        let out = self.dir.path().join("out");
        let name = out.to_string_lossy().into_owned();
        let mut all = vec!["-o", &name];
        all.extend_from_slice(args);
        let said = self.curl(&all).await;
        std::fs::read(&out).unwrap_or_else(|error| panic!("{said}: {error}"))
    }
}

fn header<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_gets_head_get_ranges_and_validators() {
    let site = site().await;
    let url = site.url(&site.image());
    let total = site.bytes.len();

    let head = site.curl(&["-I", &url]).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(header(&head, "content-length"), Some(&*total.to_string()));
    assert_eq!(header(&head, "etag"), Some(&*site.etag()));
    assert_eq!(header(&head, "accept-ranges"), Some("bytes"));
    assert_eq!(header(&head, "content-type"), Some("application/efi"));
    for line in head.lines().filter(|line| line.contains(':')) {
        let (_, value) = line.split_once(':').expect("a header");
        assert!(!value.trim().is_empty(), "empty header: {line}");
    }

    assert!(site.body(&[&url]).await == site.bytes, "whole body differs");
    let part = site.body(&["-r", "1000-200999", &url]).await;
    assert!(part == site.bytes[1000..201_000], "range differs");
    let tail = site.body(&["-r", "-5", &url]).await;
    assert_eq!(tail, site.bytes[total - 5..]);

    let headers = |more: &[&str]| {
        let mut args: Vec<String> = ["-o", "/dev/null", "-D", "-"].map(str::to_owned).to_vec();
        args.extend(more.iter().map(|arg| (*arg).to_owned()));
        args
    };
    let ask = async |more: &[&str]| {
        let args = headers(more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        site.curl(&args).await
    };
    let partial = ask(&["-r", "0-0", &url]).await;
    assert!(partial.starts_with("HTTP/1.1 206"), "{partial}");
    let expected = format!("bytes 0-0/{total}");
    assert_eq!(header(&partial, "content-range"), Some(&*expected));
    let beyond = ask(&["-r", &format!("{total}-"), &url]).await;
    assert!(beyond.starts_with("HTTP/1.1 416"), "{beyond}");
    let expected = format!("bytes */{total}");
    assert_eq!(header(&beyond, "content-range"), Some(&*expected));
    let known = format!("If-None-Match: {}", site.etag());
    let fresh = ask(&["-H", &known, &url]).await;
    assert!(fresh.starts_with("HTTP/1.1 304"), "{fresh}");
    let old = ask(&["-r", "0-9", "-H", "If-Range: \"old\"", &url]).await;
    assert!(old.starts_with("HTTP/1.1 200"), "{old}");
    let same = format!("If-Range: {}", site.etag());
    let resumed = ask(&["-r", "0-9", "-H", &same, &url]).await;
    assert!(resumed.starts_with("HTTP/1.1 206"), "{resumed}");
    assert!(site.metrics.get(BOOT_BYTES, "boot") >= 2 * total as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_serving_an_artefact_that_was_written_over() {
    let site = site().await;
    let url = site.url(&site.image());
    let file = site.dir.path().join("attester.efi");
    let mut changed = site.bytes.clone();
    changed[1_000_000] ^= 1;
    std::fs::write(&file, &changed).expect("written");
    let out = site.dir.path().join("out");
    let out = out.to_string_lossy();
    let status = ["-w", "%{http_code}", "-o", &*out, &*url];
    assert_eq!(site.curl(&status).await, "503");
    assert_eq!(site.metrics.get(REQUESTS_REFUSED, "image.changed"), 1);
    std::fs::write(&file, &site.bytes).expect("written");
    assert!(site.body(&[&url]).await == site.bytes, "body differs");
    // In use, it was checked; what lies on the disk does not matter.
    std::fs::write(&file, &changed).expect("written");
    assert!(site.body(&[&url]).await == site.bytes, "body differs");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connection_outlives_head() {
    let site = site().await;
    let url = site.url(&site.image());
    let ca = site.ca_file.to_string_lossy().into_owned();
    // HEAD, then GET, as firmware does.
    let get = [
        "--next",
        "-sS",
        "--cacert",
        &ca,
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        &url,
    ];
    let mut args = vec!["-I", "-o", "/dev/null", "-w", "%{http_code} ", &url];
    args.extend(get);
    assert_eq!(site.curl(&args).await, "200 200");
    assert_eq!(site.metrics.get(CONNECTIONS, "boot"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_script_needs_https_and_names_the_machine() {
    let site = site().await;
    let path = "/boot/script.ipxe?mac=52%3A54%3A00%3A00%3A00%3A01&arch=x86_64";
    let script = site.curl(&[&site.url(path)]).await;
    assert_eq!(script, "#!ipxe\nexit\n");
    assert_eq!(site.asked(), ["script 52:54:00:00:00:01 x86_64"]);

    let plain = format!("http://{}{path}", site.plain);
    let refused = site.curl(&["-w", "%{http_code}", &plain]).await;
    assert_eq!(refused, "https only\n403");
    let signed = format!("http://{}{}", site.plain, site.image());
    assert!(site.body(&[&signed]).await == site.bytes, "body differs");
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_unknown_paths_methods_and_withheld_images() {
    let site = site().await;
    let image = site.image();
    let rows = [
        ("/", "GET", "404"),
        ("/boot/", "GET", "404"),
        ("/boot/x/attester.efi", "GET", "404"),
        (&*image.replace("attester.efi", "other.efi"), "GET", "404"),
        ("/boot/../../etc/passwd", "GET", "404"),
        (&*image, "POST", "405"),
        (&*image, "DELETE", "405"),
        (&*format!("{image}?mac=52:54:00:00:00:ff"), "GET", "403"),
    ];
    for (path, method, expected) in rows {
        let url = site.url(path);
        let said = site
            .curl(&[
                "--path-as-is",
                "-X",
                method,
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                &url,
            ])
            .await;
        assert_eq!(said, expected, "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_http_is_refused_unless_the_owner_allows_it() {
    for (http_boot, expected) in [
        (HttpBoot::UkiOverHttps, "https only\n403"),
        // The artefact of the site is an iPXE.
        (HttpBoot::IpxeOverHttp, "200"),
        (HttpBoot::UkiOverHttp, "200"),
    ] {
        let site = site_with(http_boot).await;
        let url = format!("http://{}{}", site.plain, site.image());
        let out = site.dir.path().join("out");
        let out = out.to_string_lossy();
        let mut args = vec!["-w", "%{http_code}", &*url];
        if expected == "200" {
            args.extend(["-o", &*out]);
        }
        assert_eq!(site.curl(&args).await, expected, "{http_boot:?}");
        let refused = site.metrics.get(REQUESTS_REFUSED, "boot.plain_http");
        assert_eq!(refused, u64::from(expected != "200"), "{http_boot:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_plain_http_on_the_https_port() {
    let site = site().await;
    let url = format!("http://{}/", site.https);
    site.curl(&[&url]).await;
    let count = counted(&site.metrics, TLS_REFUSED, "tls.not_tls", 1).await;
    assert_eq!(count, 1);
}
