//! One arm per operation of the admin API. Each asks the driver and writes down its answer.

use std::time::Duration;

use gateway_core::identity::{MachineId, UnixMillis};
use gateway_core::reason::Reason;
use gateway_core::view::{EkCaImported, EkCaOutcome, EkCaResult, MachineView};
use hw::clock::Clock;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use serde::de::DeserializeOwned;

use super::types::{
    ApproveRequest, Done, EkCaImportRequest, FloorRequest, ImageList, InstallRequest, LedgerPage,
    MachineList, NoFields, SealRequest, SealedSecret, TalosCode, TalosCodeRequest, Timeline,
    WithdrawRequest,
};
use super::{AdminService, Operation, page};
use crate::handle::{Busy, Caller, Command, Install};
use crate::metrics::ADMIN_ACTS;
use crate::shell::http::{self, Body, Refusal};
use crate::telemetry;

/// Largest request body, in bytes: an approval with every field is below 2 KiB.
const BODY_MAX_BYTES: usize = 16 * 1024;
/// Largest import: 16 certificates of 8 KiB in base64.
const IMPORT_MAX_BYTES: usize = 192 * 1024;
/// Time to receive it.
const BODY_LIMIT: Duration = Duration::from_secs(10);
/// Most ledger entries per page: bounds one answer to about a megabyte.
const LEDGER_PAGE_MAX: usize = 1000;
/// Ledger entries per page when nothing is said.
const LEDGER_PAGE: usize = 200;

/// Performs one operation; `subject` is the `{}` segment of its path.
pub(super) async fn perform(
    service: &AdminService,
    caller: &Caller,
    operation: Operation,
    subject: String,
    request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let handle = &service.handle;
    let machine = MachineId(subject.clone());
    let command = match operation {
        Operation::Style => {
            return Ok(http::response(StatusCode::OK, "text/css", page::STYLE));
        }
        Operation::Page => {
            let status = handle.status().await.map_err(busy)?;
            let machines = handle.machines().await.map_err(busy)?;
            let images = handle.images().await.map_err(busy)?;
            return Ok(html(page::index(&status, &machines, &images, caller)));
        }
        Operation::MachinePage => {
            let view = machine_view(service, &machine).await?;
            let timeline = handle.timeline(machine).await.map_err(busy)?;
            return Ok(html(page::machine(&view, &timeline.unwrap_or_default())));
        }
        Operation::Status => {
            let status = handle.status().await.map_err(busy)?;
            return Ok(http::json(StatusCode::OK, &status));
        }
        Operation::Neighbours => {
            let list = service.neighbours.list(UnixMillis(Clock.now_ms()));
            return Ok(http::json(StatusCode::OK, &list));
        }
        Operation::Gate => {
            let view = service.gate.list().await.ok_or_else(no_gate)?;
            return Ok(http::json(StatusCode::OK, &view));
        }
        Operation::GateReconcile => return reconcile(service, caller, request).await,
        Operation::Machines => {
            let machines = handle.machines().await.map_err(busy)?;
            return Ok(http::json(StatusCode::OK, &MachineList { machines }));
        }
        Operation::Claims => {
            let mut machines = handle.machines().await.map_err(busy)?;
            machines.retain(|machine| machine.state == "pending");
            return Ok(http::json(StatusCode::OK, &MachineList { machines }));
        }
        Operation::Machine => {
            let view = machine_view(service, &machine).await?;
            return Ok(http::json(StatusCode::OK, &view));
        }
        Operation::Timeline => {
            let timeline = handle.timeline(machine.clone()).await.map_err(busy)?;
            let timeline = timeline.ok_or_else(|| unknown(&machine))?;
            return Ok(http::json(StatusCode::OK, &Timeline { timeline }));
        }
        Operation::Ledger => return ledger(service, request.uri().query()).await,
        Operation::Images => {
            let images = handle.images().await.map_err(busy)?;
            let disks = handle.disks().await.map_err(busy)?;
            return Ok(http::json(StatusCode::OK, &ImageList { images, disks }));
        }
        Operation::EkCas => {
            let list = handle.ek_cas().await.map_err(busy)?;
            return Ok(http::json(StatusCode::OK, &list));
        }
        Operation::EkUnmatched => {
            let list = handle.ek_unmatched().await.map_err(busy)?;
            return Ok(http::json(StatusCode::OK, &list));
        }
        Operation::EkExport => {
            let all = match http::query_value(request.uri().query(), "all").as_deref() {
                None | Some("false") => false,
                Some("true") => true,
                Some(other) => return Err(bad_field("all: true or false", other)),
            };
            let export = handle.ek_export(all).await.map_err(busy)?;
            return Ok(http::json(StatusCode::OK, &export));
        }
        Operation::EkCaImport => return import(service, caller, request).await,
        Operation::SealSecret => return seal(service, caller, machine, request).await,
        Operation::TalosCode => return talos_code(service, caller, machine, request).await,
        Operation::EkCaRemove => {
            let why = read::<WithdrawRequest>(request).await?.why;
            Command::EkCaRemove(subject, why)
        }
        Operation::Approve => read::<ApproveRequest>(request)
            .await?
            .into_command(machine)
            .map_err(bad_request)?,
        Operation::Withdraw => read::<WithdrawRequest>(request)
            .await?
            .into_command(machine)
            .map_err(bad_request)?,
        Operation::Cordon => bare(request, Command::Cordon(machine)).await?,
        Operation::Uncordon => bare(request, Command::Uncordon(machine)).await?,
        Operation::MarkInstalled => bare(request, Command::MarkInstalled(machine)).await?,
        Operation::Retire => bare(request, Command::Retire(machine)).await?,
        Operation::Install => read::<InstallRequest>(request)
            .await?
            .into_command(machine)
            .map_err(bad_request)?,
        Operation::InstallRetry => bare(request, Command::Install(machine, Install::Retry)).await?,
        Operation::InstallCancel => {
            let why = read::<WithdrawRequest>(request).await?.why;
            Command::Install(machine, Install::Cancel(why))
        }
        Operation::ImageFloor => {
            let floor = read::<FloorRequest>(request).await?.floor;
            Command::ImageFloor(subject, floor)
        }
        Operation::ImageWithdraw => bare(request, Command::ImageWithdraw(subject)).await?,
    };
    act(service, caller, command).await
}

