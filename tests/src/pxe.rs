//! The firmware's and iPXE's side of DHCP and TFTP, byte by byte.
//!
//! Written apart from the product's codec on purpose: a mistake that both ends shared would show
//! nothing. Options and order as OVMF sends them (93, 94, 97, 60, 57, 55), iPXE's user class as
//! the raw text `iPXE`.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use gateway_core::identity::MacAddr;
use nix::sys::socket::{setsockopt, sockopt};

/// Which program of the machine asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// UEFI PXE, option 93 = 7.
    Pxe,
    /// UEFI HTTP boot, option 93 = 16.
    Http,
    /// iPXE, loaded by the first.
    Ipxe,
    /// The running attester: no boot options.
    Attester,
}

/// What a DHCP exchange gave.
#[derive(Debug, Clone)]
pub struct Lease {
    /// `yiaddr`.
    pub addr: Ipv4Addr,
    /// Option 54.
    pub server: Ipv4Addr,
    /// `siaddr`.
    pub next_server: Ipv4Addr,
    /// Option 67, else the `file` field.
    pub boot_file: String,
    /// Option 51.
    pub lease_secs: u32,
    /// All options as received.
    pub options: BTreeMap<u8, Vec<u8>>,
    /// DISCOVER to OFFER.
    pub offer_after: Duration,
    /// REQUEST to ACK.
    pub ack_after: Duration,
}

const MAGIC: [u8; 4] = [0x63, 0x82, 0x53, 0x63];
const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const ACK: u8 = 5;
const NAK: u8 = 6;
/// As patient as a ROM: four tries (a Raspberry Pi gives up after about 33 s).
const TRIES: [u64; 4] = [2_000, 4_000, 8_000, 16_000];

/// A DHCP client on one interface of the calling thread's namespace.
pub struct Dhcp {
    socket: UdpSocket,
    mac: MacAddr,
    uuid: [u8; 16],
    /// Option 82, as a switch on the way adds it.
    relayed: Option<Vec<u8>>,
}

impl Dhcp {
    /// Binds UDP 68 on `interface`.
    ///
    /// # Errors
    /// The socket is refused.
    pub fn open(interface: &str, mac: MacAddr, uuid: [u8; 16]) -> Result<Self> {
        let socket = nix::sys::socket::socket(
            nix::sys::socket::AddressFamily::Inet,
            nix::sys::socket::SockType::Datagram,
            nix::sys::socket::SockFlag::SOCK_CLOEXEC,
            None,
        )?;
        setsockopt(&socket.as_fd(), sockopt::ReuseAddr, &true)?;
        setsockopt(&socket.as_fd(), sockopt::Broadcast, &true)?;
        setsockopt(&socket.as_fd(), sockopt::BindToDevice, &interface.into())?;
        let any = nix::sys::socket::SockaddrIn::new(0, 0, 0, 0, 68);
        nix::sys::socket::bind(std::os::fd::AsRawFd::as_raw_fd(&socket), &any)
            .context("cannot bind UDP 68")?;
        Ok(Self {
            socket: UdpSocket::from(socket),
            mac,
            uuid,
            relayed: None,
        })
    }

    /// The same behind a switch that adds this option 82 to each message (RFC 3046 section 2.0).
    pub fn behind(mut self, relayed: &[u8]) -> Self {
        self.relayed = Some(relayed.to_vec());
        self
    }

    /// DISCOVER, OFFER, REQUEST, ACK.
    ///
    /// # Errors
    /// No answer after four tries, a NAK, or an answer that breaks RFC 2131.
    pub fn lease(&self, stage: Stage, xid: u32) -> Result<Lease> {
        let started = Instant::now();
        let offer = self.exchange(xid, &self.message(DISCOVER, xid, stage, &[]), OFFER)?;
        let offer_after = started.elapsed();
        let server = offer.address(54).context("OFFER without option 54")?;
        let extra = [
            (54, server.octets().to_vec()),
            (50, offer.yiaddr.octets().to_vec()),
        ];
        let started = Instant::now();
        let ack = self.exchange(xid, &self.message(REQUEST, xid, stage, &extra), ACK)?;
        if ack.yiaddr != offer.yiaddr {
            bail!("offered {} but acknowledged {}", offer.yiaddr, ack.yiaddr);
        }
        let lease_secs = ack
            .options
            .get(&51)
            .and_then(|v| v.as_slice().try_into().ok())
            .map(u32::from_be_bytes)
            .context("ACK without option 51")?;
        Ok(Lease {
            addr: ack.yiaddr,
            server,
            next_server: ack.siaddr,
            boot_file: ack.boot_file(),
            lease_secs,
            options: ack.options,
            offer_after,
            ack_after: started.elapsed(),
        })
    }

