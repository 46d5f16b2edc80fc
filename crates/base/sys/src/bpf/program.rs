//! BPF programs: checked by the kernel's verifier, then run.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use fathom_model::units::Nanos;

use super::{
    Instruction,
    syscall::{ProgramById, ProgramLoad, ProgramTestRun, address, bpf, bpf_fd, descriptor, object_name, size},
};
use crate::{Error, Result};

/// The type of event at which a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramType {
    /// A frame received by a device.
    Xdp,
    /// The same for devices whose frames may be longer than a page: the program sees the first part only. Linux 5.18.
    XdpLongFrames,
    /// A packet that enters the network stack by a device: behind GRO, and of several segments if its sender or GRO made it so.
    Ingress,
}

/// The action on a frame: the return value of an XDP program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XdpAction {
    /// Dropped as an error and reported by a tracepoint.
    Aborted = 0,
    /// Dropped.
    Drop = 1,
    /// Passed to the network stack.
    Pass = 2,
    /// Sent back out of the device that received it.
    Transmit = 3,
    /// Passed to another device or to a socket.
    Redirect = 4,
}

impl From<XdpAction> for i32 {
    fn from(action: XdpAction) -> Self {
        action as Self
    }
}

/// The action on a packet: the return value of a program at the ingress of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IngressAction {
    /// Left to the next program, and to the stack behind the last one (`TCX_NEXT`).
    Next = -1,
    /// Passed to another device (`TCX_REDIRECT`).
    Redirect = 7,
}

impl From<IngressAction> for i32 {
    fn from(action: IngressAction) -> Self {
        action as Self
    }
}

/// A program accepted by the kernel; unloaded on drop, unless something else still holds it.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
    name: String,
}

/// The result of running a program on a frame without a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestRun {
    /// The program's return value, such as an [`XdpAction`] or the bits of an [`IngressAction`].
    pub value: u32,
    /// The frame after the run.
    pub frame: Vec<u8>,
    /// The mean time of one run.
    pub duration: Nanos,
}

/// The parameters of a run on generated frames that come from no wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveRun {
    /// The maximum number of runs; each run has its own frame.
    pub n_runs: u32,
    /// The number of runs after which redirected frames are flushed, 1 to 256.
    pub batch: u32,
    /// The device in this network namespace that passed frames appear to come from.
    pub from: Option<u32>,
}

/// Why a live run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LiveRunEnd {
    /// The program ran as often as requested.
    Complete,
    /// A signal arrived (`EINTR`), for example from [`crate::process::interrupt::Interruptible`].
    Interrupted,
}

/// Returns whether the kernel has a program with this id, no matter who loaded it.
///
/// # Errors
/// Without `CAP_SYS_ADMIN`.
pub fn is_loaded(id: u32) -> Result<bool> {
    match bpf_fd(&mut ProgramById { prog_id: id, ..ProgramById::default() }) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::new(format!("bpf(BPF_PROG_GET_FD_BY_ID) {id}"), error)),
    }
}

/// The memory of a frame in a run without a device.
const FRAME_PAGE: usize = 4096;
/// `BPF_PROG_TYPE_SCHED_CLS` and `BPF_PROG_TYPE_XDP`.
const INGRESS: u32 = 3;
const XDP: u32 = 6;
/// `BPF_F_XDP_HAS_FRAGS`.
const HAS_FRAGMENTS: u32 = 1 << 5;
/// `BPF_F_TEST_XDP_LIVE_FRAMES`.
const LIVE_FRAMES: u32 = 1 << 1;
/// The license string that allows helpers reserved for GPL programs.
const LICENSE: &[u8] = b"Dual MIT/GPL\0";
/// Large enough for the verifier's log of a program of a few hundred instructions.
const LOG_SIZE: usize = 256 * 1024;

impl Program {
    /// Has the kernel verify and compile a program; `bpftool` shows its name (15 characters).
    ///
    /// # Errors
    /// Without `CAP_BPF` and `CAP_NET_ADMIN`, or with the verifier's log if it rejects the code.
    pub fn load(kind: ProgramType, name: &str, code: &[Instruction]) -> Result<Self> {
        let fd = load(kind, name, code, &mut []).or_else(|error| {
            // The log costs time, so it is requested only if there is an error to explain.
            let mut log = vec![0; LOG_SIZE];
            let again = if is_verdict(&error) { load(kind, name, code, &mut log) } else { Err(error) };
            again.map_err(|error| Error::new(format!("bpf(BPF_PROG_LOAD) {name}"), explained(error, &log)))
        })?;
        Ok(Self { fd, name: name.to_owned() })
    }