async fn act(
    service: &AdminService,
    caller: &Caller,
    command: Command,
) -> Result<Response<Body>, Refusal> {
    let (act, subject) = describe(&command);
    let outcome = service
        .handle
        .command(caller.clone(), command)
        .await
        .map_err(busy)?;
    let done = if outcome.is_ok() { "done" } else { "refused" };
    service.metrics.count(ADMIN_ACTS, format!("{act}/{done}"));
    tracing::info!(
        by = %telemetry::redact(&caller.cn),
        role = caller.role.as_str(),
        act,
        subject = %telemetry::redact(&subject),
        outcome = done,
        "administrator"
    );
    match outcome {
        Ok(()) => Ok(http::json(StatusCode::OK, &Done { done: true })),
        Err(reason) => Err(Refusal::new(status_of(&reason), reason)),
    }
}

/// The gate is compared with its set and put right. Nothing is opened or closed by it that the ledger
/// does not say, so it is no act for the ledger.
async fn reconcile(
    service: &AdminService,
    caller: &Caller,
    request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    if !hyper::body::Body::is_end_stream(request.body()) {
        read::<NoFields>(request).await?;
    }
    let view = service.gate.reconcile().await.ok_or_else(no_gate)?;
    let outcome = if view.problem.is_none() {
        "done"
    } else {
        "failed"
    };
    service
        .metrics
        .count(ADMIN_ACTS, format!("gate_reconcile/{outcome}"));
    tracing::info!(
        by = %telemetry::redact(&caller.cn),
        role = caller.role.as_str(),
        act = "gate_reconcile",
        outcome,
        "administrator"
    );
    Ok(http::json(StatusCode::OK, &view))
}

fn no_gate() -> Refusal {
    Refusal::new(
        StatusCode::CONFLICT,
        Reason::new(
            "gate.none",
            "an appliance with a gate",
            "backend = \"none\", or a daemon that stops",
            "docs/OPERATIONS.md, the gate",
            "configure [gate] and start the daemon again",
        ),
    )
}

