//! `vestibule serve`: opens the appliance, replays the ledger, opens every listener, runs the
//! driver, and stops all of it together.
//!
//! Listeners are opened before anything is answered, so a port in use or a missing privilege ends
//! the start with one line. Readiness is told only when all of them are open.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use attest_wire::templates::Template;
use boot::catalog::{Artefact, Catalog};
use boot::plan::{BootPolicy, HttpBoot};
use gateway_core::admission::effect::Rules;
use gateway_core::appraisal::{DevIdRules, TimeTrust};
use gateway_core::bootfile::{BootSettings, BootSettings6};
use gateway_core::catalog::CatalogEntry;
use gateway_core::gateway::{Gateway, Setup};
use gateway_core::identity::UnixMillis;
use gateway_core::record::{POLICY_TEXT_MAX_BYTES, Record};
use hw::clock::{Clock, ClockQuality, WallClock};
use netstack::{dhcp, dhcp6, ra};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::admin::{self, AdminService};
use crate::appliance::{Appliance, ApplianceError, seal_name};
use crate::ca::{Ca, CaError, Leaf, LeafKind};
use crate::config::{Config, DevIdAuth, DevIdKind, DhcpMode};
use crate::disks::DiskImages;
use crate::driver::{Driver, DriverError, Forward, Late};
use crate::effects::Performer;
use crate::gate::GateDoor;
use crate::handle::Handle;
use crate::images::{ImageError, ImageStore, Images};
use crate::inventory::{Declared, DeclaredError, unmatched};
use crate::issue::Issuer;
use crate::metrics::Metrics;
use crate::neighbours::Neighbours;
use crate::retention;
use crate::shell::boot_source::BootSource;
use crate::shell::dhcp::{DhcpError, DhcpSocket};
use crate::shell::dhcp6::{Dhcp6Error, Dhcp6Socket};
use crate::shell::enroll::{self, AttestService};
use crate::shell::health::{self, HealthService};
use crate::shell::https_boot::{self, BootService};
use crate::shell::kms::{self, KmsService};
use crate::shell::listen::{self, BindError, Listener};
use crate::shell::lldp::LldpService;
use crate::shell::ra::RaSocket;
use crate::shell::segment::Segment;
use crate::shell::talos::TalosService;
use crate::shell::tftp;
use crate::shell::tls::{self, BootCertificates, CertSlot, TlsError};
use crate::talos::{TalosError, Templates};
use crate::{spire, telemetry};