    /// Every OFFER that a DISCOVER brings within `wait`.
    ///
    /// # Errors
    /// The socket fails.
    pub fn offers(&self, stage: Stage, xid: u32, wait: Duration) -> Result<Vec<Lease>> {
        let started = Instant::now();
        let to = SocketAddrV4::new(Ipv4Addr::BROADCAST, 67);
        self.socket
            .send_to(&self.message(DISCOVER, xid, stage, &[]), to)?;
        let mut offers = Vec::new();
        while let Some(offer) = self.next(xid, OFFER, started + wait)? {
            offers.push(offer.lease(started.elapsed())?);
        }
        Ok(offers)
    }

    /// REQUEST of the address that one of several servers offered, and its ACK.
    ///
    /// # Errors
    /// No answer after four tries, or a NAK.
    pub fn take(&self, stage: Stage, xid: u32, offer: &Lease) -> Result<Lease> {
        let extra = [
            (54, offer.server.octets().to_vec()),
            (50, offer.addr.octets().to_vec()),
        ];
        let started = Instant::now();
        self.exchange(xid, &self.message(REQUEST, xid, stage, &extra), ACK)?
            .lease(started.elapsed())
    }

    /// Asks the boot port of `server` by unicast, as EDK2 and iPXE do once they have an address.
    ///
    /// # Errors
    /// No answer within two seconds, or one from another port.
    pub fn boot_port(
        &self,
        stage: Stage,
        xid: u32,
        own: Ipv4Addr,
        server: Ipv4Addr,
    ) -> Result<Lease> {
        let started = Instant::now();
        let mut request = self.message(REQUEST, xid, stage, &[]);
        request[12..16].copy_from_slice(&own.octets());
        self.socket
            .send_to(&request, SocketAddrV4::new(server, 4011))?;
        self.next(xid, ACK, started + Duration::from_secs(2))?
            .context("port 4011 is silent")?
            .lease(started.elapsed())
    }

