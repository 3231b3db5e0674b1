//! The gate's shell: one thread owns the backend and the set that should be open.
//!
//! Decides nothing about who passes: the core's changes come as effects, after their records. What it
//! adds is stubbornness: a change that fails is told, counted and made up for from the whole set until
//! it is in place, and what somebody else changed is found and put back. It fails closed: elements have
//! timeouts, and the rules that drop are put in place before DHCP answers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gateway_core::gate::{self as core, Change, Element, Network, Ports, Proto};
use gateway_core::identity::{MacAddr, MachineId};
use hw::gate::{self as device, Gate, GateError, Listing};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::config::{Config, GateBackend};
use crate::metrics::{GATE, Metrics};
use crate::telemetry;

/// How often the backend is compared with the set: what somebody else opens by hand stays open no
/// longer. One listing of a thousand elements takes below 100 ms.
const AUDIT: Duration = Duration::from_secs(10);
/// The same after a failure, at first and at most.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_LONGEST: Duration = Duration::from_secs(10);
/// Batches that are made one when they wait: a storm ends in one transaction.
const MERGE_MAX: usize = 256;

/// What the gate has, and what it should have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateView {
    /// `none`, `nftables` or `hook`.
    pub backend: String,
    /// What should be open.
    pub elements: Vec<GateElementView>,
    /// What is open and should not be; it is closed by the next comparison.
    pub foreign: Vec<String>,
    /// Why the gate may not be what it should be.
    pub problem: Option<String>,
    /// Times since the start that something else than the set was found and put right.
    pub repaired: u64,
}

/// One element.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateElementView {
    /// For whom.
    pub machine: MachineId,
    /// Addresses, destination and ports, or the switch port.
    pub element: String,
    /// Seconds until it closes by itself.
    pub left_secs: u64,
    /// Whether the backend has it.
    pub in_place: bool,
}

enum Order {
    Changes(Vec<Change>),
    List(oneshot::Sender<GateView>),
    Reconcile(oneshot::Sender<GateView>),
}

/// The door to the thread. Cheap to clone; without a gate it leads nowhere.
#[derive(Clone, Default)]
pub struct GateDoor {
    orders: Option<mpsc::Sender<Order>>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    elements: AtomicU64,
    failing: AtomicBool,
    problem: Mutex<Option<String>>,
}

impl GateDoor {
    /// Puts the gate in place with exactly `open` and starts its thread. Blocking.
    ///
    /// # Errors
    /// [`GateError`]: the gate is not in place, and nobody should be served.
    pub fn start(
        config: &Config,
        open: &[Change],
        shut: &[Element],
        metrics: Arc<Metrics>,
    ) -> Result<Self, GateError> {
        let Some((name, backend)) = backend(config)? else {
            return Ok(Self::default());
        };
        Self::with(name, backend, open, shut, metrics)
    }

    fn with(
        name: &'static str,
        backend: Box<dyn Gate>,
        open: &[Change],
        shut: &[Element],
        metrics: Arc<Metrics>,
    ) -> Result<Self, GateError> {
        let state = Arc::new(State::default());
        let (tx, rx) = mpsc::channel();
        let mut keeper = Keeper {
            name,
            backend,
            wanted: BTreeMap::new(),
            repaired: 0,
            retry: None,
            metrics,
            state: Arc::clone(&state),
        };
        keeper.want(open);
        let shut: Vec<_> = shut.iter().map(to_device).collect();
        let installed = keeper.backend.install(&keeper.timed(), &shut);
        match installed {
            Ok(()) => keeper.worked(),
            // A switch that does not answer must not keep the machines from booting: nothing is
            // opened by that.
            Err(error) if name == HOOK => keeper.failed(&error),
            Err(error) => return Err(error),
        }
        tracing::info!(
            backend = name,
            elements = keeper.wanted.len(),
            "gate in place"
        );
        std::thread::spawn(move || keeper.run(&rx));
        Ok(Self {
            orders: Some(tx),
            state,
        })
    }

    /// A gate with nothing to do.
    #[cfg(test)]
    pub(crate) fn of_test() -> Self {
        let hook = Box::new(device::Hook::new("/nonexistent".into()));
        Self::with(HOOK, hook, &[], &[], Arc::default()).expect("nothing was called")
    }

