//! Planted loss: exactly one frame in every n.

use std::num::NonZeroU32;

use fathom_sys::{
    Result,
    bpf::{
        Array, Operation,
        Register::{R0, R1, R10},
    },
};

use super::{DropProgram, FrameMatch, KEY};

/// Returns a program that drops one frame of every `one_of`, the last of each group.
///
/// All processors share the count, so the ratio is exact however frames are spread over them.
///
/// # Errors
/// Without `CAP_BPF` and `CAP_NET_ADMIN`.
pub fn dropper(matching: FrameMatch, one_of: NonZeroU32) -> Result<DropProgram> {
    let count = Array::<1>::create("fathom_count", 1)?;
    DropProgram::load("fathom_dropper", matching, None, |a, exits| {
        a.store(R10.word(KEY), 0).look_up(&count, KEY, exits.leave);
        a.mov(R1, 1).atomic_fetch_add(R0.double(0), R1).add(R1, 1);
        a.load_constant(R0, one_of.get().into()).compute(Operation::Mod, R1, R0).jump_if(R1.differs(0), exits.pass);
    })
}

#[cfg(test)]
mod tests {
    use fathom_model::units::Frames;
    use fathom_sys::bpf::XdpAction;

    use super::{
        super::{DropCounts, test_frames::*},
        *,
    };

    #[test]
    fn exactly_one_of_every_so_many_is_dropped() {
        let one_of = NonZeroU32::new(1_000).unwrap();
        let Some(gate) = or_skip(dropper(FrameMatch::UdpPort(PORT), one_of)) else { return };
        gate.program().test_run(&frame(64, 0), 999).unwrap();
        assert_eq!(gate.counts().unwrap(), DropCounts { passed: Frames(999), dropped: Frames(0) });
        let thousandth = gate.program().test_run(&frame(64, 0), 1).unwrap();
        assert_eq!(thousandth.value, XdpAction::Drop as u32);
        gate.program().test_run(&frame(64, 0), 9_000).unwrap();
        assert_eq!(gate.counts().unwrap(), DropCounts { passed: Frames(9_990), dropped: Frames(10) });
    }

    #[test]
    fn each_way_of_matching_knows_its_frames() {
        let every = NonZeroU32::MIN;
        let Some(_) = or_skip(dropper(FrameMatch::AnyIp, every)) else { return };
        let ours = frame(64, 0);
        let (other_port, tcp, fragment) = (changed(&ours, 37), changed(&ours, 23), changed(&ours, 21));
        let (arp, ipv6) = (with_type(&ours, 0x0806), with_type(&ours, 0x86dd));
        let cases = [
            (FrameMatch::AnyIp, vec![&ours, &other_port, &tcp, &fragment, &ipv6], vec![&arp]),
            (FrameMatch::UdpPort(PORT), vec![&ours], vec![&other_port, &tcp, &fragment, &ipv6, &arp]),
        ];
        for (matching, dropped, passed) in cases {
            let gate = dropper(matching, every).unwrap();
            let action = |frame: &[u8]| gate.program().test_run(frame, 1).unwrap().value;
            assert!(dropped.into_iter().all(|frame| action(frame) == XdpAction::Drop as u32), "{matching:?}");
            assert!(passed.into_iter().all(|frame| action(frame) == XdpAction::Pass as u32), "{matching:?}");
        }
    }
}
