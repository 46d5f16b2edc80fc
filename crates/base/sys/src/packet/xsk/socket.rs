//! AF_XDP sockets: one type sends, one receives.

use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use fathom_model::units::{Bytes, Frames, Nanos};

use super::{
    ring::Ring,
    umem::{CHUNK, Chunk, HEADROOM, Umem},
};
use crate::{Error, Result, clock, mapping::Source, policy::FramePermit as Permit, process::signal::poll_readable};

/// A queue of a device in this network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queue {
    /// The index of the device.
    pub ifindex: u32,
    /// The number of the queue, from 0.
    pub number: u32,
}

/// Whether the kernel copies frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It copies each frame into its own memory, which works with every driver.
    Copy,
    /// The device reads and writes the chunks directly, if the driver supports that.
    ZeroCopy,
}

/// Frames and chunks of a socket that the kernel could not process (`XDP_STATISTICS`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Received frames dropped for reasons other than the two below.
    pub rx_dropped: Frames,
    /// Received frames dropped because the ring was full.
    pub rx_ring_full: Frames,
    /// Received frames dropped because no chunk was available.
    pub rx_fill_empty: Frames,
    /// Frames to send with an invalid descriptor.
    pub tx_invalid: Frames,
}

/// The entries of each ring and the chunks of a sender: ten batches of 64 are in flight while as many are prepared.
const RING: u32 = 2048;
/// The chunks of a receiver are so many times the ring of frames, so that the fill ring is not empty while the ring is read.
const CHUNKS_PER_FRAME: u32 = 2;

/// Sends frames out of one queue; never blocks.
#[derive(Debug)]
pub struct Transmitter {
    fd: OwnedFd,
    umem: Umem,
    frames: Ring<libc::xdp_desc>,
    completion: Ring<u64>,
    _fill: Ring<u64>,
    mode: Mode,
}

/// Receives the frames that a program redirects to it from one queue.
#[derive(Debug)]
pub struct Receiver {
    fd: OwnedFd,
    umem: Umem,
    frames: Ring<libc::xdp_desc>,
    fill: Ring<u64>,
    _completion: Ring<u64>,
}

/// A received frame in place.
#[derive(Debug, Clone, Copy)]
pub struct Received<'a> {
    /// The bytes before the frame: they end with the program's metadata (`bpf_xdp_adjust_meta`); the rest is undefined.
    pub ahead: &'a [u8],
    /// The bytes of the frame.
    pub frame: &'a [u8],
}

/// The common parts of all sockets.
struct OpenedSocket {
    fd: OwnedFd,
    umem: Umem,
    fill: Ring<u64>,
    completion: Ring<u64>,
    offsets: libc::xdp_mmap_offsets,
}

impl Transmitter {
    /// Opens a socket for a queue that has no other AF_XDP socket.
    ///
    /// # Errors
    /// Without `CAP_NET_RAW`; `EOPNOTSUPP` if the driver has no zero-copy mode; `EBUSY` if the queue is taken.
    pub fn open(queue: Queue, mode: Mode, _: &Permit) -> Result<Self> {
        let OpenedSocket { fd, umem, fill, completion, offsets } = open(RING)?;
        set(&fd, libc::XDP_TX_RING, "XDP_TX_RING", &RING)?;
        let frames = Ring::map(Source::Shared(fd.as_raw_fd(), libc::XDP_PGOFF_TX_RING), offsets.tx, RING)?;
        bind(&fd, queue, mode)?;
        let mode = mode_of(&fd)?;
        Ok(Self { fd, umem, frames, completion, _fill: fill, mode })
    }

    /// The maximum number of frames in flight.
    #[must_use]
    pub const fn capacity() -> usize {
        RING as usize
    }

    /// Returns a chunk to write a frame to; `None` while all are in flight.
    pub fn take(&mut self) -> Option<Chunk> {
        self.umem.take().or_else(|| {
            self.reclaim();
            self.umem.take()
        })
    }

    /// The bytes of a chunk: the last content written there, initially zeros.
    pub fn bytes_mut(&mut self, chunk: &Chunk) -> &mut [u8] {
        self.umem.bytes_mut(chunk)
    }

    /// Queues the first bytes of a chunk; they are sent after [`Self::push`].
    ///
    /// # Panics
    /// Never: there are no more chunks than entries in the ring.
    pub fn submit(&mut self, chunk: Chunk, length: usize) {
        let len = u32::try_from(length.min(CHUNK)).expect("a chunk is shorter than 4 GiB");
        let has_room = self.frames.push(libc::xdp_desc { addr: self.umem.lend(chunk), len, options: 0 });
        assert!(has_room, "a ring as long as there are chunks is never full");
    }

    /// Makes the kernel send queued frames, as many as it accepts at once; call it again until no frame is in flight.
    ///
    /// # Errors
    /// If the device is down or gone.
    pub fn push(&mut self) -> Result<()> {
        self.frames.publish();
        if self.frames.needs_wakeup() || self.mode == Mode::Copy {
            self.wake()?;
        }
        self.reclaim();
        Ok(())
    }

