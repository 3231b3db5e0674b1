use super::*;
use crate::MacAddr;
use crate::lldp::Id;

const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xee]);

fn announcement() -> Frame {
    let mut pdu = Lldpdu::new(Id::mac(OURS), Id::interface("prov0"), TTL_SECS);
    pdu.system_name = Some("door-1".into());
    Frame::announce(OURS, pdu)
}

fn frame(port: &str, ttl_secs: u16, name: &str) -> Vec<u8> {
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    let mut pdu = Lldpdu::new(Id::mac(mac), Id::interface(port), ttl_secs);
    pdu.system_name = Some(name.into());
    Frame::announce(mac, pdu).encode()
}

fn agent(listen: bool, announce: bool) -> Agent {
    let config = Config {
        listen,
        limits: Limits::default(),
    };
    let mut agent = Agent::new("prov0", config);
    agent.set_announcement(0, announce.then(announcement));
    agent
}

fn drain(agent: &mut Agent) -> Vec<Output> {
    std::iter::from_fn(|| agent.poll_output()).collect()
}

/// What happened, one word each.
fn words(agent: &mut Agent) -> Vec<&'static str> {
    drain(agent)
        .iter()
        .map(|output| match output {
            Output::Transmit(_) => "transmit",
            Output::Neighbour(event, _) => event.as_str(),
            Output::Silent => "silent",
            Output::HeardAgain => "heard",
        })
        .collect()
}

/// Runs the timers until `until_ms`; the times at which something was sent.
fn sent_until(agent: &mut Agent, until_ms: u64) -> Vec<u64> {
    let mut sent = Vec::new();
    while let Some(at) = agent.poll_timeout().filter(|at| *at <= until_ms) {
        agent.handle_timeout(at);
        let count = words(agent).iter().filter(|w| **w == "transmit").count();
        sent.extend(std::iter::repeat_n(at, count));
    }
    sent
}

#[test]
fn announces_fast_then_every_thirty_seconds_and_only_with_a_link() {
    let mut agent = agent(true, true);
    assert_eq!(agent.poll_timeout(), None, "no link, no timer");
    assert!(words(&mut agent).is_empty());
    agent.handle_link(5_000, true);
    let outputs = drain(&mut agent);
    assert_eq!(outputs, [Output::Transmit(announcement().encode())]);
    let sent = sent_until(&mut agent, 70_000);
    assert_eq!(sent, [6_000, 7_000, 8_000, 38_000, 68_000]);
    agent.handle_link(70_000, false);
    assert!(sent_until(&mut agent, 200_000).is_empty());
    agent.handle_link(200_000, true);
    assert_eq!(words(&mut agent), ["transmit"]);
    assert_eq!(sent_until(&mut agent, 203_000), [201_000, 202_000, 203_000]);
}

#[test]
fn a_new_neighbour_hears_of_us_soon_but_nobody_makes_us_flood() {
    let mut agent = agent(true, true);
    agent.handle_link(0, true);
    assert_eq!(words(&mut agent), ["transmit"]);
    assert_eq!(sent_until(&mut agent, 10_000), [1_000, 2_000, 3_000]);
    agent
        .handle_frame(10_000, &frame("swp1", 120, "sw"))
        .unwrap();
    assert_eq!(words(&mut agent), ["new", "transmit"]);
    // Hundred strangers a second, each new and gone again: still one frame a second.
    let mut sent = 0;
    for n in 1..=1_000_u64 {
        let now = 10_000 + n * 10;
        let _ = agent.handle_frame(now, &frame("x", 1, &n.to_string()));
        let _ = agent.handle_frame(now, &frame("x", 0, ""));
        sent += words(&mut agent)
            .iter()
            .filter(|word| **word == "transmit")
            .count();
    }
    assert!((9..=11).contains(&sent), "{sent} frames in 10 s");
}

#[test]
fn every_end_of_a_neighbour_is_told() {
    let mut agent = agent(true, false);
    agent.handle_link(0, true);
    agent.handle_frame(0, &frame("swp1", 120, "sw")).unwrap();
    agent
        .handle_frame(30_000, &frame("swp1", 120, "sw"))
        .unwrap();
    agent
        .handle_frame(60_000, &frame("swp1", 120, "sw2"))
        .unwrap();
    assert_eq!(words(&mut agent), ["new", "updated"]);
    assert_eq!(agent.neighbours(60_000).count(), 1);
    // The next frame comes after the end: the end is told first.
    agent
        .handle_frame(180_000, &frame("swp1", 120, "sw2"))
        .unwrap();
    assert_eq!(words(&mut agent), ["aged", "new"]);
    agent.handle_frame(181_000, &frame("swp1", 0, "")).unwrap();
    agent.handle_frame(181_000, &frame("swp1", 0, "")).unwrap();
    let outputs = drain(&mut agent);
    let [Output::Neighbour(Event::Shutdown, gone)] = outputs.as_slice() else {
        panic!("{outputs:?}");
    };
    assert_eq!(gone.lldpdu().system_name.as_deref(), Some("sw2"));
    agent
        .handle_frame(182_000, &frame("swp1", 120, "sw"))
        .unwrap();
    agent
        .handle_frame(182_000, &frame("swp2", 120, "sw"))
        .unwrap();
    agent.handle_link(183_000, false);
    assert_eq!(words(&mut agent), ["new", "new", "link_down", "link_down"]);
    assert_eq!(agent.neighbours(183_000).count(), 0);
}