    /// Whether there is a gate.
    pub fn exists(&self) -> bool {
        self.orders.is_some()
    }

    /// Elements that are open now.
    pub fn elements(&self) -> u64 {
        self.state.elements.load(Ordering::Relaxed)
    }

    /// Whether the gate may not be what it should be.
    pub fn failing(&self) -> bool {
        self.state.failing.load(Ordering::Relaxed)
    }

    /// Hands over changes whose records are on disk.
    pub(crate) fn change(&self, changes: Vec<Change>) {
        if let Some(orders) = &self.orders {
            // Its thread ends with the daemon.
            let _ = orders.send(Order::Changes(changes));
        }
    }

    /// What is open.
    pub async fn list(&self) -> Option<GateView> {
        self.ask(Order::List).await
    }

    /// Compares now, and puts right.
    pub async fn reconcile(&self) -> Option<GateView> {
        self.ask(Order::Reconcile).await
    }

    async fn ask(&self, order: fn(oneshot::Sender<GateView>) -> Order) -> Option<GateView> {
        let (tx, rx) = oneshot::channel();
        self.orders.as_ref()?.send(order(tx)).ok()?;
        rx.await.ok()
    }
}

const NFTABLES: &str = "nftables";
const HOOK: &str = "hook";

/// A backend with its name.
type Named = (&'static str, Box<dyn Gate>);

fn backend(config: &Config) -> Result<Option<Named>, GateError> {
    let address = config.provisioning.address;
    Ok(match &config.gate.backend {
        GateBackend::None => None,
        GateBackend::NfTables { nft, uplink } => {
            let sides = device::Sides {
                inside: config.provisioning.interface.clone(),
                uplink: uplink.clone(),
                network: (address.network(), address.prefix),
            };
            if device::NfTables::forwarding() == Some(false) {
                tracing::warn!(
                    "the kernel does not forward IPv4 (net.ipv4.ip_forward = 0): an open gate lets \
                     nothing through"
                );
            }
            let gate = device::NfTables::new(nft.clone(), sides)?;
            Some((NFTABLES, Box::new(gate)))
        }
        GateBackend::Hook { program } => Some((HOOK, Box::new(device::Hook::new(program.clone())))),
    })
}

struct Keeper {
    name: &'static str,
    backend: Box<dyn Gate>,
    wanted: BTreeMap<Element, (MachineId, Instant)>,
    repaired: u64,
    /// How long to wait before the next try, after a failure.
    retry: Option<Duration>,
    metrics: Arc<Metrics>,
    state: Arc<State>,
}

impl Keeper {
    fn run(mut self, orders: &mpsc::Receiver<Order>) {
        let mut next = Instant::now() + AUDIT;
        let mut kept = None;
        loop {
            let wait = next.saturating_duration_since(Instant::now());
            let order = match kept.take() {
                Some(order) => Ok(order),
                None => orders.recv_timeout(wait),
            };
            let (before, mut audited) = (self.retry, false);
            match order {
                Ok(Order::Changes(mut changes)) => {
                    for _ in 1..MERGE_MAX {
                        match orders.try_recv() {
                            Ok(Order::Changes(more)) => changes.extend(more),
                            Ok(other) => kept = Some(other),
                            Err(_) => break,
                        }
                        if kept.is_some() {
                            break;
                        }
                    }
                    self.change(&changes);
                }
                Ok(Order::List(reply)) => drop(reply.send(self.view())),
                Ok(Order::Reconcile(reply)) => {
                    self.audit();
                    audited = true;
                    drop(reply.send(self.view()));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // Also while orders keep coming.
            if !audited && Instant::now() >= next {
                self.audit();
                audited = true;
            }
            if audited || self.retry != before {
                next = Instant::now() + self.retry.unwrap_or(AUDIT);
            }
        }
    }

    /// Whether the backend's elements end by themselves.
    fn counts(&self) -> bool {
        self.name != HOOK
    }

    fn want(&mut self, changes: &[Change]) {
        let now = Instant::now();
        for change in changes {
            match change {
                Change::Open {
                    element,
                    machine,
                    left_ms,
                } => {
                    let until = now + Duration::from_millis(*left_ms);
                    self.wanted
                        .insert(element.clone(), (machine.clone(), until));
                }
                Change::Close { element } => {
                    self.wanted.remove(element);
                }
            }
        }
    }

    fn change(&mut self, changes: &[Change]) {
        self.want(changes);
        // Of several changes of one element the last one counts; a close between two opens still
        // cuts what passed.
        let mut last = BTreeMap::new();
        let mut closed = Vec::new();
        for change in changes {
            match change {
                Change::Open {
                    element, left_ms, ..
                } => {
                    let open =
                        device::Change::Open(to_device(element), Duration::from_millis(*left_ms));
                    last.insert(element.clone(), open);
                }
                Change::Close { element } => {
                    last.remove(element);
                    closed.push(device::Change::Close(to_device(element)));
                }
            }
        }
        let opened = last.len() as u64;
        self.metrics.add(GATE, "closed", closed.len() as u64);
        self.metrics.add(GATE, "opened", opened);
        let started = Instant::now();
        let batch: Vec<_> = closed.into_iter().chain(last.into_values()).collect();
        match self.backend.apply(&batch) {
            Ok(()) if self.retry.is_none() => self.worked(),
            Ok(()) => {}
            Err(error) => {
                self.failed(&error);
                // At once, from the whole set: one element that cannot be changed must not keep
                // another one open.
                self.audit();
            }
        }
        tracing::debug!(
            changes = batch.len(),
            us = started.elapsed().as_micros() as u64,
            "gate changed"
        );
    }

    /// Compares the backend with the set and puts it right.
    fn audit(&mut self) {
        let listed = self.backend.list();
        let done = match &listed {
            Ok(listing) if listing.intact => {
                let wanted = self.left();
                let changes = core::diff(&wanted, &found(listing, self.counts(), &wanted));
                if changes.is_empty() {
                    return self.worked();
                }
                for change in &changes {
                    match change {
                        Change::Open { element, .. } => {
                            tracing::warn!(%element, "gate: missing, opened again");
                        }
                        Change::Close { element } => {
                            tracing::warn!(%element, "gate: foreign, closed");
                        }
                    }
                }
                let changes: Vec<_> = changes.iter().map(change_of).collect();
                self.backend.apply(&changes)
            }
            Ok(_) => {
                tracing::warn!("gate: its rules or elements were changed, put in place anew");
                self.backend.install(&self.timed(), &[])
            }
            Err(error) => {
                tracing::warn!(
                    error = telemetry::chain(error),
                    "gate: cannot be listed, put in place anew"
                );
                self.backend.install(&self.timed(), &[])
            }
        };
        // A batch is refused as a whole, so something foreign may be in the way of all of it.
        let done = done.or_else(|_| self.backend.install(&self.timed(), &[]));
        match done {
            Ok(()) => {
                self.repaired += 1;
                self.metrics.count(GATE, "repaired");
                self.worked();
            }
            Err(error) => self.failed(&error),
        }
    }

    fn worked(&mut self) {
        if self.retry.take().is_some() {
            tracing::info!(elements = self.wanted.len(), "gate in place again");
        }
        self.tell(None);
    }

    fn failed(&mut self, error: &GateError) {
        let text = telemetry::chain(error);
        self.metrics.count(GATE, "failed");
        let retry = self.retry.map_or(RETRY_FIRST, |before| before * 2);
        let retry = retry.min(RETRY_LONGEST);
        self.retry = Some(retry);
        tracing::error!(
            error = text,
            retry_ms = retry.as_millis() as u64,
            next = error.next,
            "the gate could not be changed"
        );
        self.tell(Some(text));
    }

    fn tell(&self, problem: Option<String>) {
        let state = &self.state;
        let elements = self.wanted.len() as u64;
        state.elements.store(elements, Ordering::Relaxed);
        state.failing.store(problem.is_some(), Ordering::Relaxed);
        *state.problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    /// The set with the time each element has left; what is over is on its way out.
    fn left(&self) -> BTreeMap<Element, (MachineId, u64)> {
        let now = Instant::now();
        let wanted = self.wanted.iter();
        wanted
            .filter(|(_, (_, until))| *until > now)
            .map(|(element, (machine, until))| {
                let left = until.saturating_duration_since(now).as_millis();
                let left = u64::try_from(left).unwrap_or(u64::MAX);
                (element.clone(), (machine.clone(), left))
            })
            .collect()
    }

    fn timed(&self) -> Vec<(device::Element, Duration)> {
        let left = self.left().into_iter();
        left.map(|(e, (_, left))| (to_device(&e), Duration::from_millis(left)))
            .collect()
    }

    fn view(&mut self) -> GateView {
        let wanted = self.left();
        let problem = &self.state.problem;
        let mut problem = problem
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let listing = match self.backend.list() {
            Ok(listing) => listing,
            Err(error) => {
                problem.get_or_insert(telemetry::chain(&error));
                Listing::default()
            }
        };
        let found = found(&listing, self.counts(), &wanted);
        if !listing.intact {
            problem.get_or_insert("rules or elements are not as they were left".to_owned());
        }
        let foreign = found.keys().filter(|e| !wanted.contains_key(e));
        GateView {
            backend: self.name.to_owned(),
            foreign: foreign.map(ToString::to_string).collect(),
            elements: wanted
                .iter()
                .map(|(element, (machine, left))| GateElementView {
                    machine: machine.clone(),
                    element: element.to_string(),
                    left_secs: left / 1_000,
                    in_place: found.contains_key(element),
                })
                .collect(),
            problem,
            repaired: self.repaired,
        }
    }
}

fn change_of(change: &Change) -> device::Change {
    match change {
        Change::Open {
            element, left_ms, ..
        } => device::Change::Open(to_device(element), Duration::from_millis(*left_ms)),
        Change::Close { element } => device::Change::Close(to_device(element)),
    }
}

/// What a backend without timeouts has open has the time that it should have.
fn found(
    listing: &Listing,
    counts: bool,
    wanted: &BTreeMap<Element, (MachineId, u64)>,
) -> BTreeMap<Element, Option<u64>> {
    let millis = |left: Duration| u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    let open = listing.open.iter();
    open.map(|(element, left)| {
        let element = to_core(element);
        let own = wanted.get(&element).map(|(_, left)| *left);
        let left = if counts { left.map(millis) } else { own };
        (element, left)
    })
    .collect()
}

fn to_device(element: &Element) -> device::Element {
    match element {
        Element::Flow {
            mac,
            addr,
            to,
            ports,
        } => device::Element::Flow(device::Flow {
            mac: mac.0,
            source: *addr,
            to: to.addr,
            prefix: to.prefix,
            proto: match ports.proto {
                Proto::Tcp => device::Proto::Tcp,
                Proto::Udp => device::Proto::Udp,
            },
            ports: (ports.first, ports.last),
        }),
        Element::Port { machine, port } => device::Element::Port(device::SwitchPort {
            machine: machine.0.clone(),
            port: port.clone(),
        }),
    }
}

fn to_core(element: &device::Element) -> Element {
    match element {
        device::Element::Flow(flow) => Element::Flow {
            mac: MacAddr(flow.mac),
            addr: flow.source,
            to: Network {
                addr: flow.to,
                prefix: flow.prefix,
            },
            ports: Ports {
                proto: match flow.proto {
                    device::Proto::Tcp => Proto::Tcp,
                    device::Proto::Udp => Proto::Udp,
                },
                first: flow.ports.0,
                last: flow.ports.1,
            },
        },
        device::Element::Port(at) => Element::Port {
            machine: MachineId(at.machine.clone()),
            port: at.port.clone(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A backend in memory that refuses while it is told to.
    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Inside>>);

    #[derive(Default)]
    struct Inside {
        open: BTreeMap<device::Element, Duration>,
        broken: bool,
        refuse: bool,
        refused: u32,
    }

    impl Memory {
        fn with<T>(&self, f: impl FnOnce(&mut Inside) -> T) -> T {
            f(&mut self.0.lock().expect("one thread at a time"))
        }

        fn attempt(&self) -> Result<(), GateError> {
            self.with(|inside| {
                inside.refused += u32::from(inside.refuse);
                let hook = device::Hook::new("/nonexistent".into());
                match inside.refuse {
                    true => Err(refusal(hook)),
                    false => Ok(()),
                }
            })
        }
    }

    /// Some error of the device: a hook that is not there.
    fn refusal(mut hook: device::Hook) -> GateError {
        let port = device::Element::Port(device::SwitchPort {
            machine: "m".to_owned(),
            port: "p".to_owned(),
        });
        let open = [device::Change::Open(port, Duration::ZERO)];
        hook.apply(&open).expect_err("there is no such program")
    }

    impl Gate for Memory {
        fn install(
            &mut self,
            open: &[(device::Element, Duration)],
            _shut: &[device::Element],
        ) -> Result<(), GateError> {
            self.attempt()?;
            self.with(|inside| {
                inside.open = open.iter().cloned().collect();
                inside.broken = false;
            });
            Ok(())
        }

        fn apply(&mut self, changes: &[device::Change]) -> Result<(), GateError> {
            self.attempt()?;
            self.with(|inside| {
                for change in changes {
                    match change {
                        device::Change::Open(e, left) => {
                            inside.open.insert(e.clone(), *left);
                        }
                        device::Change::Close(e) => {
                            inside.open.remove(e);
                        }
                    }
                }
            });
            Ok(())
        }

        fn list(&mut self) -> Result<Listing, GateError> {
            Ok(self.with(|inside| Listing {
                open: inside
                    .open
                    .iter()
                    .map(|(e, l)| (e.clone(), Some(*l)))
                    .collect(),
                intact: !inside.broken,
            }))
        }
    }

    fn element(n: u8) -> Element {
        Element::Flow {
            mac: MacAddr([2, 0, 0, 0, 0, n]),
            addr: [10, 0, 0, n].into(),
            to: "192.0.2.0/24".parse().expect("a network"),
            ports: "tcp/6443".parse().expect("ports"),
        }
    }

    fn open(n: u8) -> Change {
        Change::Open {
            element: element(n),
            machine: MachineId(format!("m{n}")),
            left_ms: 60_000,
        }
    }

    async fn eventually(what: &str, holds: impl Fn() -> bool) {
        for _ in 0..500 {
            if holds() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("not within 5 s: {what}");
    }

    #[tokio::test]
    async fn a_failure_is_counted_and_made_up_for_from_the_whole_set() {
        let (memory, metrics) = (Memory::default(), Arc::new(Metrics::default()));
        let backend = Box::new(memory.clone());
        let start = [open(1)];
        let door = GateDoor::with(NFTABLES, backend, &start, &[], metrics.clone()).expect("up");
        memory.with(|inside| inside.refuse = true);
        door.change(vec![
            open(2),
            Change::Close {
                element: element(1),
            },
        ]);
        eventually("failing", || door.failing()).await;
        assert!(metrics.get(GATE, "failed") >= 1);
        let view = door.list().await.expect("a view");
        assert!(view.problem.is_some_and(|p| p.contains("/nonexistent")));
        assert_eq!(view.foreign, [element(1).to_string()]);
        memory.with(|inside| inside.refuse = false);
        eventually("in place", || !door.failing()).await;
        let open: Vec<_> = memory.with(|inside| inside.open.keys().cloned().collect());
        assert_eq!(open, [to_device(&element(2))]);
        assert_eq!(door.elements(), 1);
    }

    #[tokio::test]
    async fn what_somebody_else_changed_is_put_back() {
        let (memory, metrics) = (Memory::default(), Arc::new(Metrics::default()));
        let backend = Box::new(memory.clone());
        let start = [open(1)];
        let door = GateDoor::with(NFTABLES, backend, &start, &[], metrics).expect("up");
        memory.with(|inside| {
            inside.open.clear();
            inside
                .open
                .insert(to_device(&element(9)), Duration::from_secs(900));
        });
        let view = door.list().await.expect("a view");
        assert_eq!(view.foreign, [element(9).to_string()]);
        assert!(!view.elements[0].in_place);
        let view = door.reconcile().await.expect("a view");
        assert_eq!((view.foreign.len(), view.elements[0].in_place), (0, true));
        memory.with(|inside| inside.broken = true);
        let view = door.reconcile().await.expect("a view");
        assert_eq!((view.problem, view.repaired), (None, 2));
    }

    #[test]
    fn a_gate_that_cannot_be_put_in_place_is_no_start() {
        let memory = Memory::default();
        memory.with(|inside| inside.refuse = true);
        let metrics = Arc::new(Metrics::default());
        let started = GateDoor::with(NFTABLES, Box::new(memory), &[], &[], metrics);
        assert!(started.is_err());
    }
}
