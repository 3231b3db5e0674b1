//! `vestibule talos`: machine configs at a desk, and codes of a running appliance.

use std::path::Path;

use gateway_core::talos::render::Values;
use gateway_core::talos::yaml::TEXT_MAX_BYTES;
use gateway_core::view::MachineView;
use serde_json::json;

use super::client::Client;
use super::machine::segment;
use super::{Desk, Exit, Failure, Output, TalosCommand};
use crate::admin::types::{TalosCode, TalosCodeRequest};
use crate::config::Config;
use crate::inventory::Declared;
use crate::talos::{self, TalosError, Templates};

/// `vestibule talos ...`
pub(super) fn run(out: &Output, command: TalosCommand) -> Result<Exit, Failure> {
    match command {
        TalosCommand::Render {
            machine,
            config,
            desk,
            mac,
            address,
        } => {
            let config = config.load()?;
            let (class, mut values) = match desk {
                Some(desk) => running(&machine, &desk)?,
                None => declared(&config, &machine)?,
            };
            let given = [("mac", mac), ("address", address.map(|a| a.to_string()))];
            for (name, value) in given {
                values.extend(value.map(|value| (name.to_owned(), value)));
            }
            let templates = Templates::load(&config.talos).map_err(failure)?;
            let text = templates
                .render(&machine, &class, values)
                .map_err(failure)?;
            eprintln!("warning: this text holds the cluster's secrets");
            out.print(&json!({ "config": &*text }), || text.to_string());
            Ok(Exit::Done)
        }
        TalosCommand::Check { file, schema } => check(out, &file, schema.as_deref()),
        TalosCommand::Code { one, window_secs } => {
            let path = format!("/v1/machines/{}/talos-code", segment(&one.machine)?);
            let request = TalosCodeRequest { window_secs };
            let made: TalosCode = Client::open(&one.desk)?.post(&path, &request)?;
            eprintln!(
                "warning: with this code machine {} gets its config, from its own address; a copy that \
                 is used elsewhere withdraws it",
                one.machine
            );
            out.print(&made, || made.code.clone());
            Ok(Exit::Done)
        }
    }
}

fn check(out: &Output, file: &Path, schema: Option<&Path>) -> Result<Exit, Failure> {
    let text = talos::read(file, TEXT_MAX_BYTES)?;
    let against = schema
        .map(talos::read_schema)
        .transpose()
        .map_err(failure)?;
    let everything = || gateway_core::talos::schema::Schema::parse(b"true");
    let read = match against {
        Some(schema) => schema,
        None => everything().map_err(|text| Failure::told(Exit::Usage, text))?,
    };
    talos::conforms(&text, &read, file).map_err(failure)?;
    out.print(&json!({ "ok": true, "schema": schema.is_some() }), || {
        match schema {
            Some(_) => "ok: documents, structure by the schema",
            None => "ok: documents; structure unchecked, since no --schema was given",
        }
        .to_owned()
    });
    Ok(Exit::Done)
}

/// Class and facts of a machine of the inventory; it may be unknown there.
fn declared(config: &Config, machine: &str) -> Result<(String, Values), Failure> {
    let declared = Declared::load(config)?;
    let mut values = Values::new();
    let found = declared
        .inventory
        .machines
        .iter()
        .find(|m| m.id.0 == machine);
    let Some(found) = found else {
        return Err(Failure::told(
            Exit::Usage,
            format!(
                "machine.unknown: expected a machine of the inventory, found none called {machine}; \
                 --desk takes the facts of a running appliance"
            ),
        ));
    };
    values.insert("serial".to_owned(), found.serial.clone());
    values.insert("class".to_owned(), found.class.clone());
    values.insert("machine".to_owned(), machine.to_owned());
    Ok((found.class.clone(), values))
}

/// The same of a running appliance.
fn running(machine: &str, desk: &Path) -> Result<(String, Values), Failure> {
    let desk = Desk {
        desk: desk.to_owned(),
        url: None,
        cert: None,
        key: None,
        ca: None,
    };
    let path = format!("/v1/machines/{}", segment(machine)?);
    let view: MachineView = Client::open(&desk)?.get(&path)?;
    let class = view.class.unwrap_or_else(|| "default".to_owned());
    let mut values = Values::new();
    values.insert("machine".to_owned(), machine.to_owned());
    values.insert("class".to_owned(), class.clone());
    values.extend(view.serial.map(|serial| ("serial".to_owned(), serial)));
    let mac = view.macs.first().map(ToString::to_string);
    values.extend(mac.map(|mac| ("mac".to_owned(), mac)));
    Ok((class, values))
}

fn failure(error: TalosError) -> Failure {
    let exit = match error {
        TalosError::File(_) | TalosError::Schema { .. } | TalosError::NoTemplate(_) => Exit::Usage,
        TalosError::Violations { .. } => Exit::Refused,
    };
    Failure::new(exit, &error)
}
