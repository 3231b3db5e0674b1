//! Compares our lines with a dissection, field by field, and counts.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Counts and differences of one kind.
pub struct Agreement {
    kind: &'static str,
    files: usize,
    frames: usize,
    fields: usize,
    names: BTreeSet<String>,
    codes: BTreeMap<String, usize>,
    differ: Vec<String>,
}

/// A value that is a list when there are several.
fn list(value: Option<&Value>) -> Vec<&Value> {
    match value {
        None => Vec::new(),
        Some(Value::Array(values)) => values.iter().collect(),
        Some(value) => vec![value],
    }
}

/// Our value as the dissector writes it.
fn shown(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Bool(value) => Some(u8::from(*value).to_string()),
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// Numbers are written in decimal or in hex there.
fn same(ours: &str, theirs: &str) -> bool {
    ours == theirs || number(ours).is_some_and(|ours| number(theirs) == Some(ours))
}

impl Agreement {
    pub fn new(kind: &'static str) -> Self {
        Self {
            kind,
            files: 0,
            frames: 0,
            fields: 0,
            names: BTreeSet::new(),
            codes: BTreeMap::new(),
            differ: Vec::new(),
        }
    }

    /// One field that both have.
    fn field(&mut self, subject: &str, name: &str, ours: &Value, theirs: Option<&Value>) {
        let (Some(ours), Some(theirs)) = (shown(ours), theirs.and_then(Value::as_str)) else {
            return;
        };
        self.text(subject, name, &ours, theirs);
    }

    fn text(&mut self, subject: &str, name: &str, ours: &str, theirs: &str) {
        self.fields += 1;
        self.names.insert(name.to_owned());
        if !same(ours, theirs) {
            self.differ.push(format!(
                "{subject} {name}: we say {ours:?}, the dissector {theirs:?}"
            ));
        }
    }

    /// One file: our lines, the dissections of its frames or of the first ones.
    pub fn file(&mut self, name: &str, lines: &[Value], expected: &Value) {
        self.files += 1;
        let packets = expected["packets"].as_array().expect("packets");
        let summary = expected["summary"].as_array().expect("summary");
        let least = expected["frames_here"].as_u64().expect("frames") as usize;
        assert!(
            lines.len() >= least,
            "{name}: {} lines of {least} frames",
            lines.len()
        );
        for ((line, packet), summary) in lines.iter().zip(packets).zip(summary) {
            let subject = format!("{name} frame {}", line["frame"]);
            self.frames += 1;
            self.field(
                &subject,
                "frame",
                &line["frame"],
                packet["frame"].get("frame.number"),
            );
            // Cut at capture, or called malformed.
            let complains = summary["malformed"] == true
                || packet.get("_ws.short").is_some()
                || summary["expert"]
                    .as_array()
                    .is_some_and(|expert| !expert.is_empty());
            let code = match &line["error"]["code"] {
                Value::String(code) => code.clone(),
                _ => "read".into(),
            };
            *self.codes.entry(code.clone()).or_default() += 1;
            let Some(theirs) = packet.get(self.kind) else {
                self.fields += 1;
                if line["ok"] != false || code == "read" {
                    self.differ
                        .push(format!("{subject} is no {}: {line}", self.kind));
                }
                continue;
            };
            // A message inside another's error is dissected as well.
            let theirs = list(Some(theirs))[0];
            if line["ok"] == false && !complains && !self.is_refused_by_choice(&code, theirs) {
                self.differ
                    .push(format!("{subject} is sound: {}", line["error"]));
            }
            if summary["malformed"] == true {
                self.fields += 1;
                // Refused with a code, or read as far as the dissector did, which follows.
                assert!(line["ok"] == true || code != "read", "{subject}: {line}");
            }
            self.addresses(&subject, line, packet);
            match self.kind {
                "dhcp" => self.dhcp(&subject, line, theirs),
                "tftp" => self.tftp(&subject, line, theirs),
                "lldp" => self.lldp(&subject, line, theirs),
                other => panic!("no kind {other}"),
            }
        }
    }

    /// What the dissector shows and we refuse: a request without a file name.
    fn is_refused_by_choice(&self, code: &str, theirs: &Value) -> bool {
        let no_name = theirs.get("tftp.source_file").is_none_or(|name| name == "");
        self.kind == "tftp" && code.starts_with("tftp.") && theirs["tftp.opcode"] == "1" && no_name
    }

    fn addresses(&mut self, subject: &str, line: &Value, packet: &Value) {
        if self.kind == "lldp" {
            self.field(
                subject,
                "source",
                &line["source"],
                packet["eth"].get("eth.src"),
            );
            self.field(
                subject,
                "destination",
                &line["destination"],
                packet["eth"].get("eth.dst"),
            );
            return;
        }
        for (name, host, port) in [
            ("source", "ip.src", "udp.srcport"),
            ("destination", "ip.dst", "udp.dstport"),
        ] {
            let (host, port) = (packet["ip"][host].as_str(), packet["udp"][port].as_str());
            if let (Some(host), Some(port)) = (host, port) {
                let theirs = Value::String(format!("{host}:{port}"));
                self.field(subject, name, &line[name], Some(&theirs));
            }
        }
    }

    fn dhcp(&mut self, subject: &str, line: &Value, theirs: &Value) {
        for (ours, name) in [
            ("op", "dhcp.type"),
            ("htype", "dhcp.hw.type"),
            ("hops", "dhcp.hops"),
            ("xid", "dhcp.id"),
            ("secs", "dhcp.secs"),
            ("chaddr", "dhcp.hw.mac_addr"),
            ("ciaddr", "dhcp.ip.client"),
            ("yiaddr", "dhcp.ip.your"),
            ("siaddr", "dhcp.ip.server"),
            ("giaddr", "dhcp.ip.relay"),
        ] {
            self.field(subject, ours, &line[ours], theirs.get(name));
        }
        let broadcast = theirs["dhcp.flags_tree"].get("dhcp.flags.bc");
        self.field(subject, "broadcast", &line["broadcast"], broadcast);
        for (ours, name) in [("sname", "dhcp.server"), ("file", "dhcp.file")] {
            // A field that holds options (52) is not shown as text there.
            let theirs = theirs.get(name).filter(|text| **text != "");
            self.field(subject, ours, &line[ours], theirs);
        }
        let types = list(theirs.get("dhcp.option.type"));
        let trees = list(theirs.get("dhcp.option.type_tree"));
        let mut values: BTreeMap<String, Option<String>> = BTreeMap::new();
        for (code, tree) in types.iter().zip(&trees) {
            let code = code.as_str().expect("a code");
            if tree.get("dhcp.option.end").is_some() || code == "0" {
                continue;
            }
            self.dhcp_option(subject, line, code, tree);
            let empty = (tree["dhcp.option.length"] == "0").then(String::new);
            let value = tree["dhcp.option.value"]
                .as_str()
                .map(|v| v.replace(':', ""));
            let joined = values
                .entry(code.to_owned())
                .or_insert_with(|| Some(String::new()));
            *joined = joined
                .take()
                .zip(value.or(empty))
                .map(|(joined, value)| joined + &value);
        }
        for (code, value) in values {
            let Some(value) = value else { continue };
            let ours = line["options"][&code].as_str();
            if ours.is_some() || line["ok"] == true {
                self.text(subject, "options{}", ours.unwrap_or("absent"), &value);
            }
        }
    }

    fn dhcp_option(&mut self, subject: &str, line: &Value, code: &str, tree: &Value) {
        for (option, ours, name) in [
            ("53", "message_type", "dhcp.option.dhcp"),
            ("60", "vendor_class", "dhcp.option.vendor_class_id"),
            ("93", "arch", "dhcp.option.client_system_architecture"),
            ("97", "uuid", "dhcp.client_id.uuid"),
        ] {
            if code == option {
                self.field(subject, ours, &line[ours], tree.get(name));
            }
        }
        if code == "55" {
            let theirs = list(tree.get("dhcp.option.request_list_item"));
            let theirs: Vec<_> = theirs.iter().filter_map(|item| item.as_str()).collect();
            let ours: Vec<_> = list(Some(&line["parameter_list"]))
                .into_iter()
                .filter_map(shown)
                .collect();
            self.text(
                subject,
                "parameter_list",
                &ours.join(" "),
                &theirs.join(" "),
            );
        }
        if code == "77" {
            let classes = list(tree.get("dhcp.option.user_class_tree"));
            let theirs: Vec<String> = match tree["dhcp.option.user_class.text"].as_str() {
                Some(text) => vec![text.to_owned()],
                None => {
                    let octets = classes
                        .iter()
                        .filter_map(|c| c["dhcp.option.user_class.data"].as_str());
                    octets.map(|o| text_of_hex(&o.replace(':', ""))).collect()
                }
            };
            let ours: Vec<_> = list(Some(&line["user_class"]))
                .into_iter()
                .filter_map(shown)
                .collect();
            self.text(subject, "user_class", &ours.join(" "), &theirs.join(" "));
        }
    }

    fn tftp(&mut self, subject: &str, line: &Value, theirs: &Value) {
        for (ours, name) in [
            ("opcode", "tftp.opcode"),
            ("filename", "tftp.source_file"),
            ("filename", "tftp.destination_file"),
            ("mode", "tftp.type"),
            ("block", "tftp.block"),
            ("error_code", "tftp.error.code"),
            ("error_message", "tftp.error.message"),
        ] {
            self.field(subject, ours, &line[ours], theirs.get(name));
        }
        if line["opcode"] == 5 {
            let (code, message) = (&line["error"]["code"], &line["error"]["message"]);
            self.field(subject, "error.code", code, theirs.get("tftp.error.code"));
            self.field(
                subject,
                "error.message",
                message,
                theirs.get("tftp.error.message"),
            );
        }
        let entries = theirs.as_object().into_iter().flatten();
        let entries = entries.filter(|(key, _)| key.starts_with("Option: "));
        for entry in entries.flat_map(|(_, entry)| list(Some(entry))) {
            let name = entry["tftp.option.name"].as_str().unwrap_or_default();
            let ours = &line["options"][name.to_lowercase()];
            if line["ok"] == true {
                let ours = shown(ours).unwrap_or("absent".into());
                let theirs = entry["tftp.option.value"].as_str().unwrap_or_default();
                self.text(subject, "options{}", &ours, theirs);
            }
        }
    }

    fn lldp(&mut self, subject: &str, line: &Value, theirs: &Value) {
        let tlvs = theirs.as_object().into_iter().flatten();
        let tlvs: Vec<&Value> = tlvs.flat_map(|(_, tlv)| list(Some(tlv))).collect();
        let (mut management, mut vlan_names) = (0, 0);
        let mut seen = Vec::new();
        for tlv in tlvs {
            for (ours, name) in [
                ("/chassis_id/subtype", "lldp.chassis.subtype"),
                ("/chassis_id/value", "lldp.chassis.id.mac"),
                ("/chassis_id/value", "lldp.chassis.id.ip4"),
                ("/port_id/subtype", "lldp.port.subtype"),
                ("/port_id/value", "lldp.port.id"),
                ("/port_id/value", "lldp.port.id.mac"),
                ("/port_id/value", "lldp.port.id.ip4"),
                ("/ttl", "lldp.time_to_live"),
                ("/port_description", "lldp.port.desc"),
                ("/system_name", "lldp.tlv.system.name"),
                ("/system_description", "lldp.tlv.system.desc"),
                ("/pvid", "lldp.ieee.802_1.port_vlan.id"),
            ] {
                let value = line.pointer(ours).unwrap_or(&Value::Null);
                self.field(subject, ours, value, tlv.get(name));
            }
            match (
                tlv["lldp.tlv.type"].as_str(),
                tlv["lldp.orgtlv.oui"].as_str(),
            ) {
                (Some("7"), _) => self.capabilities(subject, line, tlv),
                (Some("8"), _) => {
                    self.management(subject, line, management, tlv);
                    management += 1;
                }
                // PVID has its own field.
                (Some("127"), Some("32962")) if tlv["lldp.ieee.802_1.subtype"] == "0x01" => {}
                (Some("127"), Some("32962")) if tlv["lldp.ieee.802_1.subtype"] == "0x03" => {
                    let ours = &line["vlan_names"][vlan_names];
                    vlan_names += 1;
                    self.field(
                        subject,
                        "vlan_names[].vlan",
                        &ours["vlan"],
                        tlv.get("lldp.ieee.802_1.vlan.id"),
                    );
                    self.field(
                        subject,
                        "vlan_names[].name",
                        &ours["name"],
                        tlv.get("lldp.ieee.802_1.vlan.name"),
                    );
                }
                (Some("127"), _) => {
                    let identity = identity(tlv);
                    let before = seen.iter().filter(|other| **other == identity).count();
                    self.organisation(subject, of_identity(line, &identity, before), tlv);
                    seen.push(identity);
                }
                _ => {}
            }
        }
        if line["ok"] == true {
            let counts = [
                ("management_addresses", management),
                ("organisational", seen.len()),
                ("vlan_names", vlan_names),
            ];
            for (name, theirs) in counts {
                let ours = line[name].as_array().map_or(0, Vec::len);
                self.text(
                    subject,
                    &format!("{name} count"),
                    &ours.to_string(),
                    &theirs.to_string(),
                );
            }
        }
    }

    fn capabilities(&mut self, subject: &str, line: &Value, tlv: &Value) {
        const NAMES: [(&str, &str); 8] = [
            ("other", "other"),
            ("repeater", "repeater"),
            ("bridge", "bridge"),
            ("wlan_access_point", "wlan_access_pt"),
            ("router", "router"),
            ("telephone", "telephone"),
            ("docsis_cable_device", "docsis_cable_device"),
            ("station_only", "station_only"),
        ];
        for (which, prefix) in [
            ("supported", "system_cap"),
            ("enabled", "enable_system_cap"),
        ] {
            let tree = &tlv[format!("lldp.tlv.{prefix}_tree")];
            for (ours, theirs) in NAMES {
                let set = list(Some(&line["capabilities"][which]))
                    .iter()
                    .any(|name| **name == ours);
                let theirs = tree.get(format!("lldp.tlv.{prefix}.{theirs}"));
                self.field(
                    subject,
                    &format!("capabilities.{which}"),
                    &Value::Bool(set),
                    theirs,
                );
            }
        }
    }

    fn management(&mut self, subject: &str, line: &Value, index: usize, tlv: &Value) {
        let address = &line["management_addresses"][index];
        let detail = &line["management"][index];
        for name in [
            "lldp.mgn.addr.ip4",
            "lldp.mgn.addr.ip6",
            "lldp.mgn.addr.hex",
        ] {
            self.field(subject, "management_addresses[]", address, tlv.get(name));
            self.field(
                subject,
                "management[].address",
                &detail["address"],
                tlv.get(name),
            );
        }
        for (ours, name) in [
            ("family", "lldp.mgn.address.subtype"),
            ("interface_subtype", "lldp.mgn.interface.subtype"),
            ("interface_number", "lldp.mgn.interface.number"),
        ] {
            self.field(
                subject,
                &format!("management[].{ours}"),
                &detail[ours],
                tlv.get(name),
            );
        }
    }

    /// One organisational TLV: every value of ours that the dissector has too.
    fn organisation(&mut self, subject: &str, ours: &Value, tlv: &Value) {
        let oui = ours["oui"]
            .as_str()
            .and_then(|oui| u32::from_str_radix(oui, 16).ok());
        let oui = oui.map_or(Value::Null, Value::from);
        self.text(
            subject,
            "organisational[].oui",
            &shown(&oui).unwrap_or("absent".into()),
            tlv["lldp.orgtlv.oui"].as_str().unwrap_or_default(),
        );
        for name in [
            "lldp.ieee.802_1.subtype",
            "lldp.ieee.802_3.subtype",
            "lldp.media.subtype",
        ] {
            self.field(
                subject,
                "organisational[].subtype",
                &ours["subtype"],
                tlv.get(name),
            );
        }
        let name = ours["name"].as_str().unwrap_or_default();
        let map = FIELDS
            .iter()
            .find(|(known, _)| *known == name)
            .map_or(&[][..], |(_, map)| *map);
        for (pointer, key) in map {
            let value = ours["value"].pointer(pointer).unwrap_or(&Value::Null);
            // Fields of a bit mask stand in a tree below it.
            let trees = tlv.as_object().into_iter().flatten();
            let trees = trees
                .filter(|(tree, _)| tree.ends_with("_tree"))
                .map(|(_, tree)| tree);
            let theirs = std::iter::once(tlv)
                .chain(trees)
                .find_map(|tree| tree.get(*key));
            self.field(subject, &format!("{name}{pointer}"), value, theirs);
        }
        let list_of = |key: &str| -> Vec<String> {
            let values = list(tlv.get(key)).into_iter();
            values
                .filter_map(|value| value.as_str().map(str::to_owned))
                .collect()
        };
        if name == "med.location" && !list_of("lldp.media.civic.type").is_empty() {
            let elements = list(ours["value"].get("elements"));
            for (key, theirs) in [
                ("type", "lldp.media.civic.type"),
                ("text", "lldp.media.civic.value"),
            ] {
                let ours: Vec<_> = elements.iter().filter_map(|e| shown(&e[key])).collect();
                self.text(
                    subject,
                    &format!("{name}/elements/{key}"),
                    &ours.join("|"),
                    &list_of(theirs).join("|"),
                );
            }
        }
        if name.starts_with("dot1.ets_") {
            for i in 0..8 {
                for (array, key) in [
                    ("priorities", format!("lldp.dcbx.feature.pg.pgid_prio{i}")),
                    ("bandwidth", format!("lldp.dcbx.feature.pg.per{i}")),
                    ("algorithm", format!("lldp.dcbx.ieee.ets.tsa{i}")),
                ] {
                    self.field(
                        subject,
                        &format!("{name}/{array}"),
                        &ours["value"][array][i],
                        tlv.get(key),
                    );
                }
            }
        }
        if name == "dot1.priority_flow_control" {
            for i in 0..8 {
                let bit = ours["value"]["enabled"].as_u64().unwrap_or_default() >> i & 1;
                let theirs = tlv.get(format!("lldp.dcbx.feature.pfc.prio{i}"));
                self.field(subject, &format!("{name}/enabled"), &bit.into(), theirs);
            }
        }
    }

    /// Prints the counts; fails on differences, and when too little was compared.
    pub fn finish(self, least_files: usize, least_frames: usize, least_fields: usize) {
        println!(
            "inspect {}: files {} frames {} fields {} of {} names",
            self.kind,
            self.files,
            self.frames,
            self.fields,
            self.names.len()
        );
        println!(
            "  names {:?}\n  frames by code {:?}",
            self.names, self.codes
        );
        let (count, differ) = (self.differ.len(), self.differ.join("\n"));
        assert!(count == 0, "{count} differ:\n{differ}");
        assert!(self.files >= least_files, "{} files", self.files);
        assert!(self.frames >= least_frames, "{} frames", self.frames);
        assert!(self.fields >= least_fields, "{} fields", self.fields);
    }
}

/// Organisation and subtype; the dissections do not keep the order of TLVs.
type Identity = (Option<u64>, Option<u64>);

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn identity(tlv: &Value) -> Identity {
    let subtype = [
        "lldp.ieee.802_1.subtype",
        "lldp.ieee.802_3.subtype",
        "lldp.media.subtype",
        "lldp.cisco.subtype",
        "lldp.iana.subtype",
        "lldp.unknown_subtype",
    ];
    let subtype = subtype.iter().find_map(|name| tlv[*name].as_str());
    let oui = tlv["lldp.orgtlv.oui"].as_str();
    (oui.and_then(number), subtype.and_then(number))
}

/// Our TLV of this identity, when so many of it came before.
fn of_identity<'a>(line: &'a Value, identity: &Identity, before: usize) -> &'a Value {
    let oui = |tlv: &Value| u64::from_str_radix(tlv["oui"].as_str()?, 16).ok();
    let all = line["organisational"].as_array().into_iter().flatten();
    let mut same = all.filter(|tlv| (oui(tlv), tlv["subtype"].as_u64()) == *identity);
    same.nth(before).unwrap_or(&Value::Null)
}