/// A one-time code for the device flow. Only the answer has it.
async fn talos_code(
    service: &AdminService,
    caller: &Caller,
    machine: MachineId,
    request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let window_secs = read::<TalosCodeRequest>(request).await?.window_secs;
    let window_ms = window_secs.saturating_mul(1_000);
    let made = service
        .handle
        .talos_code(caller.clone(), machine.clone(), window_ms)
        .await
        .map_err(busy)?;
    let done = if made.is_ok() { "done" } else { "refused" };
    service
        .metrics
        .count(ADMIN_ACTS, format!("talos_code/{done}"));
    tracing::info!(
        by = %telemetry::redact(&caller.cn),
        role = caller.role.as_str(),
        act = "talos_code",
        subject = %telemetry::redact(&machine.0),
        outcome = done,
        "administrator"
    );
    match made {
        Ok(code) => {
            let code = code.to_string();
            Ok(http::json(StatusCode::OK, &TalosCode { code }))
        }
        Err(reason) => Err(Refusal::new(status_of(&reason), reason)),
    }
}

/// CA certificates for EK chains. What became of each is in the answer; only a request that is wrong
/// as a whole is refused.
async fn import(
    service: &AdminService,
    caller: &Caller,
    request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let import = read_up_to::<EkCaImportRequest>(request, IMPORT_MAX_BYTES).await?;
    let import = import.into_import().map_err(bad_request)?;
    let outcome = service
        .handle
        .import_ek_cas(caller.clone(), import)
        .await
        .map_err(busy)?;
    let taken = |done: &EkCaImported| {
        let of = |result: &&EkCaResult| result.outcome == EkCaOutcome::Imported;
        done.results.iter().filter(of).count()
    };
    let taken = outcome.as_ref().map_or(0, taken);
    let done = if outcome.is_ok() { "done" } else { "refused" };
    service
        .metrics
        .count(ADMIN_ACTS, format!("ek_ca_import/{done}"));
    tracing::info!(
        by = %telemetry::redact(&caller.cn),
        role = caller.role.as_str(),
        act = "ek_ca_import",
        certificates = taken,
        outcome = done,
        "administrator"
    );
    match outcome {
        Ok(imported) => Ok(http::json(StatusCode::OK, &imported)),
        Err(reason) => Err(Refusal::new(status_of(&reason), reason)),
    }
}

/// Seals a secret to a machine's EK. Neither the secret nor the line is logged.
async fn seal(
    service: &AdminService,
    caller: &Caller,
    machine: MachineId,
    request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    if !service.ekseal {
        return Err(Refusal::new(
            StatusCode::CONFLICT,
            Reason::new(
                "secret.off",
                "handover.ekseal = true in the configuration",
                "false",
                "docs/OPERATIONS.md, secrets for other systems",
                "read what the form does not protect, then switch it on",
            ),
        ));
    }
    let body = read::<SealRequest>(request).await?;
    let wanted = body.into_request(machine).map_err(bad_request)?;
    let (subject, kind) = (wanted.machine.clone(), wanted.kind.clone());
    let outcome = service.handle.seal_secret(caller.clone(), wanted).await;
    let outcome = outcome.map_err(busy)?;
    let done = if outcome.is_ok() { "done" } else { "refused" };
    service
        .metrics
        .count(ADMIN_ACTS, format!("seal_secret/{done}"));
    tracing::info!(
        by = %telemetry::redact(&caller.cn),
        role = caller.role.as_str(),
        act = "seal_secret",
        subject = %telemetry::redact(&subject.0),
        kind = %telemetry::redact(&kind),
        outcome = done,
        "administrator"
    );
    match outcome {
        Ok(bundle) => Ok(http::json(StatusCode::OK, &SealedSecret { bundle })),
        Err(reason) => Err(Refusal::new(status_of(&reason), reason)),
    }
}

