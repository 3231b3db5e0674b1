//! Machine configs of Talos nodes: the operator's files, and what listeners ask of the core for them.

pub(crate) mod ask;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gateway_core::strict_toml::Mistake;
use gateway_core::talos::render::{self, BUILT_IN, Values};
use gateway_core::talos::schema::{SCHEMA_MAX_BYTES, Schema};
use gateway_core::talos::yaml::{self, TEXT_MAX_BYTES};
use zeroize::Zeroizing;

use crate::config::{LoadError, Talos};

/// Templates and values, read and checked.
pub struct Templates {
    config: Talos,
    /// Text by file. It may hold cluster secrets.
    texts: BTreeMap<PathBuf, Zeroizing<String>>,
    schema: Option<Schema>,
}

/// Why a config cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TalosError {
    /// A file cannot be read, or has mistakes.
    #[error(transparent)]
    File(#[from] LoadError),
    /// The schema cannot be used.
    #[error("{}: {text}", path.display())]
    Schema {
        /// Which file.
        path: PathBuf,
        /// Why.
        text: String,
    },
    /// A class without a template.
    #[error(
        "talos.template: expected a template for class {0}, found none; next: set talos.template, or \
         template in a [[talos.class]] of that name"
    )]
    NoTemplate(String),
    /// The config is not what the schema wants.
    #[error("{text}")]
    Violations {
        /// One line for each.
        text: String,
    },
}

impl Templates {
    /// Reads every file that `[talos]` names, and checks that each variable can have a value.
    ///
    /// # Errors
    /// The first file that cannot be used, with every mistake in it.
    pub fn load(config: &Talos) -> Result<Self, TalosError> {
        let mut texts = BTreeMap::new();
        let of_classes = config
            .classes
            .iter()
            .filter_map(|class| class.template.as_ref());
        for path in config.template.iter().chain(of_classes) {
            texts.insert(path.clone(), Zeroizing::new(read(path, TEXT_MAX_BYTES)?));
        }
        let schema = match &config.schema {
            None => None,
            Some(path) => Some(read_schema(path)?),
        };
        let templates = Self {
            config: config.clone(),
            texts,
            schema,
        };
        templates.check_names()?;
        Ok(templates)
    }

    /// A variable that no scope can give is found before a node asks.
    fn check_names(&self) -> Result<(), TalosError> {
        for (path, text) in &self.texts {
            let of_file = |mistakes| LoadError::Mistakes {
                path: path.clone(),
                mistakes,
            };
            let names = render::variables(text).map_err(of_file)?;
            let scopes = self.config.classes.iter().chain(&self.config.machines);
            let unknown: Vec<Mistake> = names
                .into_iter()
                .filter(|name| {
                    !BUILT_IN.contains(&name.as_str())
                        && !self.config.values.contains_key(name)
                        && !scopes.clone().any(|scope| scope.values.contains_key(name))
                })
                .map(|name| Mistake {
                    line: line_of(text, &name),
                    key: name,
                    expected: "a variable of the gateway or of values in [talos]".to_owned(),
                    found: "neither".to_owned(),
                })
                .collect();
            if !unknown.is_empty() {
                return Err(of_file(unknown).into());
            }
        }
        Ok(())
    }

    /// The config of a machine of this class; `facts` are the gateway's own variables.
    ///
    /// # Errors
    /// [`TalosError`]; none of them shows a value.
    pub fn render(
        &self,
        machine: &str,
        class: &str,
        facts: Values,
    ) -> Result<Zeroizing<String>, TalosError> {
        let named = |scopes: &[crate::config::TalosScope], name: &str| {
            scopes.iter().find(|scope| scope.name == name).cloned()
        };
        let of_class = named(&self.config.classes, class);
        let of_machine = named(&self.config.machines, machine);
        let own = of_class.as_ref().and_then(|class| class.template.as_ref());
        let path = own.or(self.config.template.as_ref());
        let Some((path, text)) = path.and_then(|path| self.texts.get_key_value(path)) else {
            return Err(TalosError::NoTemplate(class.to_owned()));
        };
        // The narrower scope wins; the gateway's facts are nobody's to change.
        let mut values = self.config.values.clone();
        values.extend(
            of_class
                .into_iter()
                .chain(of_machine)
                .flat_map(|scope| scope.values),
        );
        values.extend(facts);
        let text = render::render(text, &values).map_err(|mistakes| LoadError::Mistakes {
            path: path.clone(),
            mistakes,
        })?;
        if let Some(schema) = &self.schema {
            conforms(&text, schema, path)?;
        }
        Ok(text)
    }
}

