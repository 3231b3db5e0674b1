//! One machine: its state and the one table that moves it (docs/PROTOCOL.md section 9).
//!
//! Decides which event fits which state, and nothing else: whether evidence is good is the
//! appraisal's business, what is written down the caller's.

use super::event::{Event, Sub};
use crate::identity::{MachineId, UnixMillis};

/// Where a machine stands.
///
/// `Discovered` and `Challenged` live in memory only: after a restart the machine is back in the
/// settled state that the ledger proves, and walks again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Its keys are bound; it has not been seen since.
    Declared,
    /// It asked for an address or a boot file.
    Discovered(Sub),
    /// It proved possession; nobody has bound its keys yet.
    Pending,
    /// A challenge is out; `resume` is where it returns if the attempt fails.
    Challenged {
        /// The settled state beneath.
        resume: Settled,
    },
    /// The appraisal passed in this boot.
    Admitted {
        /// End of its LDevID, once issued.
        ldevid_not_after: Option<UnixMillis>,
    },
    /// Its disk is being written.
    Installing,
    /// Its disk is written and read back.
    Installed,
    /// The installed system proved itself.
    Active,
    /// Held by an administrator.
    Cordoned {
        /// Where it returns.
        resume: Settled,
    },
    /// Its access ended.
    Withdrawn {
        /// In the operator's words.
        why: String,
    },
    /// It left the fleet.
    Retired,
    /// Another board took its place; its keys stay refused.
    Replaced {
        /// The successor.
        by: MachineId,
    },
}

/// States a machine can return to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// See [`State::Declared`].
    Declared,
    /// See [`State::Admitted`].
    Admitted {
        /// End of its LDevID, once issued.
        ldevid_not_after: Option<UnixMillis>,
    },
    /// See [`State::Installing`].
    Installing,
    /// See [`State::Installed`].
    Installed,
    /// See [`State::Active`].
    Active,
}

impl From<Settled> for State {
    fn from(settled: Settled) -> Self {
        match settled {
            Settled::Declared => State::Declared,
            Settled::Admitted { ldevid_not_after } => State::Admitted { ldevid_not_after },
            Settled::Installing => State::Installing,
            Settled::Installed => State::Installed,
            Settled::Active => State::Active,
        }
    }
}

/// An event came that does not fit the state. It is counted and kept, and changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("event {event} does not fit state {state}")]
pub struct Unfit {
    /// The state.
    pub state: &'static str,
    /// The event.
    pub event: &'static str,
}