/// Name and subject of an act, for log and counters.
fn describe(command: &Command) -> (&'static str, String) {
    match command {
        Command::Approve { machine, .. } => ("approve", machine.0.clone()),
        Command::Cordon(machine) => ("cordon", machine.0.clone()),
        Command::Uncordon(machine) => ("uncordon", machine.0.clone()),
        Command::MarkInstalled(machine) => ("installed", machine.0.clone()),
        Command::Withdraw(machine, _) => ("withdraw", machine.0.clone()),
        Command::Retire(machine) => ("retire", machine.0.clone()),
        Command::Install(machine, act) => {
            let name = match act {
                Install::Begin { .. } => "install",
                Install::Retry => "install_retry",
                Install::Cancel(_) => "install_cancel",
            };
            (name, machine.0.clone())
        }
        Command::ImageFloor(name, _) => ("image_floor", name.clone()),
        Command::ImageWithdraw(sha256) => ("image_withdraw", sha256.clone()),
        Command::EkCaRemove(sha256, _) => ("ek_ca_remove", sha256.clone()),
    }
}

/// HTTP status of a refusal by the core: who is at fault, in HTTP's words.
fn status_of(reason: &Reason) -> StatusCode {
    match reason.code.split_once('.') {
        Some(("role", _)) => StatusCode::FORBIDDEN,
        Some((_, "unknown")) => StatusCode::NOT_FOUND,
        Some(("malformed", _)) => StatusCode::BAD_REQUEST,
        _ => StatusCode::CONFLICT,
    }
}

async fn ledger(service: &AdminService, query: Option<&str>) -> Result<Response<Body>, Refusal> {
    let number = |key: &str, default: u64| match http::query_value(query, key) {
        None => Ok(default),
        Some(text) => text
            .parse::<u64>()
            .map_err(|_| bad_field(&format!("{key}: a number"), &text)),
    };
    let from = number("from", 0)?;
    let max = usize::try_from(number("max", LEDGER_PAGE as u64)?)
        .unwrap_or(LEDGER_PAGE_MAX)
        .clamp(1, LEDGER_PAGE_MAX);
    let entries = service.handle.ledger(from, max).await.map_err(busy)?;
    let next = entries.last().map_or(from, |entry| entry.seq + 1);
    Ok(http::json(StatusCode::OK, &LedgerPage { entries, next }))
}

async fn machine_view(service: &AdminService, id: &MachineId) -> Result<MachineView, Refusal> {
    let machines = service.handle.machines().await.map_err(busy)?;
    machines
        .into_iter()
        .find(|machine| machine.machine == *id)
        .ok_or_else(|| unknown(id))
}

async fn read<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, Refusal> {
    read_up_to(request, BODY_MAX_BYTES).await
}

async fn read_up_to<T: DeserializeOwned>(
    request: Request<Incoming>,
    max: usize,
) -> Result<T, Refusal> {
    let body = http::read_body(request, max, BODY_LIMIT).await?;
    serde_json::from_slice(&body).map_err(|error| {
        bad_request(Reason::new(
            "malformed.json",
            "a JSON object with the documented fields",
            telemetry::redact(&error.to_string()),
            "docs/admin-api.md",
            "correct the request",
        ))
    })
}

/// An act without fields: its body is `{}` or empty.
async fn bare(request: Request<Incoming>, command: Command) -> Result<Command, Refusal> {
    let empty = hyper::body::Body::is_end_stream(request.body());
    if !empty {
        read::<NoFields>(request).await?;
    }
    Ok(command)
}

fn html(text: String) -> Response<Body> {
    http::response(StatusCode::OK, "text/html; charset=utf-8", text)
}

fn bad_field(expected: &str, found: &str) -> Refusal {
    bad_request(Reason::new(
        "malformed.field",
        expected.to_owned(),
        format!("{:?}", telemetry::redact(found)),
        "docs/admin-api.md",
        "correct the request",
    ))
}

fn bad_request(reason: Reason) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, reason)
}

fn unknown(id: &MachineId) -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        Reason::new(
            "machine.unknown",
            "a machine of this appliance",
            format!("{:?}", telemetry::redact(&id.0)),
            "docs/admin-api.md",
            "see GET /v1/machines",
        ),
    )
}

fn busy(busy: Busy) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, busy.reason())
}
