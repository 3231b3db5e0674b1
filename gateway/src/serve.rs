//! `vestibule serve`: opens the appliance, replays the ledger, opens every listener, runs the
//! driver, and stops all of it together.
//!
//! Listeners are opened before anything is answered, so a port in use or a missing privilege ends
//! the start with one line. Readiness is told only when all of them are open.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use attest_wire::templates::Template;
use boot::catalog::Catalog;
use boot::plan::{BootPolicy, HttpBoot};
use gateway_core::admission::effect::Rules;
use gateway_core::appraisal::{DevIdRules, TimeTrust};
use gateway_core::bootfile::BootSettings;
use gateway_core::catalog::CatalogEntry;
use gateway_core::gateway::{Gateway, Setup};
use gateway_core::identity::UnixMillis;
use gateway_core::record::Record;
use hw::clock::{Clock, ClockQuality, WallClock};
use netstack::dhcp;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::admin::{self, AdminService};
use crate::appliance::{Appliance, ApplianceError, seal_name};
use crate::ca::{Ca, CaError, Leaf, LeafKind};
use crate::config::{Config, DevIdAuth, DevIdKind};
use crate::driver::{Driver, DriverError, Forward};
use crate::effects::Performer;
use crate::handle::Handle;
use crate::images::{ImageError, ImageStore, Images};
use crate::inventory::{Declared, DeclaredError};
use crate::issue::Issuer;
use crate::metrics::Metrics;
use crate::shell::boot_source::BootSource;
use crate::shell::dhcp::{DhcpError, DhcpSocket};
use crate::shell::enroll::{self, AttestService};
use crate::shell::health::{self, HealthService};
use crate::shell::https_boot::{self, BootService};
use crate::shell::listen::{self, BindError, Listener};
use crate::shell::tftp;
use crate::shell::tls::{self, BootCertificates, CertSlot, TlsError};
use crate::telemetry;

/// Questions to the driver that may wait: a boot storm's worth of DISCOVERs. Beyond it DHCP drops
/// and counts, everybody else waits.
const REQUESTS_MAX: usize = 1_024;
/// How often the appliance's own certificates are looked at; they are renewed weeks ahead.
const RENEWAL_CHECK: Duration = Duration::from_secs(3_600);
/// A held machine looks again after this long.
const HOLD_RETRY_SECS: u32 = 60;