    /// Runs the program `repeat` times on a frame (at least 14 bytes) that comes from no device.
    ///
    /// # Errors
    /// Without `CAP_BPF` and `CAP_NET_ADMIN`, or for frames that the kernel does not accept.
    pub fn test_run(&self, frame: &[u8], repeat: u32) -> Result<TestRun> {
        // A program may add headers before the frame, for which XDP reserves 256 bytes, and may lengthen it up to a page.
        let mut output = vec![0; FRAME_PAGE.max(frame.len() + 256)];
        let mut attributes = ProgramTestRun {
            prog_fd: descriptor(self),
            data_in: address(frame.as_ptr()),
            data_size_in: size(frame.len()),
            data_out: address(output.as_mut_ptr()),
            data_size_out: size(output.len()),
            repeat,
            ..ProgramTestRun::default()
        };
        bpf(&mut attributes).map_err(|error| Error::new(format!("bpf(BPF_PROG_TEST_RUN) {}", self.name), error))?;
        output.truncate(usize::try_from(attributes.data_size_out).unwrap_or(usize::MAX));
        Ok(TestRun { value: attributes.retval, frame: output, duration: Nanos(attributes.duration.into()) })
    }

    /// Runs the program on frames as if they were received: redirected frames are sent, passed frames go up the stack.
    ///
    /// One long call is fastest: start and end cost 20 ms together. The frame pages are reused with their modified content, so a program
    /// has to write each byte it relies on. `BPF_F_TEST_XDP_LIVE_FRAMES`, Linux 5.18; `Documentation/bpf/bpf_prog_run.rst`.
    ///
    /// # Errors
    /// Without `CAP_BPF` and `CAP_NET_ADMIN`, on older kernels, or for frames that do not fit into a page (`EINVAL`).
    pub fn run_live(&self, frame: &[u8], live: &LiveRun) -> Result<LiveRunEnd> {
        let length = size(frame.len());
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
        let context = [0, length, 0, live.from.unwrap_or(0), 0, 0];
        let mut attributes = ProgramTestRun {
            prog_fd: descriptor(self),
            data_in: address(frame.as_ptr()),
            data_size_in: length,
            ctx_in: address(context.as_ptr()),
            ctx_size_in: size(size_of_val(&context)),
            repeat: live.n_runs,
            batch_size: live.batch,
            flags: LIVE_FRAMES,
            ..ProgramTestRun::default()
        };
        match bpf(&mut attributes) {
            Ok(_) => Ok(LiveRunEnd::Complete),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(LiveRunEnd::Interrupted),
            Err(error) => Err(Error::new(format!("bpf(BPF_PROG_TEST_RUN, live) {}", self.name), error)),
        }
    }

    /// The name under which it was loaded.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn load(kind: ProgramType, name: &str, code: &[Instruction], log: &mut [u8]) -> io::Result<OwnedFd> {
    let (prog_type, prog_flags) = match kind {
        ProgramType::Xdp => (XDP, 0),
        ProgramType::XdpLongFrames => (XDP, HAS_FRAGMENTS),
        ProgramType::Ingress => (INGRESS, 0),
    };
    let mut attributes = ProgramLoad {
        prog_type,
        prog_flags,
        insn_cnt: size(code.len()),
        insns: address(code.as_ptr()),
        license: address(LICENSE.as_ptr()),
        prog_name: object_name(name),
        ..ProgramLoad::default()
    };
    if !log.is_empty() {
        attributes.log_level = 1;
        attributes.log_size = size(log.len());
        attributes.log_buf = address(log.as_mut_ptr());
    }
    bpf_fd(&mut attributes)
}

/// Returns whether the error may come from the verifier.
fn is_verdict(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EACCES | libc::E2BIG | libc::ENOSPC))
}