    fn wake(&self) -> Result<()> {
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: the call gets no bytes and no address, so it reads nothing.
        let sent = unsafe { libc::sendto(self.fd.as_raw_fd(), std::ptr::null(), 0, flags, std::ptr::null(), 0) };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // It has sent a batch and more are queued, or its queue is full, or a signal arrived: the next call tries again.
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => Ok(()),
            _ => Err(Error::new("sendto(AF_XDP)", error)),
        }
    }

    fn reclaim(&mut self) {
        while let Some(address) = self.completion.pop() {
            self.umem.give_back(address);
        }
        self.completion.release();
    }

    /// The number of chunks that are not free: frames in flight, and chunks taken but not submitted.
    #[must_use]
    pub fn n_lent(&self) -> usize {
        self.umem.n_lent()
    }
}

impl Receiver {
    /// Opens a socket for a queue. A program has to redirect frames to it, see [`crate::bpf::SocketMap`].
    ///
    /// # Errors
    /// As [`Transmitter::open`].
    pub fn open(queue: Queue, mode: Mode) -> Result<Self> {
        Self::open_of(queue, mode, RING)
    }

    /// Opens a socket that holds so many frames, a power of two, with 8 KiB of memory for each.
    ///
    /// # Errors
    /// As [`Transmitter::open`].
    pub fn open_of(queue: Queue, mode: Mode, n_frames: u32) -> Result<Self> {
        let OpenedSocket { fd, mut umem, mut fill, completion, offsets } = open(CHUNKS_PER_FRAME * n_frames)?;
        set(&fd, libc::XDP_RX_RING, "XDP_RX_RING", &n_frames)?;
        let frames = Ring::map(Source::Shared(fd.as_raw_fd(), libc::XDP_PGOFF_RX_RING), offsets.rx, n_frames)?;
        while let Some(chunk) = umem.take() {
            fill.push(umem.lend(chunk));
        }
        fill.publish();
        bind(&fd, queue, mode)?;
        Ok(Self { fd, umem, frames, fill, _completion: completion })
    }

    /// Passes each received frame to `look`, at most `most` of them, and recycles the memory; returns their number.
    ///
    /// # Errors
    /// If waking the kernel to refill fails.
    pub fn receive(&mut self, most: usize, mut look: impl FnMut(Received<'_>)) -> Result<usize> {
        let mut n = 0;
        while n < most {
            let Some(frame) = self.frames.pop() else { break };
            let length = usize::try_from(frame.len).unwrap_or(usize::MAX);
            look(Received { ahead: self.umem.ahead(frame.addr), frame: self.umem.received(frame.addr, length) });
            // The fill ring has an entry for each chunk, so there is room.
            self.fill.push(frame.addr - frame.addr % CHUNK as u64);
            n += 1;
        }
        self.frames.release();
        self.fill.publish();
        if n > 0 && self.fill.needs_wakeup() {
            self.wait(Nanos::ZERO)?;
        }
        Ok(n)
    }

    /// Waits until a frame has arrived, or until the timeout; returns whether one has.
    ///
    /// # Errors
    /// If the kernel lacks the memory to wait.
    pub fn wait(&self, timeout: Nanos) -> Result<bool> {
        poll_readable(&[self.fd.as_fd()], timeout)
    }

    /// Returns the kernel's failure counts.
    ///
    /// # Errors
    /// Never on a kernel that has AF_XDP.
    pub fn statistics(&self) -> Result<Statistics> {
        statistics(&self.fd)
    }
}

impl AsFd for Transmitter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Adds the name of the limit to an error for memory that the kernel refuses to this user (`xdp_umem_account_pages`).
fn name_limit(error: Error, length: Bytes) -> Error {
    match error.errno() {
        Some(libc::ENOBUFS) => {
            let call = format!("{} of {length}, more than this user may lock (ulimit -l)", error.call);
            Error::new(call, error.source)
        }
        _ => error,
    }
}

/// Opens a socket with memory and its two rings for memory, which even a send-only socket must have.
fn open(n_chunks: u32) -> Result<OpenedSocket> {
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(Error::last("socket(AF_XDP)"));
    }
    // SAFETY: the kernel has just created this descriptor for us, and nothing else knows it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let umem = Umem::of(n_chunks)?;
    let (addr, len) = umem.extent();
    let chunk_size = u32::try_from(CHUNK).expect("a chunk is a page");
    let region = libc::xdp_umem_reg { addr, len, chunk_size, headroom: 0, flags: 0, tx_metadata_len: 0 };
    set(&fd, libc::XDP_UMEM_REG, "XDP_UMEM_REG", &region).map_err(|error| name_limit(error, Bytes(len)))?;
    set(&fd, libc::XDP_UMEM_FILL_RING, "XDP_UMEM_FILL_RING", &n_chunks)?;
    set(&fd, libc::XDP_UMEM_COMPLETION_RING, "XDP_UMEM_COMPLETION_RING", &n_chunks)?;
    let offsets = get(&fd, libc::XDP_MMAP_OFFSETS, "XDP_MMAP_OFFSETS", NO_OFFSETS)?;
    let ring = |page: libc::c_ulonglong, places| {
        let page = libc::off_t::try_from(page).expect("the offsets of rings are small");
        Ring::map(Source::Shared(fd.as_raw_fd(), page), places, n_chunks)
    };
    let fill = ring(libc::XDP_UMEM_PGOFF_FILL_RING, offsets.fr)?;
    let completion = ring(libc::XDP_UMEM_PGOFF_COMPLETION_RING, offsets.cr)?;
    Ok(OpenedSocket { fd, umem, fill, completion, offsets })
}

