//! Reads `[talos]`: templates, values, and what is served to Talos nodes.

use std::path::{Path, PathBuf};

use gateway_core::strict_toml::Section;
use gateway_core::talos::render::{BUILT_IN, Values, is_name, value_mistake};

use super::{in_section, path, port};

/// Most classes with a template or values of their own.
const CLASSES_MAX: usize = 256;
/// Most machines with values of their own.
const MACHINES_MAX: usize = 16_384;
/// Most values of one of them.
const VALUES_MAX: usize = 64;

/// `[talos]`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Talos {
    /// Template of classes that have none.
    pub template: Option<PathBuf>,
    /// JSON Schema that rendered configs are checked against.
    pub schema: Option<PathBuf>,
    /// Values for all machines.
    pub values: Values,
    /// `[[talos.class]]`
    pub classes: Vec<Scope>,
    /// `[[talos.machine]]`; they have no template.
    pub machines: Vec<Scope>,
    /// Port of the KMS, where it is served.
    pub kms_port: Option<u16>,
    /// Client id of the device flow, where it is served.
    pub client_id: Option<String>,
}

/// What a class or a machine has of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// Its name.
    pub name: String,
    /// Template.
    pub template: Option<PathBuf>,
    /// Values.
    pub values: Values,
}

pub(super) fn read(section: &Section<'_, '_>, base: &Path) -> Talos {
    let talos = Talos {
        template: path(section, "template", base),
        schema: path(section, "schema", base),
        values: values(section),
        classes: scopes(section, "class", CLASSES_MAX, Some(base)),
        machines: scopes(section, "machine", MACHINES_MAX, None),
        kms_port: in_section(section, "kms", |kms| {
            kms.present().then(|| port(kms, "port", 4050)).flatten()
        }),
        client_id: in_section(section, "device", |device| {
            let id = device.string("client_id");
            device.present().then(|| client_id(device, id)).flatten()
        }),
    };
    if talos.client_id.is_some()
        && talos.template.is_none()
        && talos.classes.iter().all(|class| class.template.is_none())
    {
        section.mistake(
            "template",
            "a template for the device flow to hand out",
            "none",
        );
    }
    talos
}

fn client_id(section: &Section<'_, '_>, id: Option<String>) -> Option<String> {
    let id = id.unwrap_or_else(|| "vestibule".to_owned());
    let usable = (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic());
    if !usable {
        let expected = "1 to 64 printable characters without spaces";
        section.mistake("client_id", expected, format!("{id:?}"));
    }
    usable.then_some(id)
}

fn scopes(
    section: &Section<'_, '_>,
    key: &'static str,
    max: usize,
    base: Option<&Path>,
) -> Vec<Scope> {
    let mut scopes: Vec<Scope> = Vec::new();
    for one in section.sections(key, max) {
        let name = one.string("name");
        let name = one.required("name", "a name", name);
        let template = base.and_then(|base| path(&one, "template", base));
        let values = values(&one);
        if let Some(name) = name {
            if scopes.iter().any(|scope| scope.name == name) {
                one.mistake("name", "a name that stands once", format!("{name:?} again"));
            }
            scopes.push(Scope {
                name,
                template,
                values,
            });
        }
        one.close();
    }
    scopes
}

/// `values = ["name=value"]`: a list, since keys are the operator's own.
fn values(section: &Section<'_, '_>) -> Values {
    let mut values = Values::new();
    for text in section.list::<String>("values", "a text name=value", VALUES_MAX) {
        // A value may be a secret: only the name is told.
        let name = text.split('=').next().unwrap_or_default().to_owned();
        let shown: String = name.chars().take(40).collect();
        match text.split_once('=') {
            Some((name, _)) if !is_name(name) => {
                section.mistake("values", "a name of a-z, 0-9 and _", format!("{shown:?}"));
            }
            Some((name, _)) if BUILT_IN.contains(&name) => {
                let expected = "a name that the gateway does not fill in itself";
                section.mistake("values", expected, format!("{shown:?}"));
            }
            Some((name, value)) => {
                if let Some(found) = value_mistake(value) {
                    section.mistake("values", format!("{shown} of one line"), found);
                } else if values.insert(name.to_owned(), value.to_owned()).is_some() {
                    section.mistake("values", "each name once", format!("{shown:?} again"));
                }
            }
            None => section.mistake("values", "name=value", format!("{shown:?}")),
        }
    }
    values
}
