//! LLDP: frames of EtherType 88-cc, tagged or not.

use netstack::capture::{Frame as Captured, LinkType, Packet};
use netstack::lldp::tlv::{Capabilities, ManagementAddress};
use netstack::lldp::{
    ETHERTYPE, Frame, Id, IdKind, Lldpdu, MandatoryPart, Organisational, Refused,
};
use netstack::lldp::{dot1, dot3, med};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Fault, Inspect, Seen, colons, printable};

/// Below this an EtherType is the length of an LLC frame (802.3 clause 3.2.6).
const ETHERTYPE_MIN: u16 = 0x0600;

/// Field names as in docs/INSPECT.md.
#[derive(Default, Serialize)]
pub(super) struct Fields {
    chassis_id: Option<IdField>,
    port_id: Option<IdField>,
    ttl: Option<u16>,
    system_name: Option<String>,
    system_description: Option<String>,
    port_description: Option<String>,
    capabilities: Option<CapabilitiesField>,
    management_addresses: Vec<String>,
    management: Vec<ManagementField>,
    pvid: Option<u16>,
    vlan_names: Vec<VlanName>,
    organisational: Vec<OrganisationField>,
    reserved_types: Vec<u8>,
}

#[derive(Serialize)]
struct IdField {
    subtype: u8,
    subtype_name: &'static str,
    value: String,
    hex: String,
}

#[derive(Serialize)]
struct CapabilitiesField {
    supported: Vec<&'static str>,
    enabled: Vec<&'static str>,
}

#[derive(Serialize)]
struct ManagementField {
    family: u8,
    address: String,
    interface_subtype: u8,
    interface_number: u32,
    oid: String,
}

#[derive(Serialize)]
struct VlanName {
    vlan: u16,
    name: String,
}

#[derive(Serialize)]
struct OrganisationField {
    oui: String,
    subtype: u8,
    name: Option<&'static str>,
    value: Value,
    hex: String,
}

/// Every frame stands for itself.
pub(super) struct Lldp;

impl Inspect for Lldp {
    type Fields = Fields;

    fn look(&mut self, captured: &Captured<'_>) -> Seen<Fields> {
        let packet = match Packet::parse(captured) {
            Ok(packet) => packet,
            Err(error) => return Seen::fault(error.into()),
        };
        let mut seen = Seen {
            fault: None,
            source: packet.source.map(|mac| mac.to_string()),
            destination: packet.destination.map(|mac| mac.to_string()),
            vlan: packet.vlans.first().copied(),
            fields: Fields::default(),
            notes: Vec::new(),
        };
        if packet.ether_type != ETHERTYPE {
            seen.fault = Some(other_protocol(&packet));
            return seen;
        }
        let read = match captured.link {
            LinkType::ETHERNET => Frame::parse(captured.data).map(|frame| frame.lldpdu),
            _ => Lldpdu::parse(packet.payload),
        };
        match read {
            Ok(lldpdu) => {
                let fault = lldpdu.notes.iter().find(|note| note.is_fault());
                seen.fault = fault.map(|note| note.explain().into());
                seen.notes = lldpdu
                    .notes
                    .iter()
                    .map(|note| note.explain().into())
                    .collect();
                seen.fields = fields(&lldpdu);
            }
            Err(refused) => {
                seen.fault = Some(refused.explain().into());
                seen.fields = match Lldpdu::parse(packet.payload) {
                    // It is the frame around it that is refused.
                    Ok(lldpdu) => fields(&lldpdu),
                    Err(_) => mandatory_part(&MandatoryPart::parse(packet.payload)),
                };
            }
        }
        seen
    }
}