/// Replaces the verifier's error with its log, because the error may be `EACCES` and would be taken for a missing privilege.
fn explained(error: io::Error, log: &[u8]) -> io::Error {
    let text = String::from_utf8_lossy(log.split(|&byte| byte == 0).next().unwrap_or_default());
    if text.is_empty() {
        return error;
    }
    io::Error::new(io::ErrorKind::InvalidInput, format!("{error}, verifier:\n{}", text.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Array, Assembler, PerCpuArray,
            Register::{R0, R1, R2, R6, R7, R10},
        },
        *,
    };
    use crate::bpf::privilege::or_skip;

    fn xdp(write: impl FnOnce(&mut Assembler)) -> Result<Program> {
        let mut assembler = Assembler::new();
        write(&mut assembler);
        Program::load(ProgramType::Xdp, "test", &assembler.assemble())
    }

    #[test]
    fn a_program_that_returns_drop_drops() {
        let drop = xdp(|a| {
            a.give(XdpAction::Drop);
        });
        let Some(program) = or_skip(drop) else { return };
        let frame: Vec<u8> = (0..60).collect();
        let run = program.test_run(&frame, 10).unwrap();
        assert_eq!((run.value, run.frame), (1, frame));
    }

    #[test]
    fn a_live_run_ends_after_its_runs_or_when_its_thread_is_interrupted() {
        let Some(count) = or_skip(PerCpuArray::<1>::create("count", 1)) else { return };
        let mut a = Assembler::new();
        let missing = a.label();
        a.store(R10.word(-4), 0).look_up(&count, -4, missing).load(R1, R0.double(0)).add(R1, 1);
        a.store(R0.double(0), R1).bind(missing).give(XdpAction::Drop);
        let program = Program::load(ProgramType::Xdp, "live", &a.assemble()).unwrap();
        let live = LiveRun { n_runs: 1_000, batch: 64, from: None };
        assert_eq!(program.run_live(&[0; 60], &live).unwrap(), LiveRunEnd::Complete);
        assert_eq!(count.sum(0).unwrap(), [1_000]);
        let endless = LiveRun { n_runs: u32::MAX, ..live };
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let runs = scope.spawn(|| {
                tell.send(crate::process::interrupt::Interruptible::current().unwrap()).unwrap();
                program.run_live(&[0; 60], &endless).unwrap()
            });
            let thread = told.recv().unwrap();
            while count.sum(0).unwrap()[0] < 2_000 {
                std::thread::yield_now();
            }
            // A signal between two system calls interrupts neither, so the signal is repeated until the thread has ended.
            while !runs.is_finished() {
                thread.interrupt();
                std::thread::yield_now();
            }
            assert_eq!(runs.join().unwrap(), LiveRunEnd::Interrupted);
        });
    }

    #[test]
    fn a_refused_program_comes_with_the_words_of_the_verifier() {
        let Some(_) = or_skip(PerCpuArray::<1>::create("probe", 1)) else { return };
        let refused = xdp(|a| {
            a.mov(R0, R2).exit();
        });
        let error = refused.unwrap_err();
        assert!(error.source.to_string().contains("R2 !read_ok"), "{}", error.source);
        assert!(!error.is_permission());
    }

    /// Counts runs in both kinds of map and writes the number of the run into the frame.
    fn counting(shared: &Array<2>, per_cpu: &PerCpuArray<1>) -> Vec<Instruction> {
        let mut a = Assembler::new();
        let missing = a.label();
        a.mov(R7, R1).store(R10.word(-4), 0).look_up(shared, -4, missing);
        a.mov(R6, 1).atomic_fetch_add(R0.double(8), R6);
        a.look_up(per_cpu, -4, missing).load(R1, R0.double(0)).add(R1, 1).store(R0.double(0), R1);
        a.load(R1, R7.word(0)).load(R2, R7.word(4)).mov(R0, R1).add(R0, 14).jump_if(R0.above(R2), missing);
        a.store(R1.byte(0), R6).give(XdpAction::Pass);
        a.bind(missing).give(XdpAction::Aborted);
        a.assemble()
    }

    #[test]
    fn programs_and_user_space_see_the_same_maps() {
        let Some(shared) = or_skip(Array::<2>::create("shared", 1)) else { return };
        let per_cpu = PerCpuArray::<1>::create("per_cpu", 1).unwrap();
        shared.set(0, &[7, 40]).unwrap();
        let program = Program::load(ProgramType::Xdp, "counting", &counting(&shared, &per_cpu)).unwrap();
        let run = program.test_run(&[0; 60], 100).unwrap();
        assert_eq!(run.value, XdpAction::Pass as u32);
        assert_eq!(run.frame[0], 139, "the last run sees what the 99 before it have added to 40");
        assert_eq!(shared.get(0).unwrap(), [7, 140]);
        assert_eq!(per_cpu.sum(0).unwrap(), [100]);
        assert_eq!(shared.get(1).unwrap_err().call, "bpf(BPF_MAP_LOOKUP_ELEM) shared[1]");
    }
}