/// Why the daemon does not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// State folder, TPM, seal or CAs.
    #[error("cannot open the appliance")]
    Appliance(#[from] ApplianceError),
    /// Inventory, EK roots or policy.
    #[error("cannot read what is declared")]
    Declared(#[from] DeclaredError),
    /// The boot catalogue or an artefact.
    #[error("cannot use the boot images")]
    Image(#[from] ImageError),
    /// DHCP scopes.
    #[error("provisioning: the DHCP scope has mistakes:{0}")]
    Dhcp(String),
    /// A certificate for a listener.
    #[error("a listener's certificate")]
    Tls(#[from] TlsError),
    /// A CA refused.
    #[error("the appliance's certificates")]
    Ca(#[from] CaError),
    /// A TCP listener.
    #[error("cannot listen")]
    Bind(#[from] BindError),
    /// The DHCP listener.
    #[error("cannot serve DHCP")]
    DhcpSocket(#[from] DhcpError),
    /// The TFTP listener.
    #[error("cannot listen on UDP {address} for TFTP")]
    Tftp {
        /// Where.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The driver stopped.
    #[error("the gateway stopped")]
    Driver(#[from] DriverError),
    /// A task ended that should not.
    #[error("task {0} ended unexpectedly; the gateway stops")]
    Task(&'static str),
}

/// Runs the daemon until `cancel`.
///
/// # Errors
/// [`ServeError`], at the start or when a decision could not be recorded.
pub async fn serve(config: Config, cancel: CancellationToken) -> Result<(), ServeError> {
    // The TPM and the first start's RSA key take seconds: off the async threads.
    let opened = {
        let config = config.clone();
        tokio::task::spawn_blocking(move || Appliance::open(&config)).await
    };
    let appliance = opened.map_err(|_| ServeError::Task("open"))??;
    let metrics = Arc::new(Metrics::default());
    let (catalog, images) = Images::load(&config.boot)?;
    let images = ImageStore::new(images);
    let (handle, requests) = Handle::new(REQUESTS_MAX);
    let dhcp = DhcpSocket::open(
        &config.provisioning.interface,
        config.provisioning.address.address,
        config.provisioning.ports.dhcp,
    )?;
    let listeners = Listeners::bind(&config, &metrics).await?;
    let certificates = Certificates::of(&appliance)?;

    let mut gateway = Gateway::new(setup(&config, &appliance, catalog)?);
    let clock = Clock;
    for record in appliance.records {
        gateway.note(UnixMillis(clock.now_ms()), record);
    }
    let signer = appliance.ca.receipt_signer()?;
    let issuer = Arc::new(Issuer::new(appliance.device, signer));
    let performer = Performer::new(
        dhcp.sender(Arc::clone(&metrics)),
        issuer,
        appliance.store.ledger(),
        Arc::clone(&metrics),
    );
    let (done_tx, done_rx) = mpsc::unbounded_channel();
    let time = Forward::new(clock.now_ms(), Instant::now());
    let driver = Driver {
        gateway,
        clock,
        time,
        requests,
        done_tx,
        done_rx,
        committer: appliance.ledger.committer,
        performer,
        cancel: cancel.clone(),
    };

    let ready = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    listeners.spawn(
        &mut tasks,
        &certificates,
        &handle,
        &images,
        &metrics,
        &ready,
        &cancel,
    )?;
    let (ca, doors, token) = (Arc::new(appliance.ca), handle.clone(), cancel.clone());
    tasks.spawn(async move {
        renew(ca, certificates, doors, token).await;
        Ok("renewal")
    });
    let token = cancel.clone();
    tasks.spawn(async move {
        dhcp.run(handle, metrics, token).await;
        Ok("dhcp")
    });
    tasks.spawn(async move {
        driver
            .run()
            .await
            .map(|()| "driver")
            .map_err(ServeError::from)
    });
    ready.store(true, Ordering::Release);
    tracing::info!(
        appliance = config.appliance.name,
        seal = seal_name(appliance.seal),
        "ready"
    );

    // The first task that ends before the cancellation takes the others with it.
    let mut outcome = Ok(());
    while let Some(joined) = tasks.join_next().await {
        let ended = joined.unwrap_or(Err(ServeError::Task("panicked")));
        if !cancel.is_cancelled() {
            ready.store(false, Ordering::Release);
            cancel.cancel();
            outcome = ended.and_then(|name| Err(ServeError::Task(name)));
        } else if outcome.is_ok()
            && let Err(error) = ended
        {
            outcome = Err(error);
        }
    }
    outcome
}

/// Renews the certificates of the listeners while they serve: the record first, then the exchange.
/// The receipt key is renewed at a start, since the ledger's segments and the CA worker hold it.
async fn renew(ca: Arc<Ca>, slots: Certificates, handle: Handle, cancel: CancellationToken) {
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(RENEWAL_CHECK) => {}
        }
        let (ca, now) = (Arc::clone(&ca), UnixMillis(Clock.now_ms()));
        let renewed = match tokio::task::spawn_blocking(move || ca.renew_due(now)).await {
            Ok(Ok(renewed)) => renewed,
            Ok(Err(error)) => {
                tracing::error!(error = telemetry::chain(&error), "certificates not renewed");
                continue;
            }
            Err(_) => continue,
        };
        let records = renewed
            .iter()
            .map(|(_, _, record)| Record::Certificate(record.clone()));
        if !renewed.is_empty() && handle.note(records.collect()).await.is_err() {
            return;
        }
        for (kind, leaf, _) in renewed {
            let Some(slot) = slots.slot(kind) else {
                continue;
            };
            match slot.replace(leaf.chain(), leaf.private_key()) {
                Ok(()) => tracing::info!(certificate = ?kind, "renewed"),
                Err(error) => {
                    tracing::error!(error = telemetry::chain(&error), "renewed certificate");
                }
            }
        }
    }
}

/// Every TCP and TFTP listener, open.
struct Listeners {
    http: Listener,
    boot: Listener,
    attest: Listener,
    admin: Listener,
    health: Listener,
    tftp: UdpSocket,
    hosts: Vec<String>,
}

impl Listeners {
    async fn bind(config: &Config, metrics: &Arc<Metrics>) -> Result<Self, ServeError> {
        let ports = config.provisioning.ports;
        let inside = |port| SocketAddr::new(IpAddr::V4(config.provisioning.address.address), port);
        let outside = |port| SocketAddr::new(config.management.address, port);
        let tcp = |name, address, bounds| Listener::bind(name, address, bounds, metrics.clone());
        let address = inside(ports.tftp);
        Ok(Self {
            http: tcp("http", inside(ports.http), listen::BOOT).await?,
            boot: tcp("boot", inside(ports.boot_https), listen::BOOT).await?,
            attest: tcp("attest", inside(ports.attest), listen::ATTEST).await?,
            admin: tcp(
                "admin",
                outside(config.management.admin_port),
                listen::ADMIN,
            )
            .await?,
            health: tcp(
                "health",
                outside(config.management.health_port),
                listen::HEALTH,
            )
            .await?,
            tftp: UdpSocket::bind(address)
                .await
                .map_err(|source| ServeError::Tftp { address, source })?,
            hosts: admin::hosts(&config.management, config.management.admin_port),
        })
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the one place where all parts meet"
    )]
    fn spawn(
        self,
        tasks: &mut JoinSet<Result<&'static str, ServeError>>,
        certificates: &Certificates,
        handle: &Handle,
        images: &ImageStore,
        metrics: &Arc<Metrics>,
        ready: &Arc<AtomicBool>,
        cancel: &CancellationToken,
    ) -> Result<(), ServeError> {
        let boot = BootService {
            handle: handle.clone(),
            images: images.clone(),
            metrics: metrics.clone(),
        };
        let (service, token) = (boot.clone(), cancel.clone());
        tasks.spawn(async move {
            https_boot::run_plain(self.http, service, token).await;
            Ok("http")
        });
        let (tls, token) = (tls::boot_config(certificates.boot.clone())?, cancel.clone());
        tasks.spawn(async move {
            https_boot::run_https(self.boot, tls, boot, token).await;
            Ok("boot")
        });
        let (tls, token) = (
            tls::attest_config(certificates.attest.clone())?,
            cancel.clone(),
        );
        let service = AttestService {
            handle: handle.clone(),
            metrics: metrics.clone(),
        };
        tasks.spawn(async move {
            enroll::run(self.attest, tls, service, token).await;
            Ok("attest")
        });
        let tls = tls::admin_config(certificates.admin.clone(), certificates.admin_ca.clone())?;
        let service = AdminService {
            handle: handle.clone(),
            metrics: metrics.clone(),
            hosts: Arc::new(self.hosts),
        };
        let token = cancel.clone();
        tasks.spawn(async move {
            admin::run(self.admin, tls, service, token).await;
            Ok("admin")
        });
        let service = HealthService {
            handle: handle.clone(),
            metrics: metrics.clone(),
            ready: ready.clone(),
        };
        let token = cancel.clone();
        tasks.spawn(async move {
            health::run(self.health, service, token).await;
            Ok("health")
        });
        let source = Arc::new(BootSource {
            handle: handle.clone(),
            images: images.clone(),
            metrics: metrics.clone(),
        });
        let (socket, token) = (self.tftp, cancel.clone());
        tasks.spawn(async move {
            let address = socket.local_addr();
            tftp::serve(socket, source, tftp::Bounds::default(), token)
                .await
                .map_err(|source| ServeError::Tftp {
                    address: address.unwrap_or(([0, 0, 0, 0], 0).into()),
                    source,
                })?;
            Ok("tftp")
        });
        Ok(())
    }
}

/// Certificates of the TLS listeners.
#[derive(Clone)]
struct Certificates {
    boot: BootCertificates,
    attest: Arc<CertSlot>,
    admin: Arc<CertSlot>,
    admin_ca: rustls_pki_types::CertificateDer<'static>,
}

impl Certificates {
    fn slot(&self, kind: LeafKind) -> Option<&Arc<CertSlot>> {
        match kind {
            LeafKind::Attest => Some(&self.attest),
            LeafKind::Boot => Some(&self.boot.p256),
            LeafKind::BootRsa => Some(&self.boot.rsa),
            LeafKind::AdminServer => Some(&self.admin),
            LeafKind::Receipt => None,
        }
    }

    fn of(appliance: &Appliance) -> Result<Self, ServeError> {
        let slot = |kind, name| -> Result<Arc<CertSlot>, ServeError> {
            let leaf: Arc<Leaf> = appliance.ca.leaf(kind)?;
            Ok(CertSlot::new(name, leaf.chain(), leaf.private_key())?)
        };
        Ok(Self {
            boot: BootCertificates {
                p256: slot(LeafKind::Boot, "boot P-256")?,
                rsa: slot(LeafKind::BootRsa, "boot RSA-3072")?,
            },
            attest: slot(LeafKind::Attest, "attest")?,
            admin: slot(LeafKind::AdminServer, "admin")?,
            admin_ca: appliance.ca.admin_ca(),
        })
    }
}

/// What the core starts with: rules, inventory, scopes, and everything the ledger and the journal
/// hold.
fn setup(config: &Config, appliance: &Appliance, catalog: Catalog) -> Result<Setup, ServeError> {
    let declared = Declared::load(config)?;
    let clock = Clock.read();
    let now = UnixMillis(clock.unix_ms);
    let recovered = &appliance.recovered;
    let entries = catalog
        .artefacts()
        .iter()
        .cloned()
        .map(CatalogEntry::new)
        .collect();
    let host = |port, default| match port {
        port if port == default => config.provisioning.address.address.to_string(),
        port => format!("{}:{port}", config.provisioning.address.address),
    };
    let ports = config.provisioning.ports;
    Ok(Setup {
        appliance: config.appliance.name.clone(),
        seal: seal_name(appliance.seal).to_owned(),
        rules: Rules {
            policy: Arc::new(declared.policy),
            directory: Arc::default(),
            ek_roots: Arc::new(declared.ek_roots),
            catalog: Arc::new(entries),
            time: time_trust(&clock),
            devid: DevIdRules {
                template: match config.devid.kind {
                    DevIdKind::Any => None,
                    DevIdKind::EccP256 => Some(Template::DevIdP256),
                    DevIdKind::Rsa2048 => Some(Template::DevIdRsa2048),
                },
                secret_auth: config.devid.auth == DevIdAuth::Pcr,
            },
        },
        inventory: declared.inventory,
        dhcp: dhcp_config(config)?,
        boot: BootSettings {
            server_addr: config.provisioning.address.address,
            policy: BootPolicy {
                https_host: host(ports.boot_https, 443),
                http_host: host(ports.http, 80),
                http_boot: HttpBoot::default(),
                hold_retry_secs: HOLD_RETRY_SECS,
            },
            catalog: Arc::new(catalog),
        },
        ledger: appliance
            .ledger
            .entries
            .iter()
            .map(|entry| (entry.seq, entry.time, entry.record.clone()))
            .collect(),
        leases: recovered.leases.clone(),
        marks: recovered.marks.clone(),
        now,
    })
}

/// How far a clock reading is trusted.
pub(crate) fn time_trust(reading: &WallClock) -> TimeTrust {
    match reading.quality {
        ClockQuality::Unsynchronised => TimeTrust::None,
        // NTP here is unauthenticated: it is trusted no further than the clock it set.
        ClockQuality::Rtc | ClockQuality::Ntp => TimeTrust::Rtc(UnixMillis(reading.unix_ms)),
    }
}

fn dhcp_config(config: &Config) -> Result<dhcp::Config, ServeError> {
    let part = &config.provisioning;
    let mistakes = |text: String| ServeError::Dhcp(text);
    let subnet = dhcp::Subnet::new(part.address.address, part.address.prefix)
        .ok_or_else(|| mistakes("\n  provisioning.address: prefix 8 to 30".to_owned()))?;
    let scope = dhcp::Scope {
        subnet,
        pools: part
            .pool
            .map(|(start, end)| dhcp::Pool { start, end })
            .into_iter()
            .collect(),
        reservations: part
            .reservations
            .iter()
            .map(|r| dhcp::Reservation {
                client: dhcp::ReservedFor::Mac(netstack::MacAddr(r.mac.0)),
                addr: r.address,
            })
            .collect(),
        lease_secs: part.lease_secs,
        routers: part.router.into_iter().collect(),
        dns: part.dns.clone(),
        domain: part.domain.clone(),
    };
    let dhcp = dhcp::Config::single(scope);
    dhcp.check().map_err(|found| {
        mistakes(
            found
                .iter()
                .map(|m| format!("\n  {}: expected {}, found {}", m.path, m.expected, m.found))
                .collect(),
        )
    })?;
    Ok(dhcp)
}
