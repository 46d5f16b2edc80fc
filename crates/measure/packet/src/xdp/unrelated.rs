//! Unrelated frames that would be counted in a trial without marks: announcements that a kernel sends on its own, and frames of
//! TCP connections that existed before.

use std::fs;

use fathom_model::Note;
use fathom_sys::bpf::{
    Assembler, Label, Operation,
    Register::{R2, R3, R7, R8},
};

use fathom_wire::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};

/// The frames that are not counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnrelatedFrames {
    /// The ports of TCP connections as in incoming frames, the remote port in the upper half.
    connections: Vec<u32>,
    /// The number of connections beyond [`CONNECTIONS_MAX`], whose frames are counted.
    n_more: usize,
}

/// The most connections that are excluded. A host under test has few.
const CONNECTIONS_MAX: usize = 64;
/// The prefix of MAC addresses of IPv6 multicast groups (RFC 2464 section 7). A new device announces itself to such groups.
const IPV6_GROUPS: u16 = 0x3333;
/// The locally administered bit of a MAC address (IEEE 802). Addresses of labs have it, and few in captures do.
const LOCAL: u8 = 2;
const TCP: u8 = 6;
const ICMPV6: u8 = 58;
const HOP_BY_HOP: u8 = 0;
/// `TCP_ESTABLISHED` in `/proc/net/tcp`.
const ESTABLISHED: &str = "01";

// Byte offsets from the start of the frame.
const SOURCE: usize = 6;
const ETHERTYPE: usize = 12;
const PROTOCOL: usize = 23;
const NEXT_HEADER: usize = 20;
/// The first byte after the IPv6 header.
const BEHIND: usize = 54;
/// The offset of the TCP ports after an IPv4 header without options, and after an IPv6 header.
const PORTS: [usize; 2] = [34, 54];

impl UnrelatedFrames {
    /// Collects the unrelated frames in the network namespace of the calling thread.
    pub(crate) fn of_namespace() -> Self {
        let files = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
        let tables: Vec<String> = files.iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
        Self::of(&tables)
    }

    /// The connections of tables such as `/proc/net/tcp`.
    fn of(tables: &[String]) -> Self {
        let mut connections: Vec<u32> = tables.iter().flat_map(|text| text.lines().filter_map(connection)).collect();
        let n_more = connections.len().saturating_sub(CONNECTIONS_MAX);
        connections.truncate(CONNECTIONS_MAX);
        Self { connections, n_more }
    }

    /// Returns a note with the number of connections that are not excluded, if there are any.
    pub(crate) fn note(&self) -> Option<Note> {
        let Self { n_more, .. } = self;
        let text = format!(
            "this host has {n_more} TCP connections more than the {CONNECTIONS_MAX} that the counter leaves out: their frames \
             count as frames of the test"
        );
        (*n_more > 0).then(|| Note::new("frames-of-connections", text))
    }

    /// Whether a frame is unrelated.
    pub(crate) fn contains(&self, frame: &[u8]) -> bool {
        let byte = |at: usize| frame.get(at).copied();
        let word =
            |at: usize| frame.get(at..at + 4).and_then(|bytes| bytes.first_chunk().copied()).map(u32::from_be_bytes);
        let is = |ethertype: u16| frame.get(ETHERTYPE..ETHERTYPE + 2) == Some(&ethertype.to_be_bytes());
        let is_told = is(ETHERTYPE_IPV6)
            && (byte(NEXT_HEADER) == Some(ICMPV6)
                || byte(NEXT_HEADER) == Some(HOP_BY_HOP) && byte(BEHIND) == Some(ICMPV6));
        let is_local = byte(SOURCE).is_some_and(|byte| byte & LOCAL != 0);
        if frame.starts_with(&IPV6_GROUPS.to_be_bytes()) && is_local && is_told && frame.len() > BEHIND {
            return true;
        }
        let ports = match (byte(PROTOCOL), byte(NEXT_HEADER)) {
            (Some(TCP), _) if is(ETHERTYPE_IPV4) => word(PORTS[0]),
            (_, Some(TCP)) if is(ETHERTYPE_IPV6) => word(PORTS[1]),
            _ => None,
        };
        ports.is_some_and(|ports| self.connections.contains(&ports))
    }

    /// Jumps to `stray` for unrelated frames. `R7` is the frame with its Ethernet header, `R8` its end. Clobbers `R2` and `R3`.
    pub(super) fn assemble(&self, a: &mut Assembler, stray: Label) {
        announcements(a, stray);
        if self.connections.is_empty() {
            return;
        }
        let done = a.label();
        for (ethertype, protocol, ports) in
            [(ETHERTYPE_IPV4, PROTOCOL, PORTS[0]), (ETHERTYPE_IPV6, NEXT_HEADER, PORTS[1])]
        {
            let other = a.label();
            a.load(R2, R7.half(offset(ETHERTYPE))).jump_if(R2.differs(be16(ethertype)), other);
            a.mov(R2, R7).add(R2, i32::from(offset(ports + 4))).jump_if(R2.above(R8), done);
            a.load(R2, R7.byte(offset(protocol))).jump_if(R2.differs(i32::from(TCP)), done);
            a.load(R2, R7.word(offset(ports)));
            for connection in &self.connections {
                a.load_constant(R3, u32::from_ne_bytes(connection.to_be_bytes()).into()).jump_if(R2.equals(R3), stray);
            }
            a.jump(done).bind(other);
        }
        a.bind(done);
    }
}