const NO_OFFSET: libc::xdp_ring_offset = libc::xdp_ring_offset { producer: 0, consumer: 0, desc: 0, flags: 0 };
const NO_OFFSETS: libc::xdp_mmap_offsets =
    libc::xdp_mmap_offsets { rx: NO_OFFSET, tx: NO_OFFSET, fr: NO_OFFSET, cr: NO_OFFSET };

/// How long a queue may stay taken after its socket was closed: a kernel worker releases it (`xp_release_deferred`).
const RELEASE: Nanos = Nanos::from_millis(500);
const LOOK_AGAIN: Nanos = Nanos::from_millis(5);

fn bind(fd: &OwnedFd, queue: Queue, mode: Mode) -> Result<()> {
    let copying = match mode {
        Mode::Copy => libc::XDP_COPY,
        Mode::ZeroCopy => libc::XDP_ZEROCOPY,
    };
    let address = libc::sockaddr_xdp {
        sxdp_family: u16::try_from(libc::AF_XDP).expect("a family has 16 bits"),
        sxdp_flags: copying | libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: queue.ifindex,
        sxdp_queue_id: queue.number,
        sxdp_shared_umem_fd: 0,
    };
    let length = length_of(&address);
    let deadline = clock::now() + RELEASE;
    loop {
        // SAFETY: the pointer is to a local of that length.
        let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
        if result >= 0 {
            return Ok(());
        }
        let call = || format!("bind(AF_XDP, device {}, queue {}, {mode:?})", queue.ifindex, queue.number);
        let error = Error::last(call());
        if error.errno() != Some(libc::EBUSY) || clock::now() >= deadline {
            return Err(error);
        }
        clock::sleep_until(clock::now() + LOOK_AGAIN);
    }
}

fn mode_of(fd: &OwnedFd) -> Result<Mode> {
    let options = get(fd, libc::XDP_OPTIONS, "XDP_OPTIONS", libc::xdp_options { flags: 0 })?;
    Ok(if options.flags & libc::XDP_OPTIONS_ZEROCOPY == 0 { Mode::Copy } else { Mode::ZeroCopy })
}

fn statistics(fd: &OwnedFd) -> Result<Statistics> {
    // SAFETY: the structure consists of numbers, for which zero is a valid value.
    let none: libc::xdp_statistics = unsafe { mem::zeroed() };
    let counts = get(fd, libc::XDP_STATISTICS, "XDP_STATISTICS", none)?;
    Ok(Statistics {
        rx_dropped: Frames(counts.rx_dropped),
        rx_ring_full: Frames(counts.rx_ring_full),
        rx_fill_empty: Frames(counts.rx_fill_ring_empty_descs),
        tx_invalid: Frames(counts.tx_invalid_descs),
    })
}

fn length_of<T>(value: &T) -> libc::socklen_t {
    libc::socklen_t::try_from(size_of_val(value)).expect("the arguments of socket calls are small")
}

fn set<T: Copy>(fd: &OwnedFd, option: libc::c_int, name: &str, value: &T) -> Result<()> {
    let (place, length) = (std::ptr::from_ref(value).cast(), length_of(value));
    // SAFETY: the pointer is to a value of that length, which the kernel reads.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_XDP, option, place, length) };
    if result < 0 { Err(Error::last(format!("setsockopt({name})"))) } else { Ok(()) }
}

/// Reads numbers; fields unknown to an older kernel keep their given values.
fn get<T: Copy>(fd: &OwnedFd, option: libc::c_int, name: &str, mut value: T) -> Result<T> {
    let mut length = length_of(&value);
    let place = (&raw mut value).cast();
    // SAFETY: the pointers are to locals; the second states the length of the first. Any numbers are a valid value of it.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_XDP, option, place, &raw mut length) };
    if result < 0 { Err(Error::last(format!("getsockopt({name})"))) } else { Ok(value) }
}

/// The longest frame that can be received: the part of a chunk after the headroom.
pub const LONGEST_RECEIVED: usize = CHUNK - HEADROOM;