impl State {
    /// Name for API, ledger and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            State::Declared => "declared",
            State::Discovered(_) => "discovered",
            State::Pending => "pending",
            State::Challenged { .. } => "challenged",
            State::Admitted { .. } => "admitted",
            State::Installing => "installing",
            State::Installed => "installed",
            State::Active => "active",
            State::Cordoned { .. } => "cordoned",
            State::Withdrawn { .. } => "withdrawn",
            State::Retired => "retired",
            State::Replaced { .. } => "replaced",
        }
    }

    /// Whether its keys may be challenged now.
    pub fn may_attest(&self) -> bool {
        match self {
            State::Declared
            | State::Discovered(_)
            | State::Challenged { .. }
            | State::Admitted { .. }
            | State::Installing
            | State::Installed
            | State::Active => true,
            State::Pending
            | State::Cordoned { .. }
            | State::Withdrawn { .. }
            | State::Retired
            | State::Replaced { .. } => false,
        }
    }

    /// Whether a machine that was granted the way out may still use it: it was admitted, and nobody
    /// holds it back. A challenge changes nothing until it is answered.
    pub fn may_pass(&self) -> bool {
        match self {
            State::Admitted { .. } | State::Installing | State::Installed | State::Active => true,
            State::Challenged { resume } => State::from(*resume).may_pass(),
            State::Declared
            | State::Discovered(_)
            | State::Pending
            | State::Cordoned { .. }
            | State::Withdrawn { .. }
            | State::Retired
            | State::Replaced { .. } => false,
        }
    }

    /// End of its LDevID, while it is admitted and one was issued.
    pub fn ldevid_not_after(&self) -> Option<UnixMillis> {
        match self {
            State::Admitted { ldevid_not_after } => *ldevid_not_after,
            State::Declared
            | State::Discovered(_)
            | State::Pending
            | State::Challenged { .. }
            | State::Installing
            | State::Installed
            | State::Active
            | State::Cordoned { .. }
            | State::Withdrawn { .. }
            | State::Retired
            | State::Replaced { .. } => None,
        }
    }

    /// Whether it is no machine of the fleet any more.
    pub fn has_left(&self) -> bool {
        matches!(
            self,
            State::Withdrawn { .. } | State::Retired | State::Replaced { .. }
        )
    }

    /// The next state.
    ///
    /// # Errors
    /// [`Unfit`] when the event cannot happen to a machine in this state.
    pub fn next(&self, event: &Event) -> Result<State, Unfit> {
        use Event as E;
        use State as S;
        let unfit = Unfit {
            state: self.name(),
            event: event.name(),
        };
        Ok(match (self, event) {
            // A sighting moves only a machine that is no further along.
            (S::Declared | S::Discovered(_), E::Seen(sub)) => S::Discovered(*sub),
            (
                S::Pending
                | S::Challenged { .. }
                | S::Admitted { .. }
                | S::Installing
                | S::Installed
                | S::Active
                | S::Cordoned { .. }
                | S::Withdrawn { .. }
                | S::Retired
                | S::Replaced { .. },
                E::Seen(_),
            ) => self.clone(),

            // Claims exist only for keys that are bound to nothing.
            (S::Pending, E::Claimed) => S::Pending,
            (S::Pending, E::Approved) => S::Declared,

            // A second challenge replaces the first: the node lost its connection and came back.
            (S::Declared | S::Discovered(_), E::Challenged) => S::Challenged {
                resume: Settled::Declared,
            },
            (S::Challenged { .. }, E::Challenged) => self.clone(),
            (S::Admitted { ldevid_not_after }, E::Challenged) => S::Challenged {
                resume: Settled::Admitted {
                    ldevid_not_after: *ldevid_not_after,
                },
            },
            // A machine that lost power while its disk was written proves itself again. A challenge
            // alone proves nothing: anybody can show its public keys.
            (S::Installing, E::Challenged) => S::Challenged {
                resume: Settled::Installing,
            },
            (S::Installed, E::Challenged) => S::Challenged {
                resume: Settled::Installed,
            },
            (S::Active, E::Challenged) => S::Challenged {
                resume: Settled::Active,
            },

            (S::Challenged { resume }, E::AttemptEnded) => (*resume).into(),
            // The attempt of a machine that was cordoned or withdrawn meanwhile changes nothing.
            (
                S::Declared
                | S::Discovered(_)
                | S::Pending
                | S::Admitted { .. }
                | S::Installing
                | S::Installed
                | S::Active
                | S::Cordoned { .. }
                | S::Withdrawn { .. }
                | S::Retired
                | S::Replaced { .. },
                E::AttemptEnded,
            ) => self.clone(),

            // The ledger replays verdicts without the challenge before them.
            (S::Declared | S::Discovered(_) | S::Admitted { .. }, E::Admitted) => S::Admitted {
                ldevid_not_after: None,
            },
            (S::Installing | S::Installed | S::Active, E::Admitted) => self.clone(),
            // The same as without the challenge, or a restart would find another state.
            (S::Challenged { resume }, E::Admitted) => {
                return State::from(*resume).next(event);
            }
            (S::Admitted { .. }, E::Issued { not_after }) => S::Admitted {
                ldevid_not_after: Some(*not_after),
            },
            // Withdrawn or held between verdict and certificate: the certificate is on record, the
            // state stays.
            (
                S::Challenged { .. }
                | S::Installing
                | S::Installed
                | S::Active
                | S::Cordoned { .. }
                | S::Withdrawn { .. }
                | S::Retired
                | S::Replaced { .. },
                E::Issued { .. },
            ) => self.clone(),

            // Each boot of a run begins again.
            (S::Admitted { .. } | S::Installing, E::InstallStarted) => S::Installing,
            (S::Challenged { resume }, E::InstallStarted | E::InstallEnded | E::RunBegun) => {
                return State::from(*resume).next(event).map(beneath);
            }
            // Only an owner's word takes an installed machine back to the installer.
            (S::Installed | S::Active, E::RunBegun) => S::Admitted {
                ldevid_not_after: None,
            },
            (S::Declared | S::Discovered(_) | S::Admitted { .. } | S::Installing, E::RunBegun) => {
                self.clone()
            }
            (S::Installing, E::InstallEnded) => S::Admitted {
                ldevid_not_after: None,
            },
            (
                S::Declared
                | S::Discovered(_)
                | S::Admitted { .. }
                | S::Installed
                | S::Active
                | S::Cordoned { .. }
                | S::Withdrawn { .. }
                | S::Retired
                | S::Replaced { .. },
                E::InstallEnded,
            ) => self.clone(),
            (
                S::Declared | S::Discovered(_) | S::Admitted { .. } | S::Installing | S::Installed,
                E::Installed,
            ) => S::Installed,
            (S::Challenged { resume }, E::Installed) => {
                return State::from(*resume).next(event);
            }
            (S::Installed | S::Active, E::RuntimeProven) => S::Active,

            (S::Declared | S::Discovered(_), E::Cordoned) => S::Cordoned {
                resume: Settled::Declared,
            },
            (S::Challenged { resume }, E::Cordoned) => S::Cordoned { resume: *resume },
            (S::Admitted { ldevid_not_after }, E::Cordoned) => S::Cordoned {
                resume: Settled::Admitted {
                    ldevid_not_after: *ldevid_not_after,
                },
            },
            (S::Installing, E::Cordoned) => S::Cordoned {
                resume: Settled::Admitted {
                    ldevid_not_after: None,
                },
            },
            (S::Installed, E::Cordoned) => S::Cordoned {
                resume: Settled::Installed,
            },
            (S::Active, E::Cordoned) => S::Cordoned {
                resume: Settled::Active,
            },
            (S::Cordoned { .. }, E::Cordoned) => self.clone(),
            (S::Cordoned { resume }, E::Uncordoned) => (*resume).into(),

            // Access can end from everywhere but the ends; a pending claim is thereby rejected.
            (
                S::Declared
                | S::Discovered(_)
                | S::Pending
                | S::Challenged { .. }
                | S::Admitted { .. }
                | S::Installing
                | S::Installed
                | S::Active
                | S::Cordoned { .. }
                | S::Withdrawn { .. },
                E::Withdrawn { why },
            ) => S::Withdrawn { why: why.clone() },
            (S::Withdrawn { .. }, E::Retired) => S::Retired,
            (S::Withdrawn { .. } | S::Cordoned { .. } | S::Retired, E::ReplacedBy(by)) => {
                S::Replaced { by: by.clone() }
            }

            (
                S::Declared
                | S::Discovered(_)
                | S::Challenged { .. }
                | S::Admitted { .. }
                | S::Installing
                | S::Installed
                | S::Active
                | S::Cordoned { .. }
                | S::Withdrawn { .. }
                | S::Retired
                | S::Replaced { .. },
                E::Claimed | E::Approved,
            )
            | (
                S::Pending
                | S::Cordoned { .. }
                | S::Withdrawn { .. }
                | S::Retired
                | S::Replaced { .. },
                E::Challenged | E::Admitted,
            )
            | (S::Declared | S::Discovered(_) | S::Pending, E::Issued { .. })
            | (
                S::Declared
                | S::Discovered(_)
                | S::Pending
                | S::Installed
                | S::Active
                | S::Cordoned { .. }
                | S::Withdrawn { .. }
                | S::Retired
                | S::Replaced { .. },
                E::InstallStarted,
            )
            | (S::Pending, E::InstallEnded)
            | (
                S::Pending
                | S::Cordoned { .. }
                | S::Withdrawn { .. }
                | S::Retired
                | S::Replaced { .. },
                E::RunBegun,
            )
            | (
                S::Pending
                | S::Active
                | S::Cordoned { .. }
                | S::Withdrawn { .. }
                | S::Retired
                | S::Replaced { .. },
                E::Installed,
            )
            | (
                S::Declared
                | S::Discovered(_)
                | S::Pending
                | S::Challenged { .. }
                | S::Admitted { .. }
                | S::Installing
                | S::Cordoned { .. }
                | S::Withdrawn { .. }
                | S::Retired
                | S::Replaced { .. },
                E::RuntimeProven,
            )
            | (S::Pending | S::Withdrawn { .. } | S::Retired | S::Replaced { .. }, E::Cordoned)
            | (
                S::Declared
                | S::Discovered(_)
                | S::Pending
                | S::Challenged { .. }
                | S::Admitted { .. }
                | S::Installing
                | S::Installed
                | S::Active
                | S::Withdrawn { .. }
                | S::Retired
                | S::Replaced { .. },
                E::Uncordoned,
            )
            | (S::Retired | S::Replaced { .. }, E::Withdrawn { .. })
            | (
                S::Declared
                | S::Discovered(_)
                | S::Pending
                | S::Challenged { .. }
                | S::Admitted { .. }
                | S::Installing
                | S::Installed
                | S::Active
                | S::Cordoned { .. }
                | S::Retired
                | S::Replaced { .. },
                E::Retired,
            )
            | (
                S::Declared
                | S::Discovered(_)
                | S::Pending
                | S::Challenged { .. }
                | S::Admitted { .. }
                | S::Installing
                | S::Installed
                | S::Active
                | S::Replaced { .. },
                E::ReplacedBy(_),
            ) => return Err(unfit),
        })
    }
}