/// The refusal of a frame that is no LLDP; CDP is named, it stands where LLDP is looked for.
fn other_protocol(packet: &Packet<'_>) -> Fault {
    let mut fault = Fault::from(Refused::NotLldp(packet.ether_type).explain());
    if packet.ether_type < ETHERTYPE_MIN {
        let cdp = [0xaa, 0xaa, 0x03, 0x00, 0x00, 0x0c, 0x20, 0x00];
        fault.found = Some(match packet.payload.starts_with(&cdp) {
            true => "a CDP frame".into(),
            false => format!("an LLC frame of {} bytes", packet.ether_type),
        });
    }
    fault
}

fn fields(lldpdu: &Lldpdu) -> Fields {
    Fields {
        chassis_id: Some(chassis_field(&lldpdu.chassis)),
        port_id: Some(port_field(&lldpdu.port)),
        ttl: Some(lldpdu.ttl_secs),
        system_name: lldpdu.system_name.clone(),
        system_description: lldpdu.system_description.clone(),
        port_description: lldpdu.port_description.clone(),
        capabilities: lldpdu.capabilities.map(capabilities),
        management_addresses: lldpdu.management.iter().map(address).collect(),
        management: lldpdu.management.iter().map(management).collect(),
        pvid: lldpdu.pvid,
        vlan_names: lldpdu
            .vlan_names
            .iter()
            .map(|(vlan, name)| VlanName {
                vlan: *vlan,
                name: name.clone(),
            })
            .collect(),
        organisational: organisational(lldpdu),
        reserved_types: lldpdu.reserved.iter().map(|(kind, _)| *kind).collect(),
    }
}

fn mandatory_part(part: &MandatoryPart) -> Fields {
    Fields {
        chassis_id: part.chassis.as_ref().map(chassis_field),
        port_id: part.port.as_ref().map(port_field),
        ttl: part.ttl_secs,
        ..Fields::default()
    }
}

fn chassis_field(id: &Id) -> IdField {
    id_field(id, id.kind.chassis_subtype())
}

fn port_field(id: &Id) -> IdField {
    id_field(id, id.kind.port_subtype())
}

fn id_field(id: &Id, subtype: u8) -> IdField {
    let is_address = matches!(id.kind, IdKind::Mac | IdKind::NetworkAddress);
    IdField {
        subtype,
        subtype_name: match id.kind {
            IdKind::ChassisComponent => "chassis_component",
            IdKind::InterfaceAlias => "interface_alias",
            IdKind::PortComponent => "port_component",
            IdKind::Mac => "mac_address",
            IdKind::NetworkAddress => "network_address",
            IdKind::InterfaceName => "interface_name",
            IdKind::AgentCircuit => "agent_circuit_id",
            IdKind::Local => "locally_assigned",
            IdKind::Reserved(_) => "reserved",
        },
        value: match printable(&id.octets) {
            Some(text) if !is_address => text,
            _ if is_address && id.to_string().contains([':', '.']) => id.to_string(),
            _ => colons(&id.octets),
        },
        hex: hex::encode(&id.octets),
    }
}

fn capabilities(found: Capabilities) -> CapabilitiesField {
    CapabilitiesField {
        supported: Capabilities::names(found.supported),
        enabled: Capabilities::names(found.enabled),
    }
}

/// The IP address, else the octets.
fn address(found: &ManagementAddress) -> String {
    match found.ip() {
        Some(ip) => ip.to_string(),
        None => colons(&found.addr),
    }
}

fn management(found: &ManagementAddress) -> ManagementField {
    ManagementField {
        family: found.family,
        address: address(found),
        interface_subtype: found.numbering,
        interface_number: found.interface,
        oid: hex::encode(&found.oid),
    }
}

fn organisational(lldpdu: &Lldpdu) -> Vec<OrganisationField> {
    let field = |tlv: &netstack::lldp::tlv::OrganisationTlv| {
        let (name, value) = match tlv.read() {
            Ok(Some(Organisational::Dot1(tlv))) => dot1_field(tlv),
            Ok(Some(Organisational::Dot3(tlv))) => dot3_field(tlv),
            Ok(Some(Organisational::Med(tlv))) => med_field(tlv),
            Ok(None) | Err(_) => (None, Value::Null),
        };
        OrganisationField {
            oui: hex::encode(tlv.oui),
            subtype: tlv.subtype,
            name,
            value,
            hex: hex::encode(&tlv.value),
        }
    };
    lldpdu.organisation.iter().map(field).collect()
}

