//! `vestibule inspect eventlog`, the real program: every handed event log against what was collected
//! about it, beside what another tool made of the same file; and damaged logs.

use std::collections::BTreeMap;
use std::path::Path;

use gateway::inspect::eventlog::inspect;
use serde_json::Value;

use super::{Random, lines, vestibule};

/// One object, and its exit code.
fn look(path: &Path) -> (Value, Option<i32>) {
    let output = vestibule("eventlog", path);
    let mut read = lines(&output);
    assert_eq!(read.len(), 1, "{}: one object", path.display());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.success(), said.is_empty(), "{said}");
    (read.remove(0), output.status.code())
}

/// Registers of one bank, by number.
fn bank<'v>(pcrs: &'v Value, name: &str) -> BTreeMap<&'v str, &'v str> {
    let bank = pcrs[name].as_object();
    let values = bank.into_iter().flatten();
    values
        .map(|(pcr, value)| (pcr.as_str(), value.as_str().unwrap()))
        .collect()
}

#[derive(Debug, Default)]
struct Counts {
    files: usize,
    events: usize,
    vouched: usize,
    replayed: usize,
    not_computed: usize,
    refused: usize,
    peer_right: usize,
    peer_wrong: usize,
    peer_none: usize,
    peer_crashed: usize,
    peer_gave_up: usize,
    peer_took_damage: usize,
}

impl Counts {
    fn file(&mut self, name: &str, ours: &Value, expected: &Value) {
        self.files += 1;
        let replay = &expected["replay"];
        let confidential = expected["subkind"] == "ccel";
        let format = match (confidential, replay["format"].as_str()) {
            (true, _) => Some("ccel"),
            (false, Some("sha1-legacy")) => Some("sha1"),
            (false, other) => other,
        };
        assert_eq!(ours["format"].as_str(), format, "{name}");
        assert_eq!(ours["events"], replay["events"], "{name}");
        for field in ["startup_locality", "padding_from"] {
            let theirs = replay.get(field).unwrap_or(&Value::Null);
            assert_eq!(&ours[field], theirs, "{name} {field}");
        }
        self.events += ours["events"].as_u64().unwrap() as usize;
        let vouched = expected["confidence"] != "replay only";
        let theirs = match vouched {
            true => &expected["expected_pcrs"],
            false => &replay["pcrs"],
        };
        let peer = &expected["tpm2_eventlog"];
        for alg in theirs.as_object().into_iter().flatten().map(|(alg, _)| alg) {
            let (ours, theirs) = (bank(&ours["pcrs"], alg), bank(theirs, alg));
            if ours.is_empty() && !["sha1", "sha256", "sha384", "sha512"].contains(&alg.as_str()) {
                self.not_computed += theirs.len();
                continue;
            }
            assert_eq!(ours, theirs, "{name} {alg}");
            match vouched {
                true => self.vouched += theirs.len(),
                false => self.replayed += theirs.len(),
            }
            let peer = bank(&peer["pcrs"], alg);
            for (pcr, value) in theirs {
                match peer.get(pcr) {
                    Some(said) if *said == value => self.peer_right += 1,
                    Some(_) => self.peer_wrong += 1,
                    None => self.peer_none += 1,
                }
            }
        }
        let code = peer["rc"].as_i64().unwrap();
        let complete = replay["complete"] == true;
        self.peer_crashed += usize::from(code < 0);
        self.peer_gave_up += usize::from(code > 0 && complete);
        self.peer_took_damage += usize::from(code == 0 && !complete);
    }
}

#[test]
fn eventlog_agrees_with_what_was_collected_and_another_tool_does_not_always() {
    let Some(root) = std::env::var_os("VESTIBULE_CORPUS") else {
        println!("SKIP VESTIBULE_CORPUS is not set");
        return;
    };
    let root = Path::new(&root);
    let mut counts = Counts::default();
    for file in super::corpus("eventlog").unwrap() {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let expected = root.join(format!("expected/eventlog__{name}.json"));
        let expected: Value = serde_json::from_slice(&std::fs::read(expected).unwrap()).unwrap();
        let (ours, code) = look(&file);
        let complete = expected["replay"]["complete"] == true;
        counts.refused += usize::from(!complete);
        assert_eq!(code, Some(i32::from(!complete)), "{name}");
        assert_eq!(ours["error"].is_null(), complete, "{name}");
        if !complete {
            let error = &ours["error"];
            for field in ["code", "expected", "found"] {
                assert!(error[field].is_string(), "{name}: {error}");
            }
        }
        counts.file(&name, &ours, &expected);
    }
    let Counts {
        files,
        events,
        vouched,
        replayed,
        not_computed,
        refused,
        ..
    } = counts;
    println!(
        "{files} logs, {events} events; {vouched} PCR values equal that something vouches for, {replayed} equal to \
         the collector's replay alone, {not_computed} of a hash that is not computed; {refused} refused with a code"
    );
    println!(
        "tpm2_eventlog on the same: {} values right, {} wrong, {} not given; {} crashes, {} sound logs not read, {} damaged \
         one taken as sound",
        counts.peer_right,
        counts.peer_wrong,
        counts.peer_none,
        counts.peer_crashed,
        counts.peer_gave_up,
        counts.peer_took_damage
    );
    assert!(
        files >= 38 && vouched >= 400 && events >= 1_700,
        "{counts:?}"
    );
    assert!(counts.peer_wrong + counts.peer_none > 0, "{counts:?}");
}