    /// The next answer to us of type `wanted`; none when the time is over.
    fn next(&self, xid: u32, wanted: u8, deadline: Instant) -> Result<Option<Message>> {
        let mut buffer = [0u8; 2048];
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            self.socket
                .set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            let Ok(length) = self.socket.recv(&mut buffer) else {
                return Ok(None);
            };
            // Broadcasts of other machines' exchanges arrive here as well.
            let Ok(message) = Message::parse(&buffer[..length]) else {
                continue;
            };
            if message.xid == xid
                && message.chaddr == self.mac.0
                && message.options.get(&53).map(Vec::as_slice) == Some(&[wanted])
            {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// DISCOVER and OFFER as the firmware; the offered address.
    ///
    /// # Errors
    /// No offer after four tries.
    pub fn discover(&self, xid: u32) -> Result<Ipv4Addr> {
        let message = self.message(DISCOVER, xid, Stage::Pxe, &[]);
        Ok(self.exchange(xid, &message, OFFER)?.yiaddr)
    }

    fn exchange(&self, xid: u32, datagram: &[u8], wanted: u8) -> Result<Message> {
        let to = SocketAddrV4::new(Ipv4Addr::BROADCAST, 67);
        let mut buffer = [0u8; 2048];
        for patience in TRIES {
            self.socket.send_to(datagram, to)?;
            let deadline = Instant::now() + Duration::from_millis(patience);
            while let Some(left) = deadline.checked_duration_since(Instant::now()) {
                self.socket
                    .set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
                let Ok(length) = self.socket.recv(&mut buffer) else {
                    break;
                };
                // Broadcasts of other machines' exchanges arrive here as well.
                let Ok(message) = Message::parse(&buffer[..length]) else {
                    continue;
                };
                if message.xid != xid || message.chaddr != self.mac.0 {
                    continue;
                }
                match message.options.get(&53).map(Vec::as_slice) {
                    Some([kind]) if *kind == wanted => return Ok(message),
                    Some([NAK]) => bail!("DHCPNAK"),
                    _ => {}
                }
            }
        }
        bail!(
            "no DHCP answer of type {wanted} after {} tries",
            TRIES.len()
        )
    }

    fn message(&self, kind: u8, xid: u32, stage: Stage, extra: &[(u8, Vec<u8>)]) -> Vec<u8> {
        let mut m = vec![1, 1, 6, 0];
        m.extend(xid.to_be_bytes());
        // secs 0; the broadcast flag, as OVMF sets it.
        m.extend([0, 0, 0x80, 0]);
        m.extend([0; 16]);
        m.extend(self.mac.0);
        m.extend([0; 10 + 64 + 128]);
        m.extend(MAGIC);
        let mut option = |code: u8, value: &[u8]| {
            m.extend([code, value.len() as u8]);
            m.extend(value);
        };
        option(53, &[kind]);
        for (code, value) in extra {
            option(*code, value);
        }
        option(57, &1472u16.to_be_bytes());
        option(
            55,
            &[
                1, 2, 3, 4, 5, 6, 12, 13, 15, 17, 18, 43, 51, 54, 58, 59, 60, 66, 67, 97,
            ],
        );
        if stage != Stage::Attester {
            let arch: u16 = if stage == Stage::Http { 16 } else { 7 };
            let class = match stage {
                Stage::Http => "HTTPClient:Arch:00016:UNDI:003001",
                Stage::Pxe | Stage::Ipxe | Stage::Attester => "PXEClient:Arch:00007:UNDI:003000",
            };
            option(97, &[&[0], self.uuid.as_slice()].concat());
            option(94, &[1, 3, 0]);
            option(93, &arch.to_be_bytes());
            option(60, class.as_bytes());
        }
        if stage == Stage::Ipxe {
            option(77, b"iPXE");
        }
        if let Some(relayed) = &self.relayed {
            option(82, relayed);
        }
        m.push(255);
        m
    }
}

struct Message {
    xid: u32,
    yiaddr: Ipv4Addr,
    siaddr: Ipv4Addr,
    chaddr: [u8; 6],
    file: Vec<u8>,
    options: BTreeMap<u8, Vec<u8>>,
}

impl Message {
    fn parse(bytes: &[u8]) -> Result<Self> {
        if bytes.len() < 240 || bytes[0] != 2 || bytes[236..240] != MAGIC {
            bail!("not a BOOTREPLY");
        }
        let mut options: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
        let mut rest = &bytes[240..];
        loop {
            match rest {
                [255, ..] => break,
                [0, tail @ ..] => rest = tail,
                [code, length, tail @ ..] if tail.len() >= usize::from(*length) => {
                    let (value, after) = tail.split_at(usize::from(*length));
                    options.entry(*code).or_default().extend(value);
                    rest = after;
                }
                _ => bail!("options end without 255"),
            }
        }
        let quad =
            |at: usize| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
        let mut chaddr = [0; 6];
        chaddr.copy_from_slice(&bytes[28..34]);
        Ok(Self {
            xid: u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            yiaddr: quad(16),
            siaddr: quad(20),
            chaddr,
            file: bytes[108..236].to_vec(),
            options,
        })
    }

    fn lease(self, after: Duration) -> Result<Lease> {
        let lease_secs = self
            .options
            .get(&51)
            .and_then(|v| v.as_slice().try_into().ok());
        Ok(Lease {
            addr: self.yiaddr,
            server: self.address(54).context("no option 54")?,
            next_server: self.siaddr,
            boot_file: self.boot_file(),
            lease_secs: lease_secs.map_or(0, u32::from_be_bytes),
            options: self.options,
            offer_after: after,
            ack_after: after,
        })
    }

    fn address(&self, code: u8) -> Option<Ipv4Addr> {
        let octets: [u8; 4] = self.options.get(&code)?.as_slice().try_into().ok()?;
        Some(octets.into())
    }

    fn boot_file(&self) -> String {
        let raw = self.options.get(&67).unwrap_or(&self.file);
        let end = raw.iter().position(|b| *b == 0).unwrap_or(raw.len());
        String::from_utf8_lossy(&raw[..end]).into_owned()
    }
}

/// Fetches a file by TFTP with the firmware's options (RFC 2348, 2349, 7440).
///
/// # Errors
/// The server's ERROR, silence, or more than 64 MiB.
pub fn tftp(server: Ipv4Addr, name: &str) -> Result<Vec<u8>> {
    const BLOCK: usize = 1468;
    const WINDOW: u16 = 4;
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut request = vec![0, 1];
    for word in [
        name,
        "octet",
        "tsize",
        "0",
        "blksize",
        "1468",
        "windowsize",
        "4",
    ] {
        request.extend(word.as_bytes());
        request.push(0);
    }
    let mut buffer = [0u8; 2048];
    let mut last = request;
    let mut peer = SocketAddrV4::new(server, 69).into();
    socket.send_to(&last, peer)?;
    let (mut file, mut expected, mut silent, mut window) = (Vec::new(), 1u16, 0, WINDOW);
    loop {
        let Ok((length, from)) = socket.recv_from(&mut buffer) else {
            silent += 1;
            if silent > 5 {
                bail!("TFTP server silent in {name} at {} bytes", file.len());
            }
            socket.send_to(&last, peer)?;
            continue;
        };
        silent = 0;
        peer = from;
        let packet = &buffer[..length];
        match packet {
            [0, 6, options @ ..] => {
                if !options.windows(10).any(|w| w == b"windowsize") {
                    window = 1;
                }
                last = vec![0, 4, 0, 0];
                socket.send_to(&last, peer)?;
            }
            [0, 3, hi, lo, data @ ..] => {
                let block = u16::from_be_bytes([*hi, *lo]);
                let short = data.len() < BLOCK;
                if block == expected {
                    file.extend(data);
                    expected = expected.wrapping_add(1);
                }
                let done = block.wrapping_add(1) == expected && short;
                if done || block % window == 0 || block.wrapping_add(1) != expected {
                    last = [&[0, 4][..], &expected.wrapping_sub(1).to_be_bytes()].concat();
                    socket.send_to(&last, peer)?;
                }
                if done {
                    return Ok(file);
                }
            }
            [0, 5, _, code, text @ ..] => {
                let text = String::from_utf8_lossy(text);
                bail!(
                    "TFTP ERROR {code} for {name}: {}",
                    text.trim_end_matches('\0')
                );
            }
            _ => {}
        }
        if file.len() > 64 << 20 {
            bail!("{name} does not end");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_parsed_and_a_request_is_not_taken_for_one() {
        let mut reply = vec![2, 1, 6, 0, 0, 0, 0, 9];
        reply.extend([0; 8]);
        reply.extend([10, 66, 0, 20, 10, 66, 0, 1]);
        reply.extend([0; 4]);
        reply.extend([2, 0, 0, 0, 0, 1]);
        reply.extend([0; 10 + 64]);
        let mut file = b"ipxe.efi".to_vec();
        file.resize(128, 0);
        reply.extend(&file);
        reply.extend(MAGIC);
        reply.extend([53, 1, 2, 54, 4, 10, 66, 0, 1, 0, 255]);
        let message = Message::parse(&reply).unwrap();
        assert_eq!(message.yiaddr, Ipv4Addr::new(10, 66, 0, 20));
        assert_eq!(message.boot_file(), "ipxe.efi");
        assert_eq!(message.address(54), Some(Ipv4Addr::new(10, 66, 0, 1)));
        reply[0] = 1;
        assert!(Message::parse(&reply).is_err());
    }
}