/// Questions to the driver that may wait: a boot storm's worth of DISCOVERs. Beyond it DHCP drops
/// and counts, everybody else waits.
const REQUESTS_MAX: usize = 1_024;
/// How often the appliance's own certificates are looked at; they are renewed weeks ahead.
const RENEWAL_CHECK: Duration = Duration::from_secs(3_600);
/// Open files that the bounds of the listeners add up to, and as many again of our own.
const OPEN_FILES_MIN: u64 = 4_096;
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
    /// Templates of machine configs.
    #[error("[talos]")]
    Talos(#[from] TalosError),
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
    /// The DHCPv6 listener.
    #[error("cannot serve DHCPv6")]
    Dhcp6Socket(#[from] Dhcp6Error),
    /// Router Advertisements.
    #[error("cannot send Router Advertisements")]
    Ra(#[from] hw::nic::NicError),
    /// The TFTP listener.
    #[error("cannot listen on UDP {address} for TFTP")]
    Tftp {
        /// Where.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The gate is not in place.
    #[error("the gate is not in place, so nobody is served")]
    Gate(#[from] hw::gate::GateError),
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
    match hw::files::raise_open_files() {
        Ok(limit) if limit < OPEN_FILES_MIN => tracing::warn!(
            limit,
            needed = OPEN_FILES_MIN,
            "few files may be open: raise LimitNOFILE, or listeners refuse before their bounds"
        ),
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "cannot read the limit of open files"),
    }
    // The TPM and the first start's RSA key take seconds: off the async threads.
    let opened = {
        let config = config.clone();
        tokio::task::spawn_blocking(move || Appliance::open(&config)).await
    };
    let mut appliance = opened.map_err(|_| ServeError::Task("open"))??;
    let mut declared = Declared::load(&config)?;
    let templates = Arc::new(Templates::load(&config.talos)?);
    let metrics = Arc::new(Metrics::default());
    let (catalog, images) = Images::load(&config.boot)?;
    let images = ImageStore::new(images);
    let disks = {
        let (dir, entries) = (config.boot.image_dir.clone(), catalog.disks().to_vec());
        tokio::task::spawn_blocking(move || DiskImages::open(&dir, &entries)).await
    };
    let disks = Arc::new(disks.map_err(|_| ServeError::Task("disk images"))??);
    let (handle, requests) = Handle::new(REQUESTS_MAX);
    let dhcp = DhcpSocket::open(
        &config.provisioning.interface,
        config.provisioning.address.address,
        config.provisioning.ports.dhcp,
    )?;
    let v6 = match &config.provisioning.ipv6 {
        Some(_) => Some(Dhcp6Socket::open(&config.provisioning.interface)?),
        None => None,
    };
    let ra = match ra_config(&config)? {
        Some(ra) => Some(RaSocket::open(&config.provisioning.interface, ra)?),
        None => None,
    };
    let interface = config.provisioning.interface.as_str();
    let segment = Segment::open(interface).map_err(|source| DhcpError::Interface {
        iface: interface.to_owned(),
        source,
    })?;
    let lldp = LldpService::new(&config, metrics.clone());
    let mut listeners = Listeners::bind(&config, &metrics, lldp.neighbours()).await?;
    listeners.talos = config.talos.client_id.is_some().then(|| TalosService {
        handle: handle.clone(),
        templates,
        host: boot_policy(&config, config.provisioning.address.address.into()).https_host,
    });
    let certificates = Certificates::of(&appliance)?;
    let clock = Clock;
    let known = appliance.ledger.entries.iter().map(|entry| &entry.record);
    let change = declared.policy.change(known);
    told_at_start(&declared, catalog.artefacts(), change.as_ref());
    appliance.records.extend(change);
    appliance.begin(UnixMillis(clock.now_ms()))?;
    if let Some(keep_days) = config.ledger.keep_days {
        let known = entries_of(&catalog);
        let rules = (&declared.inventory, known.as_slice(), &declared.ek_roots);
        let now = UnixMillis(clock.now_ms());
        retention::apply(&mut appliance, keep_days, rules, now)?;
    }

    let registrar = config.spire.as_ref().map(|part| {
        let device_ca = appliance.device.certificate();
        (part.clone(), spire::settings(&config, part, &device_ca))
    });
    let handover = std::mem::take(&mut declared.handover);
    let gateway = Gateway::new(setup(&config, declared, &appliance, catalog)?);
    let gate = gate_in_place(&config, &gateway, &metrics).await?;
    let signer = appliance.ca.receipt_signer()?;
    let grants = appliance.ca.grant_signer()?;
    let issuer = Arc::new(Issuer::new(appliance.device, signer, grants, handover));
    let probe_wait = Duration::from_millis(config.provisioning.conflict_probe_ms.into());
    let performer = Performer::new(
        dhcp.sender(Arc::clone(&metrics)),
        v6.as_ref().map(|v6| v6.sender(Arc::clone(&metrics))),
        segment.sender(dhcp.raw(), probe_wait, Arc::clone(&metrics)),
        gate.clone(),
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
        late: Late::default(),
        cancel: cancel.clone(),
    };

    let ready = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    listeners.spawn(
        &mut tasks,
        gate,
        &certificates,
        &handle,
        &images,
        &disks,
        &metrics,
        &ready,
        &cancel,
    )?;
    let (held, token) = (images.clone(), cancel.clone());
    tasks.spawn(async move {
        held.run(token).await;
        Ok("images")
    });
    let (ca, doors, token) = (Arc::new(appliance.ca), handle.clone(), cancel.clone());
    tasks.spawn(async move {
        renew(ca, certificates, doors, token).await;
        Ok("renewal")
    });
    if let Some(v6) = v6 {
        let (handle, metrics, token) = (handle.clone(), metrics.clone(), cancel.clone());
        tasks.spawn(async move {
            v6.run(handle, metrics, token).await;
            Ok("dhcp6")
        });
    }
    if let Some(ra) = ra {
        let (metrics, token) = (metrics.clone(), cancel.clone());
        tasks.spawn(async move {
            ra.run(metrics, token).await;
            Ok("ra")
        });
    }
    if let Some((part, settings)) = registrar {
        let (doors, metrics, token) = (handle.clone(), metrics.clone(), cancel.clone());
        tasks.spawn(async move {
            spire::run(part, settings, doors, metrics, token).await;
            Ok("spire")
        });
    }
    let (doors, token) = (handle.clone(), cancel.clone());
    tasks.spawn(async move {
        segment.run(doors, token).await;
        Ok("segment")
    });
    let token = cancel.clone();
    tasks.spawn(async move {
        dhcp.run(handle, metrics, token).await;
        Ok("dhcp")
    });
    let token = cancel.clone();
    tasks.spawn(async move {
        lldp.run(token).await;
        Ok("lldp")
    });
    tasks.spawn(async move {
        driver
            .run()
            .await
            .map(|()| "driver")
            .map_err(ServeError::from)
    });
    // Replaying the ledger, the TPM's answers, the check of the artefacts: all of it is over.
    hw::heap::release();
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

/// Before anybody is answered: the rules that drop, and of the set exactly what the ledger says.
async fn gate_in_place(
    config: &Config,
    gateway: &Gateway,
    metrics: &Arc<Metrics>,
) -> Result<GateDoor, ServeError> {
    let now = UnixMillis(Clock.now_ms());
    let (open, shut) = (gateway.gate_open(now), gateway.gate_shut(now));
    let (config, metrics) = (config.clone(), Arc::clone(metrics));
    let start = move || GateDoor::start(&config, &open, &shut, metrics);
    let started = tokio::task::spawn_blocking(start).await;
    Ok(started.map_err(|_| ServeError::Task("gate"))??)
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

/// How long an IPv6 address may still be tentative at the start: duplicate address detection takes
/// one to two seconds after the link is up (RFC 4862 section 5.4).
const TENTATIVE_MAX: Duration = Duration::from_secs(5);

/// What listens on one address of the provisioning side.
struct Inside {
    http: Listener,
    boot: Listener,
    attest: Listener,
    kms: Option<Listener>,
    tftp: UdpSocket,
    tftp_options: tftp::Options,
}

impl Inside {
    async fn bind(
        config: &Config,
        address: IpAddr,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, ServeError> {
        let ports = config.provisioning.ports;
        let at = |port| SocketAddr::new(address, port);
        let tcp = |name, port, bounds| Listener::bind(name, at(port), bounds, metrics.clone());
        let tftp = at(ports.tftp);
        let started = Instant::now();
        let tftp = loop {
            match UdpSocket::bind(tftp) {
                Ok(socket) => break socket,
                Err(error)
                    if address.is_ipv6()
                        && error.kind() == std::io::ErrorKind::AddrNotAvailable
                        && started.elapsed() < TENTATIVE_MAX =>
                {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(source) => {
                    let address = tftp;
                    return Err(ServeError::Tftp { address, source });
                }
            }
        };
        Ok(Self {
            http: tcp("http", ports.http, listen::BOOT).await?,
            boot: tcp("boot", ports.boot_https, listen::BOOT).await?,
            attest: tcp("attest", ports.attest, listen::ATTEST).await?,
            kms: match config.talos.kms_port {
                Some(port) => Some(tcp("kms", port, kms::BOUNDS).await?),
                None => None,
            },
            tftp,
            tftp_options: tftp_options(config),
        })
    }
}

fn tftp_options(config: &Config) -> tftp::Options {
    let mut options = tftp::Options {
        ports: config.provisioning.tftp.ports,
        ..tftp::Options::default()
    };
    options.bounds.transfer.block_len_max = config.provisioning.tftp.block_bytes_max;
    options
}

/// Every TCP and TFTP listener, open.
struct Listeners {
    inside: Vec<Inside>,
    admin: Listener,
    health: Listener,
    http_boot: HttpBoot,
    talos: Option<TalosService>,
    hosts: Vec<String>,
    ekseal: bool,
    neighbours: Neighbours,
}

impl Listeners {
    async fn bind(
        config: &Config,
        metrics: &Arc<Metrics>,
        neighbours: Neighbours,
    ) -> Result<Self, ServeError> {
        let mut inside = Vec::new();
        for address in inside_addresses(config) {
            inside.push(Inside::bind(config, address, metrics).await?);
        }
        let outside = |port| SocketAddr::new(config.management.address, port);
        let tcp = |name, address, bounds| Listener::bind(name, address, bounds, metrics.clone());
        Ok(Self {
            inside,
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
            http_boot: config.provisioning.http_boot,
            talos: None,
            hosts: admin::hosts(&config.management, config.management.admin_port),
            ekseal: config.handover.ekseal,
            neighbours,
        })
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the one place where all parts meet"
    )]
    fn spawn(
        self,
        tasks: &mut JoinSet<Result<&'static str, ServeError>>,
        gate: GateDoor,
        certificates: &Certificates,
        handle: &Handle,
        images: &ImageStore,
        disks: &Arc<DiskImages>,
        metrics: &Arc<Metrics>,
        ready: &Arc<AtomicBool>,
        cancel: &CancellationToken,
    ) -> Result<(), ServeError> {
        let boot = BootService {
            handle: handle.clone(),
            images: images.clone(),
            http_boot: self.http_boot,
            talos: self.talos,
            metrics: metrics.clone(),
        };
        let attest = AttestService {
            handle: handle.clone(),
            disks: disks.clone(),
            metrics: metrics.clone(),
        };
        let source = Arc::new(BootSource {
            handle: handle.clone(),
            images: images.clone(),
            metrics: metrics.clone(),
        });
        let boot_tls = tls::boot_config(certificates.boot.clone())?;
        let attest_tls = tls::attest_config(certificates.attest.clone())?;
        for inside in self.inside {
            let (service, token) = (boot.clone(), cancel.clone());
            tasks.spawn(async move {
                https_boot::run_plain(inside.http, service, token).await;
                Ok("http")
            });
            let (service, token, tls) = (boot.clone(), cancel.clone(), boot_tls.clone());
            tasks.spawn(async move {
                https_boot::run_https(inside.boot, tls, service, token).await;
                Ok("boot")
            });
            let (service, token, tls) = (attest.clone(), cancel.clone(), attest_tls.clone());
            tasks.spawn(async move {
                enroll::run(inside.attest, tls, service, token).await;
                Ok("attest")
            });
            if let Some(listener) = inside.kms {
                let tls = kms::tls_config(certificates.boot.clone())?;
                let service = KmsService {
                    handle: handle.clone(),
                    metrics: metrics.clone(),
                };
                let token = cancel.clone();
                tasks.spawn(async move {
                    kms::run(listener, tls, service, token).await;
                    Ok("kms")
                });
            }
            let (socket, token, source) = (inside.tftp, cancel.clone(), source.clone());
            let options = inside.tftp_options;
            tasks.spawn(async move {
                let address = socket.local_addr();
                tftp::serve(socket, source, options, token)
                    .await
                    .map_err(|source| ServeError::Tftp {
                        address: address.unwrap_or(([0, 0, 0, 0], 0).into()),
                        source,
                    })?;
                Ok("tftp")
            });
        }
        let tls = tls::admin_config(certificates.admin.clone(), certificates.admin_ca.clone())?;
        let service = AdminService {
            handle: handle.clone(),
            metrics: metrics.clone(),
            hosts: Arc::new(self.hosts),
            ekseal: self.ekseal,
            neighbours: self.neighbours.clone(),
            gate: gate.clone(),
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
            neighbours: self.neighbours,
            gate,
        };
        let token = cancel.clone();
        tasks.spawn(async move {
            health::run(self.health, service, token).await;
            Ok("health")
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
            LeafKind::Receipt | LeafKind::Grant => None,
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
fn setup(
    config: &Config,
    declared: Declared,
    appliance: &Appliance,
    catalog: Catalog,
) -> Result<Setup, ServeError> {
    let clock = Clock.read();
    let now = UnixMillis(clock.unix_ms);
    let recovered = &appliance.recovered;
    let entries = entries_of(&catalog);
    let v4 = IpAddr::V4(config.provisioning.address.address);
    let v6 = config.provisioning.ipv6.as_ref().map(|v6| BootSettings6 {
        server_addr: v6.address.address,
        policy: boot_policy(config, v6.address.address.into()),
    });
    Ok(Setup {
        appliance: config.appliance.name.clone(),
        seal: seal_name(appliance.seal).to_owned(),
        talos: gateway_core::talos::Settings {
            kms: config
                .talos
                .kms_port
                .map(|_| gateway_core::talos::kms::Key::new(*appliance.disk_keys)),
            device: config
                .talos
                .client_id
                .clone()
                .map(|client_id| gateway_core::talos::device::Settings { client_id }),
        },
        counter: appliance.counter,
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
        dhcp6: dhcp6_config(config)?,
        boot: BootSettings {
            server_addr: config.provisioning.address.address,
            policy: boot_policy(config, v4),
            v6,
            catalog: Arc::new(catalog),
        },
        ledger: appliance
            .ledger
            .entries
            .iter()
            .map(|entry| (entry.seq, entry.time, entry.record.clone()))
            .chain(appliance.begun.iter().cloned())
            .collect(),
        leases: recovered.leases.clone(),
        leases6: recovered.leases6.clone(),
        marks: recovered.marks.clone(),
        gate: config.gate.settings(),
        grant_ms: config.install.grant_secs * 1_000,
        now,
    })
}

/// The catalogue without the owner's rules.
fn entries_of(catalog: &Catalog) -> Vec<CatalogEntry> {
    let artefacts = catalog.artefacts().iter().cloned();
    artefacts.map(CatalogEntry::new).collect()
}

/// What an owner may not have meant, or would miss later.
fn told_at_start(declared: &Declared, artefacts: &[Artefact], change: Option<&Record>) {
    for image in unmatched::images(&declared.policy, artefacts) {
        tracing::warn!(
            image,
            "the policy names an image that the catalogue does not have"
        );
    }
    let withdrawn = unmatched::withdrawals(&declared.policy, artefacts);
    let classes = unmatched::classes(&declared.policy, &declared.inventory);
    let deltas = unmatched::deltas(&declared.ek_roots);
    for warning in withdrawn.iter().chain(&classes).chain(&deltas) {
        tracing::warn!("{warning}");
    }
    if let Some(Record::Policy(change)) = change
        && change.text.is_none()
    {
        tracing::warn!(
            sha256 = change.sha256,
            max_bytes = POLICY_TEXT_MAX_BYTES,
            "the policy is too long for the ledger, which has its digest alone: keep the file"
        );
    }
}

/// Our addresses on the provisioning side.
fn inside_addresses(config: &Config) -> Vec<IpAddr> {
    let v6 = config.provisioning.ipv6.as_ref();
    let mut addresses = vec![IpAddr::V4(config.provisioning.address.address)];
    addresses.extend(v6.map(|v6| IpAddr::V6(v6.address.address)));
    addresses
}

/// Boot URLs that name us by `address`, an IPv6 one in brackets (RFC 3986 section 3.2.2).
fn boot_policy(config: &Config, address: IpAddr) -> BootPolicy {
    let literal = match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    let host = |port, default| match port {
        port if port == default => literal.clone(),
        port => format!("{literal}:{port}"),
    };
    let ports = config.provisioning.ports;
    BootPolicy {
        https_host: host(ports.boot_https, 443),
        http_host: host(ports.http, 80),
        http_boot: config.provisioning.http_boot,
        hold_retry_secs: HOLD_RETRY_SECS,
    }
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
        boot_lease_secs: part.boot_lease_secs,
        routers: part.router.into_iter().collect(),
        dns: part.dns.clone(),
        domain: part.domain.clone(),
    };
    let mut dhcp = dhcp::Config::single(scope);
    dhcp.mode = match part.dhcp_mode {
        DhcpMode::Server => dhcp::Mode::Server,
        DhcpMode::Proxy => dhcp::Mode::Proxy,
    };
    dhcp.bootp_dynamic = part.bootp_dynamic;
    let mut mac = [0; 6];
    crate::random::fill(&mut mac);
    // Individual and locally administered (IEEE 802 section 8.2.2): nobody else's.
    mac[0] = (mac[0] & 0xfc) | 2;
    dhcp.watch = Some(dhcp::WatchConfig {
        mac: netstack::MacAddr(mac),
        period_ms: u64::from(part.rogue_probe_secs) * 1000,
    });
    dhcp.limits.probe_ms = part.conflict_probe_ms.into();
    dhcp.limits.port_addrs_max = part.guard.port_addresses_max.into();
    dhcp.limits.port_rate.per_sec = part.guard.port_clients_per_sec.into();
    dhcp.limits.reserve_percent = part.guard.reserve_percent;
    dhcp.limits.reserve_known_percent = part.guard.reserve_percent / 3;
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

/// Our hardware address on the provisioning side, for the DUID and for Router Advertisements.
fn inside_mac(config: &Config) -> Result<netstack::MacAddr, ServeError> {
    let mac = hw::nic::hardware_address(&config.provisioning.interface)?;
    Ok(netstack::MacAddr(mac))
}

fn dhcp6_config(config: &Config) -> Result<Option<dhcp6::Config>, ServeError> {
    let part = &config.provisioning;
    let Some(v6) = &part.ipv6 else {
        return Ok(None);
    };
    let (start, end) = v6.pool;
    let config = dhcp6::Config {
        lease_secs: part.lease_secs,
        dns: v6.dns.clone(),
        domain: part.domain.clone(),
        ..dhcp6::Config::new(
            dhcp6::Duid::link_layer(inside_mac(config)?),
            v6.address.address,
            v6.address.prefix(),
            dhcp6::Pool { start, end },
        )
    };
    config.check().map_err(|found| {
        let lines = found.iter();
        ServeError::Dhcp(lines.map(|m| format!("\n  ipv6: {m}")).collect())
    })?;
    Ok(Some(config))
}

/// The prefix is announced for as long as a lease, at least an hour: advertisements are minutes
/// apart and may be lost.
fn ra_config(config: &Config) -> Result<Option<ra::Config>, ServeError> {
    let Some(v6) = &config.provisioning.ipv6 else {
        return Ok(None);
    };
    Ok(Some(ra::Config {
        mac: inside_mac(config)?,
        prefix: v6.address.prefix(),
        prefix_secs: config.provisioning.lease_secs.max(3_600),
        router_lifetime_secs: v6.router_lifetime_secs,
        mtu: None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// iPXE that was started by HTTP boot knows no DNS server (ipxe/ipxe#1316).
    #[test]
    fn ipxe_1316_boot_urls_use_the_address_and_not_a_name() {
        let text = include_str!("../config.example.toml");
        let other = text
            .replace("\nhttp_port = 80", "\nhttp_port = 8080")
            .replace("boot_https_port = 443", "boot_https_port = 8444");
        for (text, address, http, https) in [
            (text, "10.20.0.1", "10.20.0.1", "10.20.0.1"),
            (&other, "10.20.0.1", "10.20.0.1:8080", "10.20.0.1:8444"),
            (text, "fd00::1", "[fd00::1]", "[fd00::1]"),
        ] {
            let config = Config::parse(text, std::path::Path::new("/")).expect("valid");
            let policy = boot_policy(&config, address.parse().expect("an address"));
            assert_eq!((&*policy.http_host, &*policy.https_host), (http, https));
            let url = boot::plan::script_url(&policy, None, None);
            assert_eq!(url, format!("https://{https}/boot/script.ipxe"));
        }
    }
}
