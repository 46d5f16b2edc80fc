//! Devices of a lab that are programs of this crate: their effect on each datagram, and where it is counted.

#![expect(clippy::unwrap_used, reason = "a test ends where something is missing")]

use std::{
    io::ErrorKind,
    net::UdpSocket,
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use fathom_lab::{
    Host, Lab, Options,
    device::{self, Program, ProgramGuard, ProgramLoader},
    preset,
};
use fathom_model::units::{Nanos, PerSec};
use fathom_packet::xdp::{DropProgram, PolicerLimit, Redirect, RedirectTarget, policed_redirect};
use fathom_sys::{
    bpf::{XdpLink, XdpMode},
    clock,
    netlink::ethtool::Device,
    process::may_administer_network,
};

/// Attaches programs, and keeps the drop programs for their counts.
#[derive(Default)]
struct Kept(Arc<Mutex<Vec<DropProgram>>>);

#[derive(Debug)]
struct Held(#[expect(dead_code, reason = "held, not read")] XdpLink);

impl ProgramGuard for Held {}

fn of_packet(onward: device::DeviceRedirect) -> RedirectTarget {
    let device::DeviceRedirect { to, destination, source } = onward;
    RedirectTarget { device: to, destination, source }
}

impl ProgramLoader for Kept {
    fn attach(&self, program: &Program, interface: u32) -> fathom_sys::Result<Box<dyn ProgramGuard>> {
        let link = match program {
            Program::Redirect(onward) => Redirect::load(of_packet(*onward))?.attach(interface, XdpMode::Native)?,
            Program::Policer(device::Policer { rate_per_sec, burst }, onward) => {
                let rate = PerSec::new(f64::from(*rate_per_sec)).unwrap();
                let gate = policed_redirect(of_packet(*onward), PolicerLimit { rate, burst: *burst })?;
                let link = gate.attach(interface, XdpMode::Native)?;
                self.0.lock().unwrap().push(gate);
                link
            }
        };
        Ok(Box::new(Held(link)))
    }
}

use fathom_testkit::{lacks_privileges, or_skip};

/// Long enough for a busy machine, short enough for a test that fails.
const PATIENCE: Nanos = Nanos::from_secs(20);

/// Builds a lab with this device.
fn lab_with(device: &str, programs: &Kept) -> Option<Lab> {
    if lacks_privileges(may_administer_network()) {
        return None;
    }
    let options = Options { device: Some(device.parse().unwrap()), ..Options::default() };
    let lab = Lab::build_with(preset::find("pair").unwrap(), &options, Command::new("/not/started"), programs);
    or_skip(lab, |error| matches!(error, fathom_lab::Error::Kernel { source, .. } if source.is_permission()))
}

fn udp(host: &Host) -> UdpSocket {
    let socket = host.enter_with(|| UdpSocket::bind((host.address(), 0))).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// Sums the counters with this suffix of a device of the middle host.
fn counted(lab: &Lab, suffix: &str) -> u64 {
    let statistics = lab.host(device::HOST).unwrap().enter_with(|| Device::open("eth0")?.statistics());
    statistics.unwrap().unwrap().iter().filter(|(name, _)| name.ends_with(suffix)).map(|(_, count)| count).sum()
}

#[test]
fn every_datagram_that_is_redirected_arrives_once_and_its_answer_too() {
    let Some(lab) = lab_with("redirect", &Kept::default()) else { return };
    let [a, b] = ["a", "b"].map(|name| lab.host(name).unwrap());
    let (client, server) = (udp(a), udp(b));
    for _ in 0..50 {
        client.send_to(b"across", server.local_addr().unwrap()).unwrap();
        let (_, from) = server.recv_from(&mut [0; 10]).unwrap();
        assert_eq!(from.ip(), a.address());
        server.send_to(b"back", from).unwrap();
        assert_eq!(client.recv_from(&mut [0; 10]).unwrap().1.ip(), b.address());
    }
    let deadline = clock::now() + PATIENCE;
    while counted(&lab, "xdp_redirect") < 50 {
        assert!(clock::now() < deadline, "{} were redirected", counted(&lab, "xdp_redirect"));
        std::thread::yield_now();
    }
}

#[test]
fn what_a_policer_dropped_is_what_the_driver_counts_and_what_did_not_arrive() {
    const SENT: u64 = 50;
    let kept = Kept::default();
    // Twenty at once, and then none for as long as a test lasts.
    let Some(lab) = lab_with("policer:1,20", &kept) else { return };
    let (client, server) = (udp(lab.host("a").unwrap()), udp(lab.host("b").unwrap()));
    for _ in 0..SENT {
        client.send_to(b"policed", server.local_addr().unwrap()).unwrap();
    }
    let gates = kept.0.lock().unwrap();
    let deadline = clock::now() + PATIENCE;
    let fate = loop {
        let fate = gates[0].counts().unwrap();
        if fate.passed.0 + fate.dropped.0 >= SENT && counted(&lab, "xdp_drops") == fate.dropped.0 {
            break fate;
        }
        assert!(clock::now() < deadline, "{fate:?}, and the driver counts {}", counted(&lab, "xdp_drops"));
        std::thread::yield_now();
    };
    // If this machine pauses for seconds in between, a frame for each second passes too.
    assert!(fate.dropped.0 > 0 && (20..SENT).contains(&fate.passed.0), "{fate:?}");
    let n_arrived = (0..fate.passed.0).filter(|_| server.recv_from(&mut [0; 10]).is_ok()).count() as u64;
    assert_eq!(n_arrived + fate.dropped.0, SENT);
    server.set_nonblocking(true).unwrap();
    assert_eq!(server.recv_from(&mut [0; 10]).unwrap_err().kind(), ErrorKind::WouldBlock);
}