/// What a boot says of itself, of machines of the field that differ in it.
#[test]
fn eventlog_tells_secure_boot_authorities_images_and_attempts() {
    let Some(files) = super::corpus("eventlog") else {
        return;
    };
    let of = |name: &str| {
        let file = files.iter().find(|file| file.ends_with(name)).unwrap();
        look(file).0
    };
    let laptop = of("safeboot__t490_eventlog.bin");
    assert_eq!(laptop["secure_boot"], true);
    let authorities = laptop["authorities"].as_array().unwrap();
    let told: Vec<_> = authorities
        .iter()
        .map(|authority| (&authority["name"], &authority["proof"]))
        .collect();
    assert_eq!(
        told,
        [
            (&"db".into(), &"whole".into()),
            (&"Shim".into(), &"padded".into()),
            (&"Shim".into(), &"padded".into())
        ]
    );
    let subject = authorities[0]["subject"].as_str().unwrap();
    assert!(
        subject.starts_with("CN=Microsoft Corporation UEFI CA 2011,O="),
        "{subject}"
    );
    let path = laptop["applications"][0]["path"].as_str().unwrap();
    assert!(path.ends_with("/\\EFI\\ubuntu\\shimx64.efi"), "{path}");
    let databases: Vec<_> = laptop["databases"].as_array().unwrap().iter().collect();
    let names: Vec<_> = databases.iter().map(|database| &database["name"]).collect();
    assert_eq!(names, ["PK", "KEK", "db", "dbx"]);
    assert!(
        databases
            .iter()
            .all(|database| database["entries"].is_array())
    );

    // A first boot option that came back, and a second one.
    let server = of("HIRS__TpmLog.bin");
    let attempts = server["boot_attempts"].as_array().unwrap();
    let came_back: Vec<_> = attempts
        .iter()
        .map(|attempt| &attempt["returned"])
        .collect();
    assert_eq!(came_back, [true, false]);
    assert!(server["drivers"].as_array().unwrap().len() > 10);

    let dell = of("go-tpm-tools__gdc-host.bin");
    assert_eq!(
        (&dell["dma_protection_disabled"], &dell["startup_locality"]),
        (&true.into(), &3.into())
    );
    assert_eq!(dell["exit_boot_services"], "returned");
    assert_eq!(dell["warnings"][0]["code"], "eventlog.data");

    let stub = of("tpm2-tools__event-sd-boot-fedora37.bin");
    let command_line = &stub["loaded"][0];
    assert_eq!(
        (&command_line["pcr"], &command_line["proven"]),
        (&12.into(), &true.into())
    );
    assert_eq!(
        command_line["text"],
        " console=ttyS0 console=tty0 efi=debug "
    );

    let manifest = of("go-tpm-tools__eventlogwithsp800155.bin");
    let manifests: Vec<_> = manifest["no_action"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["reference_manifest"].is_string())
        .collect();
    assert!(!manifests.is_empty(), "{}", manifest["no_action"]);
    let options = laptop["boot_options"].as_array().unwrap();
    let order = laptop["boot_order"].as_array().unwrap();
    let first = options.iter().find(|option| option["name"] == order[0]);
    assert_eq!(first.unwrap()["description"], "ubuntu");

    let confidential = of("go-eventlog__ccel_cos-113-intel-tdx-dupe-separator.bin");
    assert_eq!(confidential["secure_boot"], false);
    assert_eq!(
        confidential["warnings"][0]["code"],
        "eventlog.separator_doubled"
    );
    let old = of("go-eventlog__linux_tpm12_log.bin");
    assert_eq!(old["warnings"][0]["code"], "eventlog.name_unproven");

    let table = of("go-eventlog__ccel_cos-113-intel-tdx.table.bin");
    assert_eq!(table["table"]["cc_type"], 2);
    assert_eq!(table["table"]["checksum_ok"], true);
}

fn built_in(name: &str) -> Vec<u8> {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors/eventlog");
    std::fs::read(vectors.join(name)).unwrap()
}