fn text_of_hex(digits: &str) -> String {
    String::from_utf8_lossy(&hex::decode(digits).expect("hex")).into_owned()
}

type Fields = &'static [(&'static str, &'static str)];

/// Our values by the names that the dissector has for them.
const FIELDS: &[(&str, Fields)] = &[
    (
        "dot1.port_and_protocol_vlan",
        &[
            ("/vlan", "lldp.ieee.802_1.port_proto_vlan.id"),
            (
                "/supported",
                "lldp.ieee.802_1.port_and_vlan_id_flag.supported",
            ),
            ("/enabled", "lldp.ieee.802_1.port_and_vlan_id_flag.enabled"),
        ],
    ),
    (
        "dot1.ets_configuration",
        &[
            ("/willing", "lldp.dcbx.ieee.willing"),
            ("/cbs", "lldp.dcbx.ieee.ets.cbs"),
            ("/classes_max", "lldp.dcbx.ieee.ets.maxtcs"),
        ],
    ),
    (
        "dot1.priority_flow_control",
        &[
            ("/willing", "lldp.dcbx.ieee.willing"),
            ("/mbc", "lldp.dcbx.ieee.pfc.mbc"),
            ("/classes_max", "lldp.dcbx.ieee.pfc.numtcs"),
        ],
    ),
    (
        "dot1.link_aggregation",
        &[
            ("/capable", "lldp.ieee.802_1.aggregation_status.cap"),
            ("/enabled", "lldp.ieee.802_1.aggregation_status.enabled"),
            ("/port_id", "lldp.ieee.802_1.aggregated_port_id"),
        ],
    ),
    (
        "dot3.mac_phy",
        &[
            (
                "/autoneg_supported",
                "lldp.ieee.802_3.mac_phy_auto_neg_status.supported",
            ),
            (
                "/autoneg_enabled",
                "lldp.ieee.802_3.mac_phy_auto_neg_status.enabled",
            ),
            (
                "/advertised",
                "lldp.ieee.802_3.pmd_auto_neg_advertised_caps",
            ),
            ("/mau_type", "lldp.ieee.802_3.pmd_mau_type"),
        ],
    ),
    (
        "dot3.power",
        &[
            ("/pse", "lldp.ieee.802_3.mdi_power_support.port_class"),
            ("/supported", "lldp.ieee.802_3.mdi_power_support.supported"),
            ("/enabled", "lldp.ieee.802_3.mdi_power_support.enabled"),
            (
                "/pairs_selectable",
                "lldp.ieee.802_3.mdi_power_support.pse_pairs",
            ),
            ("/pairs", "lldp.ieee.802_3.mdi_pse_pair"),
            ("/class", "lldp.ieee.802_3.mdi_power_class"),
            ("/dll/type", "lldp.ieee.802_3.mdi_power_type"),
            ("/dll/source", "lldp.ieee.802_3.mdi_power_source"),
            ("/dll/priority", "lldp.ieee.802_3.mdi_power_priority"),
            ("/dll/pd_requested_dw", "lldp.ieee.802_3.mdi_pde_requested"),
            ("/dll/pse_allocated_dw", "lldp.ieee.802_3.mdi_pse_allocated"),
            (
                "/bt/ds_pd_requested_dw/0",
                "lldp.ieee.802_3.bt_ds_pd_requested_power_value_mode_a",
            ),
            (
                "/bt/ds_pd_requested_dw/1",
                "lldp.ieee.802_3.bt_ds_pd_requested_power_value_mode_b",
            ),
            (
                "/bt/ds_pse_allocated_dw/0",
                "lldp.ieee.802_3.bt_ds_pse_allocated_power_value_alt_a",
            ),
            (
                "/bt/ds_pse_allocated_dw/1",
                "lldp.ieee.802_3.bt_ds_pse_allocated_power_value_alt_b",
            ),
            ("/bt/pse_status", "lldp.ieee.802_3.bt_pse_powering_status"),
            ("/bt/pd_status", "lldp.ieee.802_3.bt_pd_powered_status"),
            ("/bt/pairs", "lldp.ieee.802_3.bt_pse_power_pairs_ext"),
            ("/bt/ds_class/0", "lldp.ieee.802_3.bt_ds_pwr_class_ext_a"),
            ("/bt/ds_class/1", "lldp.ieee.802_3.bt_ds_pwr_class_ext_b"),
            ("/bt/class", "lldp.ieee.802_3.bt_pwr_class_ext_"),
            ("/bt/type", "lldp.ieee.802_3.bt_power_type_ext"),
            (
                "/bt/pse_max_dw",
                "lldp.ieee.802_3.bt_pse_maximum_available_power_value",
            ),
            (
                "/bt/autoclass_supported",
                "lldp.ieee.802_3.bt_pse_autoclass_support",
            ),
            (
                "/bt/autoclass_completed",
                "lldp.ieee.802_3.bt_autoclass_completed",
            ),
            (
                "/bt/autoclass_requested",
                "lldp.ieee.802_3.bt_autoclass_request",
            ),
            ("/bt/power_down", "lldp.ieee.802_3.bt_power_down_request"),
            ("/bt/power_down_secs", "lldp.ieee.802_3.bt_power_down_time"),
        ],
    ),
    (
        "dot3.link_aggregation",
        &[
            ("/capable", "lldp.ieee.802_3.aggregation_status.cap"),
            ("/enabled", "lldp.ieee.802_3.aggregation_status.enabled"),
            ("/port_id", "lldp.ieee.802_3.aggregated_port_id"),
        ],
    ),
    (
        "dot3.max_frame_size",
        &[("/bytes", "lldp.ieee.802_3.max_frame_size")],
    ),
    (
        "med.capabilities",
        &[
            ("/capabilities", "lldp.media.subtype.caps"),
            ("/class", "lldp.media.subtype.class"),
        ],
    ),
    (
        "med.network_policy",
        &[
            ("/application", "lldp.media.app_type"),
            ("/unknown", "lldp.media.policy_flag"),
            ("/tagged", "lldp.media.tag_flag"),
            ("/vlan", "lldp.media.vlan_id"),
            ("/l2_priority", "lldp.media.l2_prio"),
            ("/dscp", "lldp.media.dscp"),
        ],
    ),
    (
        "med.location",
        &[
            ("/format", "lldp.media.loc.data_format"),
            ("/what", "lldp.media.civic.what"),
            ("/country", "lldp.media.civic.country"),
        ],
    ),
    (
        "med.extended_power",
        &[
            ("/type", "lldp.media.power_type"),
            ("/source", "lldp.media.pse_power_source"),
            ("/priority", "lldp.media.power_prio"),
            ("/power_dw", "lldp.media.power_value"),
        ],
    ),
    ("med.hardware_revision", &[("/text", "lldp.media.hardware")]),
    ("med.firmware_revision", &[("/text", "lldp.media.firmware")]),
    ("med.software_revision", &[("/text", "lldp.media.software")]),
    ("med.serial_number", &[("/text", "lldp.media.sn")]),
    (
        "med.manufacturer_name",
        &[("/text", "lldp.media.manufacturer")],
    ),
    ("med.model_name", &[("/text", "lldp.media.model")]),
    ("med.asset_id", &[("/text", "lldp.media.asset")]),
];