/// Checks a config against a schema.
///
/// # Errors
/// [`TalosError::Violations`], one line for each; [`LoadError`] when it is not YAML.
pub fn conforms(text: &str, schema: &Schema, path: &Path) -> Result<(), TalosError> {
    let of_file = |mistakes| LoadError::Mistakes {
        path: path.to_owned(),
        mistakes,
    };
    let documents = yaml::documents(text).map_err(|mistake| of_file(vec![mistake]))?;
    render::check_documents(&documents).map_err(of_file)?;
    let mut lines = Vec::new();
    for document in &documents {
        for violation in schema.validate(&document.value) {
            let (file, line) = (path.display(), document.line);
            lines.push(format!("{file}: document at line {line}: {violation}"));
        }
    }
    if lines.is_empty() {
        return Ok(());
    }
    let text = lines.join("\n");
    Err(TalosError::Violations { text })
}

/// Reads a schema.
///
/// # Errors
/// It cannot be read or is not wholly understood.
pub fn read_schema(path: &Path) -> Result<Schema, TalosError> {
    let text = read(path, SCHEMA_MAX_BYTES)?;
    Schema::parse(text.as_bytes()).map_err(|text| TalosError::Schema {
        path: path.to_owned(),
        text,
    })
}

/// Reads a text file of at most `max` bytes.
///
/// # Errors
/// It cannot be read, is longer, or is not UTF-8.
pub fn read(path: &Path, max: usize) -> Result<String, LoadError> {
    use std::io::Read as _;
    let failed = |source| LoadError::Read {
        path: path.to_owned(),
        source,
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(max as u64 + 1)
        .read_to_string(&mut text)
        .map_err(failed)?;
    if text.len() > max {
        let error = format!("more than {max} bytes");
        return Err(failed(std::io::Error::new(
            std::io::ErrorKind::FileTooLarge,
            error,
        )));
    }
    Ok(text)
}

fn line_of(text: &str, name: &str) -> usize {
    let named = |line: &str| {
        let mut parts = line.split("{{").skip(1);
        parts.any(|part| {
            part.split("}}")
                .next()
                .is_some_and(|inner| inner.trim() == name)
        })
    };
    text.lines().position(named).map_or(1, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TalosScope;

    fn values(pairs: &[(&str, &str)]) -> Values {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    fn templates(text: &str, config: impl FnOnce(&mut Talos)) -> Result<Templates, TalosError> {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("worker.yaml");
        std::fs::write(&path, text).expect("written");
        let mut talos = Talos {
            template: Some(path),
            ..Talos::default()
        };
        config(&mut talos);
        Templates::load(&talos)
    }

    const TEXT: &str = "version: v1alpha1\nmachine:\n  type: {{ role }}\n  x: '{{ machine }}'\n";

    #[test]
    fn the_narrower_value_wins_and_facts_win_over_all() {
        let templates = templates(TEXT, |talos| {
            talos.values = values(&[("role", "worker")]);
            let scope = |name: &str, role: &str| TalosScope {
                name: name.to_owned(),
                template: None,
                values: values(&[("role", role)]),
            };
            talos.classes = vec![scope("control", "controlplane")];
            talos.machines = vec![scope("n9", "nine")];
        })
        .expect("good");
        for (machine, class, role) in [
            ("n1", "default", "worker"),
            ("n1", "control", "controlplane"),
            ("n9", "control", "nine"),
        ] {
            let text = templates
                .render(machine, class, values(&[("machine", machine)]))
                .expect("renders");
            assert!(
                text.contains(&format!("type: {role}\n  x: '{machine}'")),
                "{}",
                *text
            );
        }
    }

    #[test]
    fn rejects_a_variable_that_nobody_gives_at_the_start() {
        let error = templates(TEXT, |_| {}).err().expect("no role");
        let text = error.to_string();
        assert!(
            text.contains("worker.yaml") && text.contains("line 3: role:"),
            "{text}"
        );
        let none = Templates::load(&Talos::default()).expect("nothing to read");
        let error = none
            .render("n1", "gpu", Values::new())
            .expect_err("no template");
        assert!(error.to_string().contains("class gpu"), "{error}");
    }
}
