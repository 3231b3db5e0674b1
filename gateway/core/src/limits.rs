//! Every bound of the decision core, with its reason.

/// A session lives this long: hello to evidence on one connection (docs/PROTOCOL.md section 2).
/// A discrete TPM needs up to 20 s for RSA keys, activation and quote.
pub const SESSION_MS: u64 = 60_000;

/// Live sessions in total. 640 machines may boot at once; beyond four times that a flood is likely.
pub const SESSIONS_MAX: usize = 2_560;

/// Live sessions per peer address: one machine needs one, a retry after a lost connection a second.
pub const SESSIONS_PER_PEER_MAX: usize = 4;

/// Pending claims in total: what one person can compare in a day, times four.
pub const CLAIMS_MAX: usize = 256;

/// Pending claims that nothing speaks for: no manufacturer's certificate, no declared serial. The
/// rest of the list is kept for those that have one.
pub const CLAIMS_UNVOUCHED_MAX: usize = 128;

/// A waiting claim whose facts have changed is written anew at most this often, and so are the EK
/// certificates of any machine: a TPM signs itself as many as it likes.
pub const CLAIM_CHANGE_MS: u64 = 60_000;

/// Refusals of one machine that are written in full per summary period; the rest are summed. A
/// proven machine is no reason to fill the ledger either.
pub const VERDICTS_REFUSED_MAX: u32 = 20;

/// LDevIDs issued to one machine per hour: a machine under repair boots often, one in a boot loop
/// must not keep the CA signing and the ledger growing.
pub const ISSUES_PER_HOUR_MAX: usize = 30;

/// The hour of [`ISSUES_PER_HOUR_MAX`].
pub const ISSUE_BUDGET_MS: u64 = 3_600_000;

/// Hardware addresses whose walk marks are remembered: four /22 of machines. The longest silent one
/// makes room.
pub const WALKERS_MAX: usize = 4_096;

/// The same step of the same address is marked again only after this long, so that a client that
/// repeats DISCOVER does not write a journal line each time.
pub const MARK_REPEAT_MS: u64 = 10_000;

/// Timeline entries kept in memory per machine; the ledger keeps all.
pub const TIMELINE_MAX: usize = 256;

/// Kinds of refusal (code and ingress) that are summed per minute; more share one line.
pub const REFUSAL_KINDS_MAX: usize = 512;

/// Length of a refusal summary.
pub const REFUSAL_SUMMARY_MS: u64 = 60_000;

/// DHCP refusals of one code that are written in the log per [`DHCP_REFUSALS_MS`]; further ones are
/// only counted. A flood must not fill the log's disk either.
pub const DHCP_REFUSALS_MAX: u32 = 20;

/// The window of [`DHCP_REFUSALS_MAX`].
pub const DHCP_REFUSALS_MS: u64 = 10_000;

/// An authorised run waits this long for its machine to boot: hardware may still be on its way.
pub const RUN_WAIT_MS: u64 = 14 * 24 * 3_600_000;

/// Longest time without a report in an installation: an image over a slow link, a disk read back.
pub const RUN_STEP_MS: u64 = 2 * 3_600_000;

/// Boots of one run: a machine that fails as often as this needs a person.
pub const GRANTS_PER_RUN_MAX: u32 = 12;

/// A pending machine asks again after this long.
pub const PENDING_RETRY_SECS: u32 = 10;

/// A refused machine asks again after this long.
pub const REFUSED_RETRY_SECS: u32 = 60;

/// Events that did not fit their state, kept for the operator.
pub const UNFIT_MAX: usize = 256;

/// Longest class, port or serial that an administrator may give, in bytes.
pub const OPERATOR_TEXT_MAX_BYTES: usize = 128;

/// Reasons that one row of the appraisal writes down: an event log has room for thousands of events
/// that each fail, a ledger record has not.
pub const REASONS_PER_ROW_MAX: usize = 8;

/// Largest certificate of a CA that is imported, in bytes; a wire certificate has the same bound.
pub const EK_CA_MAX_BYTES: usize = 8 * 1024;

/// Imported CA certificates in total: all vendors together have below 500.
pub const EK_CAS_MAX: usize = 1_024;

/// CA certificates of one request: each costs the loop a signature or two.
pub const EK_CAS_PER_IMPORT_MAX: usize = 16;

/// EK certificates and what came with them, kept for one machine until their issuer is known, in
/// bytes of DER. Intel's chain from NV has five certificates of below 1 KiB.
pub const EK_KEPT_MAX_BYTES: usize = 12 * 1024;

/// Machines whose EK certificates are kept that way. The oldest makes room and is counted.
pub const EK_UNMATCHED_MAX: usize = 1_024;

/// Machines judged again in one turn of the loop when a CA arrives.
pub const EK_JUDGED_PER_TURN: usize = 2;

/// Addresses of one machine that are open at once: firmware, iPXE and its system may each have a lease
/// of their own (RFC 2131 section 4.2).
pub const GATE_ADDRESSES_MAX: usize = 4;

/// Elements of the gate in total: a thousand machines with four destinations each, times four. Some 0.2 ms
/// of the kernel's time for each when all are set anew.
pub const GATE_ELEMENTS_MAX: usize = 16_384;

/// Addresses of an issuer's certificate that are written down of one EK certificate.
pub const EK_URLS_MAX: usize = 3;