#[test]
fn silence_is_told_once_and_ends_with_the_first_frame() {
    let mut agent = agent(true, false);
    agent.handle_timeout(1_000_000);
    agent.handle_link(1_000_000, true);
    assert_eq!(agent.poll_timeout(), Some(1_240_000));
    agent.handle_timeout(1_239_999);
    assert!(words(&mut agent).is_empty());
    agent.handle_timeout(1_240_000);
    assert_eq!(words(&mut agent), ["silent"]);
    agent.handle_timeout(9_000_000);
    assert!(words(&mut agent).is_empty());
    assert!(agent.silent());
    // A frame that cannot be read was heard all the same: the NIC passes them on.
    assert!(agent.handle_frame(9_000_001, &[0; 60]).is_err());
    assert_eq!(words(&mut agent), ["heard"]);
    assert_eq!(agent.poll_timeout(), Some(9_240_001));
    agent
        .handle_frame(9_000_002, &frame("swp1", 120, ""))
        .unwrap();
    agent.handle_timeout(9_240_002);
    assert_eq!(words(&mut agent), ["new", "aged", "silent"]);
    // A link that is down is no silence.
    agent.handle_link(9_240_003, false);
    assert!(!agent.silent());
    assert_eq!(agent.poll_timeout(), None);
}

#[test]
fn who_does_not_listen_keeps_nobody_and_misses_nobody() {
    let mut agent = agent(false, true);
    agent.handle_link(0, true);
    assert_eq!(words(&mut agent), ["transmit"]);
    assert_eq!(sent_until(&mut agent, 3_000).len(), 3);
    agent
        .handle_frame(4_000, &frame("swp1", 120, "sw"))
        .unwrap();
    drain(&mut agent);
    assert_eq!(agent.neighbours(4_000).count(), 0);
    agent.handle_timeout(9_000_000);
    assert!(!agent.silent());
}

#[test]
fn the_good_bye_has_the_mandatory_part_only() {
    let mut agent = agent(true, true);
    agent.handle_link(0, true);
    drain(&mut agent);
    let bytes = agent.shutdown().unwrap();
    let read = Frame::parse(&bytes).unwrap();
    assert!(read.lldpdu.is_shutdown());
    assert_eq!(
        read.lldpdu,
        Lldpdu::new(Id::mac(OURS), Id::interface("prov0"), 0)
    );
    assert_eq!(agent.shutdown(), None, "once");
    assert!(sent_until(&mut agent, 100_000).is_empty());
}

#[test]
fn nothing_to_say_good_bye_for() {
    assert_eq!(agent(true, true).shutdown(), None, "the link was never up");
    let mut quiet = agent(true, false);
    quiet.handle_link(0, true);
    assert_eq!(quiet.shutdown(), None, "never announced");
}

#[test]
fn silence_names_the_driver_and_the_next_step() {
    let i40e = explain_silence("eno1", Some("i40e"));
    assert_eq!(i40e.code, "lldp.silent");
    assert!(i40e.found.contains("eno1") && i40e.found.contains("i40e"));
    assert!(i40e.next.contains("disable-fw-lldp on"), "{}", i40e.next);
    assert!(
        explain_silence("e", Some("ice"))
            .next
            .contains("fw-lldp-agent off")
    );
    assert!(
        explain_silence("br0", Some("bridge"))
            .next
            .contains("provisioning.lldp.interfaces")
    );
    assert!(explain_silence("e", None).next.contains("switch port"));
}

proptest::proptest! {
    /// Whatever is heard and however the link flaps: never two announcements within a second, none
    /// without a link, bounded neighbours, and a timer that lies ahead.
    #[test]
    fn no_sequence_floods_or_stalls(
        steps in proptest::collection::vec((0u64..40_000, 0u8..6, 0u8..12, 0u16..130), 1..200),
    ) {
        let mut agent = agent(true, true);
        let (mut now, mut last_sent, mut up) = (0, None::<u64>, false);
        for (passed, what, who, ttl) in steps {
            now += passed;
            match what {
                0 => {
                    up = !up;
                    agent.handle_link(now, up);
                }
                1 => agent.handle_timeout(now),
                2 => drop(agent.handle_frame(now, &[who; 30])),
                3 => agent.set_announcement(now, Some(announcement())),
                _ => drop(agent.handle_frame(now, &frame(&who.to_string(), ttl, ""))),
            }
            for output in drain(&mut agent) {
                if matches!(output, Output::Transmit(_)) {
                    proptest::prop_assert!(up, "sent without a link");
                    let early = last_sent.is_some_and(|last| now < last + 1_000);
                    proptest::prop_assert!(!early, "sent at {} after {:?}", now, last_sent);
                    last_sent = Some(now);
                }
            }
            agent.handle_timeout(now);
            drain(&mut agent).iter().for_each(|output| if matches!(output, Output::Transmit(_)) {
                last_sent = Some(now);
            });
            proptest::prop_assert!(agent.neighbours(now).count() <= Limits::default().per_interface_max);
            proptest::prop_assert!(agent.poll_timeout().is_none_or(|at| at > now));
        }
    }
}