/// Matches announcements of a kernel to IPv6 multicast groups, from a device with a locally administered address.
fn announcements(a: &mut Assembler, stray: Label) {
    let (other, is_local) = (a.label(), a.label());
    a.load(R2, R7.half(0)).jump_if(R2.differs(i32::from(IPV6_GROUPS)), other);
    a.load(R2, R7.half(offset(ETHERTYPE))).jump_if(R2.differs(be16(ETHERTYPE_IPV6)), other);
    a.load(R2, R7.byte(offset(SOURCE))).compute(Operation::And, R2, i32::from(LOCAL)).jump_if(R2.differs(0), is_local);
    a.jump(other).bind(is_local);
    a.mov(R2, R7).add(R2, i32::from(offset(BEHIND + 1))).jump_if(R2.above(R8), other);
    a.load(R2, R7.byte(offset(NEXT_HEADER))).jump_if(R2.equals(i32::from(ICMPV6)), stray);
    a.jump_if(R2.differs(i32::from(HOP_BY_HOP)), other);
    a.load(R2, R7.byte(offset(BEHIND))).jump_if(R2.equals(i32::from(ICMPV6)), stray).bind(other);
}

fn offset(at: usize) -> i16 {
    i16::try_from(at).expect("headers lie near the beginning of a frame")
}

/// Returns the value of two bytes in the byte order of the frame.
fn be16(number: u16) -> i32 {
    i32::from(u16::from_ne_bytes(number.to_be_bytes()))
}

/// Returns the ports of a line of `/proc/net/tcp` if its connection is established.
fn connection(line: &str) -> Option<u32> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (local, remote) = (words.next()?, words.next()?);
    let port = |address: &str| u32::from_str_radix(address.rsplit(':').next()?, 16).ok();
    (words.next()? == ESTABLISHED).then_some(port(remote)? << 16 | port(local)?)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use fathom_wire::Ethernet;

    const KNOWN: u32 = 0xcafe_1e14;

    fn frame(destination: u8, source: u8, ethertype: u16, at: usize, protocol: u8) -> Vec<u8> {
        let mut frame = vec![0; 62];
        frame[..6].fill(destination);
        frame[SOURCE..12].fill(source);
        frame[ETHERTYPE..Ethernet::LENGTH].copy_from_slice(&ethertype.to_be_bytes());
        frame[at] = protocol;
        frame
    }

    fn with_ports(mut frame: Vec<u8>, at: usize, ports: u32) -> Vec<u8> {
        frame[at..at + 4].copy_from_slice(&ports.to_be_bytes());
        frame
    }

    /// Frames, each with whether it is unrelated.
    pub(crate) fn frames() -> Vec<(Vec<u8>, bool)> {
        let v4 = |protocol| frame(2, 2, ETHERTYPE_IPV4, PROTOCOL, protocol);
        let v6 = |destination, source, next| frame(destination, source, ETHERTYPE_IPV6, NEXT_HEADER, next);
        let mut reports = v6(0x33, 2, HOP_BY_HOP);
        reports[BEHIND] = ICMPV6;
        vec![
            (v6(0x33, 2, ICMPV6), true),
            (reports, true),
            // From a capture of another device, of another protocol, and to a single host.
            (v6(0x33, 0, ICMPV6), false),
            (v6(0x33, 2, 17), false),
            (v6(0x33, 2, HOP_BY_HOP), false),
            (v6(0x02, 2, ICMPV6), false),
            (with_ports(v4(TCP), 34, KNOWN), true),
            (with_ports(v4(TCP), 34, KNOWN + 1), false),
            (with_ports(v4(17), 34, KNOWN), false),
            (with_ports(v6(2, 2, TCP), 54, KNOWN), true),
            (with_ports(v6(2, 2, TCP), 54, KNOWN + 1), false),
            (vec![0; 60], false),
        ]
    }

    pub(crate) fn strays() -> UnrelatedFrames {
        UnrelatedFrames { connections: vec![1, KNOWN], n_more: 0 }
    }

    #[test]
    fn what_a_kernel_announces_and_connections_that_are_there_are_of_others() {
        for (frame, is_stray) in frames() {
            assert_eq!(strays().contains(&frame), is_stray, "{frame:x?}");
        }
        assert!(!strays().contains(&[]) && !strays().contains(&[0x33; 14]));
    }

    #[test]
    fn more_connections_than_are_told_apart_are_noted_with_their_number() {
        let line = |port: usize| format!("   0: 0100007F:{port:04X} 0100007F:0016 01 00000000:00000000 00:00000000");
        let table = |n: usize| (1..=n).map(line).collect::<Vec<_>>().join("\n");
        let few = UnrelatedFrames::of(&[table(CONNECTIONS_MAX)]);
        assert_eq!((few.connections.len(), few.note()), (CONNECTIONS_MAX, None));
        let many = UnrelatedFrames::of(&[table(CONNECTIONS_MAX), table(3)]);
        assert_eq!(many.connections, few.connections);
        assert!(many.note().unwrap().text.starts_with("this host has 3 TCP connections more than the 64 "));
    }

    #[test]
    fn established_connections_are_read_as_their_segments_arrive() {
        let line = "   3: 0207C6C6:1E14 0107C6C6:CAFE 01 00000000:00000000 00:00000000 00000000     0        0 1 1";
        assert_eq!(connection(line), Some(KNOWN));
        assert_eq!(connection(&line.replace(" 01 ", " 0A ")), None);
        assert_eq!(connection("  sl  local_address rem_address   st tx_queue rx_queue"), None);
    }
}