/// A settled state under a challenge that is still out.
fn beneath(state: State) -> State {
    let resume = match state {
        State::Admitted { ldevid_not_after } => Settled::Admitted { ldevid_not_after },
        State::Installing => Settled::Installing,
        State::Installed => Settled::Installed,
        State::Active => Settled::Active,
        State::Declared
        | State::Discovered(_)
        | State::Pending
        | State::Challenged { .. }
        | State::Cordoned { .. }
        | State::Withdrawn { .. }
        | State::Retired
        | State::Replaced { .. } => Settled::Declared,
    };
    State::Challenged { resume }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states() -> Vec<State> {
        let resume = Settled::Declared;
        vec![
            State::Declared,
            State::Discovered(Sub::Leased),
            State::Pending,
            State::Challenged { resume },
            State::Admitted {
                ldevid_not_after: None,
            },
            State::Installing,
            State::Installed,
            State::Active,
            State::Cordoned { resume },
            State::Withdrawn {
                why: "stolen".into(),
            },
            State::Retired,
            State::Replaced {
                by: MachineId("b".into()),
            },
        ]
    }

    fn events() -> Vec<Event> {
        vec![
            Event::Seen(Sub::Booting),
            Event::Claimed,
            Event::Approved,
            Event::Challenged,
            Event::AttemptEnded,
            Event::Admitted,
            Event::Issued {
                not_after: UnixMillis(5),
            },
            Event::RunBegun,
            Event::InstallStarted,
            Event::InstallEnded,
            Event::Installed,
            Event::RuntimeProven,
            Event::Cordoned,
            Event::Uncordoned,
            Event::Withdrawn { why: "lost".into() },
            Event::Retired,
            Event::ReplacedBy(MachineId("b".into())),
        ]
    }

    /// The whole table as text: a line per event, a column per state, `.` where it does not fit.
    #[test]
    fn the_table_is_as_documented() {
        let mut table = String::new();
        for event in events() {
            let cells: Vec<&str> = states()
                .iter()
                .map(|state| state.next(&event).map_or(".", |next| next.name()))
                .collect();
            table.push_str(&format!("{}: {}\n", event.name(), cells.join(" ")));
        }
        assert_eq!(
            table,
            "\
seen: discovered discovered pending challenged admitted installing installed active cordoned withdrawn retired replaced
claimed: . . pending . . . . . . . . .
approved: . . declared . . . . . . . . .
challenged: challenged challenged . challenged challenged challenged challenged challenged . . . .
attempt_ended: declared discovered pending declared admitted installing installed active cordoned withdrawn retired replaced
admitted: admitted admitted . admitted admitted installing installed active . . . .
issued: . . . challenged admitted installing installed active cordoned withdrawn retired replaced
run_begun: declared discovered . challenged admitted installing admitted admitted . . . .
install_started: . . . . installing installing . . . . . .
install_ended: declared discovered . challenged admitted admitted installed active cordoned withdrawn retired replaced
installed: installed installed . installed installed installed installed . . . . .
runtime_proven: . . . . . . active active . . . .
cordoned: cordoned cordoned . cordoned cordoned cordoned cordoned cordoned cordoned . . .
uncordoned: . . . . . . . . declared . . .
withdrawn: withdrawn withdrawn withdrawn withdrawn withdrawn withdrawn withdrawn withdrawn withdrawn withdrawn . .
retired: . . . . . . . . . retired . .
replaced_by: . . . . . . . . replaced replaced replaced .
"
        );
        let document = include_str!("../../../../docs/ARCHITECTURE.md");
        assert!(document.contains(&table), "ARCHITECTURE has another table");
    }

    #[test]
    fn a_failed_attempt_returns_to_where_it_began() {
        for resume in [
            Settled::Declared,
            Settled::Admitted {
                ldevid_not_after: Some(UnixMillis(9)),
            },
            Settled::Installing,
            Settled::Installed,
            Settled::Active,
        ] {
            let before = State::from(resume);
            let challenged = before
                .next(&Event::Challenged)
                .expect("it may be challenged");
            assert_eq!(challenged.next(&Event::AttemptEnded), Ok(before));
        }
    }

    #[test]
    fn access_that_ended_never_comes_back() {
        let mut state = State::Active;
        state = state
            .next(&Event::Withdrawn { why: "sold".into() })
            .expect("fits");
        for event in [
            Event::Challenged,
            Event::Admitted,
            Event::Approved,
            Event::Uncordoned,
        ] {
            assert!(state.next(&event).is_err(), "{} must not fit", event.name());
        }
        assert!(!state.may_attest());
    }
}