type Named = (Option<&'static str>, Value);

fn dot1_field(tlv: dot1::Tlv) -> Named {
    use dot1::Tlv;
    let ets = |ets: dot1::Ets| {
        json!({
            "willing": ets.willing, "cbs": ets.cbs, "classes_max": ets.classes_max,
            "priorities": ets.priorities, "bandwidth": ets.bandwidth, "algorithm": ets.algorithm,
        })
    };
    let (name, value) = match tlv {
        Tlv::PortVlan(vlan) => ("dot1.port_vlan", json!({ "vlan": vlan })),
        Tlv::PortAndProtocolVlan {
            supported,
            enabled,
            vlan,
        } => (
            "dot1.port_and_protocol_vlan",
            json!({ "supported": supported, "enabled": enabled, "vlan": vlan }),
        ),
        Tlv::VlanName { vlan, name } => ("dot1.vlan_name", json!({ "vlan": vlan, "name": name })),
        Tlv::ProtocolIdentity(id) => (
            "dot1.protocol_identity",
            json!({ "protocol": hex::encode(id) }),
        ),
        Tlv::VidUsageDigest(digest) => ("dot1.vid_usage_digest", json!({ "digest": digest })),
        Tlv::ManagementVlan(vlan) => ("dot1.management_vlan", json!({ "vlan": vlan })),
        Tlv::LinkAggregation(found) => ("dot1.link_aggregation", aggregation(found)),
        Tlv::CongestionNotification { cnpv, ready } => (
            "dot1.congestion_notification",
            json!({ "cnpv": cnpv, "ready": ready }),
        ),
        Tlv::EtsConfiguration(found) => ("dot1.ets_configuration", ets(found)),
        Tlv::EtsRecommendation(found) => ("dot1.ets_recommendation", ets(found)),
        Tlv::PriorityFlowControl {
            willing,
            mbc,
            classes_max,
            enabled,
        } => (
            "dot1.priority_flow_control",
            json!({ "willing": willing, "mbc": mbc, "classes_max": classes_max, "enabled": enabled }),
        ),
        Tlv::ApplicationPriority(table) => {
            let row = |entry: &dot1::Application| {
                json!({
                    "priority": entry.priority, "selector": entry.selector,
                    "protocol": entry.protocol,
                })
            };
            let table: Vec<Value> = table.iter().map(row).collect();
            ("dot1.application_priority", json!({ "table": table }))
        }
    };
    (Some(name), value)
}

fn aggregation(found: netstack::lldp::organisation::LinkAggregation) -> Value {
    json!({ "capable": found.capable, "enabled": found.enabled, "port_id": found.port_id })
}

fn dot3_field(tlv: dot3::Tlv) -> Named {
    use dot3::Tlv;
    let (name, value) = match tlv {
        Tlv::MacPhy {
            autoneg_supported,
            autoneg_enabled,
            advertised,
            mau_type,
        } => (
            "dot3.mac_phy",
            json!({
                "autoneg_supported": autoneg_supported, "autoneg_enabled": autoneg_enabled,
                "advertised": advertised, "mau_type": mau_type,
            }),
        ),
        Tlv::Power(power) => ("dot3.power", dot3_power(&power)),
        Tlv::LinkAggregation(found) => ("dot3.link_aggregation", aggregation(found)),
        Tlv::MaxFrameSize(size) => ("dot3.max_frame_size", json!({ "bytes": size })),
        Tlv::Eee {
            transmit_us,
            receive_us,
            fallback_us,
            echo_transmit_us,
            echo_receive_us,
        } => (
            "dot3.eee",
            json!({
                "transmit_us": transmit_us, "receive_us": receive_us, "fallback_us": fallback_us,
                "echo_transmit_us": echo_transmit_us, "echo_receive_us": echo_receive_us,
            }),
        ),
    };
    (Some(name), value)
}

fn dot3_power(power: &dot3::Power) -> Value {
    let dll = power.dll.map(|dll| {
        json!({
            "type": dll.kind, "source": dll.source, "priority": dll.priority,
            "pd_requested_dw": dll.pd_requested_dw, "pse_allocated_dw": dll.pse_allocated_dw,
        })
    });
    let bt = power.bt.map(|bt| {
        json!({
            "ds_pd_requested_dw": bt.ds_pd_requested_dw,
            "ds_pse_allocated_dw": bt.ds_pse_allocated_dw,
            "pse_status": bt.pse_status, "pd_status": bt.pd_status, "pairs": bt.pairs,
            "ds_class": bt.ds_class, "class": bt.class, "type": bt.kind,
            "pd_load_isolated": bt.pd_load_isolated, "pse_max_dw": bt.pse_max_dw,
            "autoclass_supported": bt.autoclass_supported,
            "autoclass_completed": bt.autoclass_completed,
            "autoclass_requested": bt.autoclass_requested,
            "power_down": bt.power_down, "power_down_secs": bt.power_down_secs,
        })
    });
    json!({
        "pse": power.is_pse, "supported": power.supported, "enabled": power.enabled,
        "pairs_selectable": power.pairs_selectable, "pairs": power.pairs, "class": power.class,
        "dll": dll, "bt": bt,
    })
}

fn med_field(tlv: med::Tlv) -> Named {
    use med::{Inventory, Tlv};
    let (name, value) = match tlv {
        Tlv::Capabilities {
            capabilities,
            class,
        } => (
            "med.capabilities",
            json!({ "capabilities": capabilities, "class": class }),
        ),
        Tlv::NetworkPolicy {
            application,
            unknown,
            tagged,
            vlan,
            l2_priority,
            dscp,
        } => (
            "med.network_policy",
            json!({
                "application": application, "unknown": unknown, "tagged": tagged, "vlan": vlan,
                "l2_priority": l2_priority, "dscp": dscp,
            }),
        ),
        Tlv::Location(location) => ("med.location", med_location(location)),
        Tlv::ExtendedPower {
            kind,
            source,
            priority,
            power_dw,
        } => (
            "med.extended_power",
            json!({ "type": kind, "source": source, "priority": priority, "power_dw": power_dw }),
        ),
        Tlv::Inventory(which, text) => {
            let name = match which {
                Inventory::HardwareRevision => "med.hardware_revision",
                Inventory::FirmwareRevision => "med.firmware_revision",
                Inventory::SoftwareRevision => "med.software_revision",
                Inventory::SerialNumber => "med.serial_number",
                Inventory::ManufacturerName => "med.manufacturer_name",
                Inventory::ModelName => "med.model_name",
                Inventory::AssetId => "med.asset_id",
            };
            (name, json!({ "text": text }))
        }
    };
    (Some(name), value)
}

fn med_location(location: med::Location) -> Value {
    use med::Location;
    match location {
        Location::Coordinates(place) => json!({
            "format": 1,
            "latitude": place.latitude, "latitude_resolution": place.latitude_resolution,
            "longitude": place.longitude, "longitude_resolution": place.longitude_resolution,
            "altitude": place.altitude, "altitude_resolution": place.altitude_resolution,
            "altitude_type": place.altitude_type, "datum": place.datum,
        }),
        Location::Civic {
            what,
            country,
            elements,
        } => {
            let elements: Vec<Value> = elements
                .into_iter()
                .map(|(kind, text)| json!({ "type": kind, "text": text }))
                .collect();
            json!({ "format": 2, "what": what, "country": country, "elements": elements })
        }
        Location::Elin(number) => json!({ "format": 3, "elin": number }),
        Location::Other { format, data } => json!({ "format": format, "hex": hex::encode(data) }),
    }
}