/// What the daemon's own vectors hold: firmware with Secure Boot that ran iPXE and a UKI.
#[test]
fn eventlog_of_a_recorded_boot_is_told_whole() {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors/eventlog");
    let facts = std::fs::read(vectors.join("ovmf-sid-ipxe-uki.json")).unwrap();
    let facts: Value = serde_json::from_slice(&facts).unwrap();
    let (ours, code) = look(&vectors.join("ovmf-sid-ipxe-uki.bin"));
    assert_eq!(code, Some(0));
    assert_eq!(ours["format"], "crypto-agile");
    assert_eq!(
        (&ours["secure_boot"], &ours["bank"]),
        (&true.into(), &"sha256".into())
    );
    for (pcr, value) in bank(&ours["pcrs"], "sha256") {
        // PCR 15 goes on in the session; what is quoted is its last value.
        if pcr != "15" {
            assert_eq!(facts["pcrs"][pcr], value, "PCR {pcr}");
        }
    }
    let digests: Vec<&Value> = ours["applications"].as_array().unwrap().iter().collect();
    for image in ["ipxe", "uki"] {
        let digest = &facts[image]["pe_sha256"];
        let listed = digests.iter().any(|entry| &entry["digest"] == digest);
        assert!(listed, "{image} {digest} is not in {digests:?}");
    }
    let sections: Vec<_> = ours["loaded"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|loaded| loaded["pcr"] == 11 && loaded["proven"] == true)
        .filter_map(|loaded| loaded["text"].as_str())
        .collect();
    assert!(sections.contains(&".linux"), "{sections:?}");
}

/// Every prefix of a log, and logs with octets changed: one object each, the events before the
/// damage in it, and never a panic.
#[test]
fn damaged_event_logs_give_what_came_before_and_never_a_panic() {
    let mut logs = vec![
        built_in("ovmf-sid-ipxe-uki.bin"),
        built_in("ovmf-sid-refused-then-http.bin"),
    ];
    for path in super::corpus("eventlog").unwrap_or_default() {
        logs.push(std::fs::read(path).unwrap());
    }
    let whole = &logs[0];
    let mut before = 0;
    for len in 0..whole.len() {
        let seen = inspect(&whole[..len], false);
        let read: Value = serde_json::from_str(&seen.line).expect("JSON");
        let events = read["events"].as_u64().unwrap();
        assert!(events >= before, "{len}: {events} after {before}");
        assert_eq!(read["error"].is_null(), seen.damage.is_none());
        before = events;
    }
    assert!(before > 40, "{before}");
    let mut random = Random(0x10c5_0b5e_55ed_cafe);
    let (mut read, mut refused) = (0, 0);
    for log in &logs {
        let log = &log[..log.len().min(32_768)];
        for round in 0..60 {
            let seen = inspect(&random.damage(log), round % 4 == 0);
            let object: Value = serde_json::from_str(&seen.line).expect("JSON");
            assert!(object["events"].is_u64() && object["warnings"].is_array());
            assert!(object["error"].is_null() || object["error"]["code"].is_string());
            read += 1;
            refused += usize::from(seen.damage.is_some());
        }
    }
    println!("{read} damaged logs, {refused} refused");
    assert!(read >= 120 && refused > 10);
}

/// tpm2-software/tpm2-tools#1975: the kernel's file says that it is empty and comes in pieces.
#[cfg(unix)]
#[test]
fn tpm2_tools_1975_a_log_that_comes_in_pieces_is_read_to_its_end() {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    let log = built_in("ovmf-sid-ipxe-uki.bin");
    let mut child = Command::new(env!("CARGO_BIN_EXE_vestibule"))
        .args(["inspect", "eventlog", "--events", "/dev/stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut pipe = child.stdin.take().unwrap();
    for piece in log.chunks(997) {
        pipe.write_all(piece).unwrap();
    }
    drop(pipe);
    let output = child.wait_with_output().unwrap();
    let read = &lines(&output)[0];
    assert_eq!(read["length"], log.len());
    assert!(read["error"].is_null());
    let listed = read["event_list"].as_array().unwrap().len() as u64;
    assert_eq!(
        read["events"],
        listed + 1,
        "the header is no event of the list"
    );
}

#[test]
fn eventlog_exit_codes_and_what_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let log = built_in("ovmf-sid-ipxe-uki.bin");
    let cut = folder.path().join("cut");
    std::fs::write(&cut, &log[..log.len() - 1]).unwrap();
    let output = vestibule("eventlog", &cut);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    for part in ["eventlog.malformed", "expected", "at offset"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    assert_eq!(lines(&output)[0]["error"]["code"], "eventlog.malformed");
    let empty = folder.path().join("empty");
    std::fs::write(&empty, b"").unwrap();
    let (read, code) = look(&empty);
    assert_eq!(
        (&read["error"]["code"], code),
        (&"eventlog.empty".into(), Some(1))
    );
    let absent = vestibule("eventlog", &folder.path().join("absent"));
    assert_eq!(absent.status.code(), Some(2));
}
