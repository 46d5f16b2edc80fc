//! Many datagrams in one system call.
//!
//! Batches own their memory and allocate nothing per call; they do not look into the datagrams. Needs no privilege. Linux 3.0 for
//! `sendmmsg`,
//! 2.6.33 for `recvmmsg`, 4.18 for `UDP_SEGMENT`, 5.0 for `UDP_GRO` (udp(7)).

use std::{
    ffi::{c_int, c_uint},
    io,
    mem::MaybeUninit,
    net::SocketAddr,
    ops::Range,
    os::fd::{AsFd, AsRawFd},
    ptr,
};

use fathom_model::units::Nanos;

use crate::{
    Error, Result,
    socket::{
        self, Sender, Wait,
        control_message::{CONTROL_SIZE, ControlBuffer, control_messages, time},
        socket_name::SocketName,
    },
};

/// The shape of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchShape {
    /// Datagrams per call, from 1 to 1024 (the kernel's `UIO_MAXIOV`).
    pub count: usize,
    /// Bytes of room per datagram.
    pub size: usize,
}

impl BatchShape {
    fn check(self) {
        assert!((1..=1024).contains(&self.count), "a batch of {} datagrams", self.count);
        assert!((1..=65_535).contains(&self.size), "datagrams of {} bytes", self.size);
    }
}

/// The longest payload of a UDP datagram over IPv4: 65,535 bytes minus the IP and UDP headers.
pub const PAYLOAD_MAX: usize = 65_507;

/// The maximum number of segments in one super-buffer: `UDP_MAX_SEGMENTS` of Linux before 6.9, which later kernels accept as well.
pub const SEGMENTS_MAX: usize = 64;

/// Returns how many datagrams of a size fit into one super-buffer; 1 means that segmentation is not possible.
#[must_use]
pub fn segments_of(size: usize) -> usize {
    (PAYLOAD_MAX / size.max(1)).clamp(1, SEGMENTS_MAX)
}

/// Makes the kernel or the device split sent data into datagrams of a size (`UDP_SEGMENT`); `None` disables the splitting.
///
/// # Errors
/// `setsockopt(UDP_SEGMENT)`: Linux before 4.18. If a device or a route does not support it, only the sends fail.
pub fn set_segment_size(socket: impl AsFd, size: Option<u16>) -> Result<()> {
    socket::set(socket, (libc::SOL_UDP, libc::UDP_SEGMENT), &c_int::from(size.unwrap_or(0)))
        .map_err(socket::error_of("setsockopt(UDP_SEGMENT)"))
}

/// Disables the checksum of sent datagrams (`SO_NO_CHECK`), which IPv4 allows and which excludes super-buffers.
///
/// # Errors
/// `setsockopt(SO_NO_CHECK)`, if it is not a socket.
pub fn set_checksum_off(socket: impl AsFd) -> Result<()> {
    socket::set(socket, (libc::SOL_SOCKET, libc::SO_NO_CHECK), &1).map_err(socket::error_of("setsockopt(SO_NO_CHECK)"))
}

/// Returns whether a send failed because its super-buffer cannot be split on this route or by this device.
///
/// `EIO` is a device without checksum offload, `EINVAL` and `EMSGSIZE` are a segment that does not fit into one packet (`udp_send_skb` of
/// Linux
/// 6.18).
#[must_use]
pub fn is_segmentation_refused(error: &Error) -> bool {
    matches!(error.errno(), Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE))
}

/// Allows the kernel to deliver datagrams of one flow merged into super-buffers (`UDP_GRO`).
///
/// # Errors
/// `setsockopt(UDP_GRO)`: Linux before 5.0.
pub fn set_receive_offload(socket: impl AsFd) -> Result<()> {
    socket::set(socket, (libc::SOL_UDP, libc::UDP_GRO), &1).map_err(socket::error_of("setsockopt(UDP_GRO)"))
}

/// The part of a batch that the kernel accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendResult {
    /// This many from the start, at least one; the rest must be sent again.
    Datagrams(usize),
    /// None: the send buffer is full, or the timeout has passed (`EAGAIN`).
    WouldBlock,
    /// None: a queue of the device is full (`ENOBUFS`).
    NoBuffers,
}

/// Datagrams to send over a connected socket, or each to the source of a received one.
pub struct SendBatch {
    shape: BatchShape,
    payloads: Box<[u8]>,
    lengths: Box<[usize]>,
    segments: usize,
    /// The destination of each; empty for a connected socket.
    names: Box<[SocketName]>,
    headers: Headers,
}

impl SendBatch {
    /// Creates a batch with zeroed payloads.
    ///
    /// # Panics
    /// If the shape is out of range.
    #[must_use]
    pub fn new(shape: BatchShape) -> Self {
        shape.check();
        Self {
            shape,
            payloads: vec![0; shape.count * shape.size].into_boxed_slice(),
            lengths: vec![shape.size; shape.count].into_boxed_slice(),
            segments: 1,
            names: Box::default(),
            headers: Headers::new(shape.count),
        }
    }

    /// Like `SendBatch::new`, for an unconnected socket: every datagram needs [`SendBatch::answer`].
    ///
    /// # Panics
    /// If the shape is out of range.
    #[must_use]
    pub fn of_answers(shape: BatchShape) -> Self {
        Self { names: vec![SocketName::NOWHERE; shape.count].into_boxed_slice(), ..Self::new(shape) }
    }

    /// Addresses a datagram to the source of a received one.
    ///
    /// # Panics
    /// If one of the batches has no names, or if there is no such datagram.
    pub fn answer(&mut self, index: usize, received: &ReceiveBatch, question: usize) {
        assert!(question < received.headers.used, "datagram {question} of {}", received.headers.used);
        self.names[index] = received.names[question];
    }

    /// Sends `segments` datagrams as one super-buffer, for a socket with [`set_segment_size`]; 1 sends each alone.
    ///
    /// # Panics
    /// If a super-buffer would exceed the maximum length of a datagram, or if a datagram has a different length.
    pub fn set_segments(&mut self, segments: usize) {
        let most = segments_of(self.shape.size);
        assert!((1..=most).contains(&segments), "{segments} segments where {most} fit");
        assert!(segments == 1 || self.lengths.iter().all(|length| *length == self.shape.size), "segments of two sizes");
        self.segments = segments;
    }

    /// Sets the length of a datagram, up to the size of the shape.
    ///
    /// # Panics
    /// If it is larger than the size, or if the datagram is part of a super-buffer.
    pub fn set_length(&mut self, index: usize, length: usize) {
        assert!(length <= self.shape.size, "{length} bytes in a place of {}", self.shape.size);
        assert!(self.segments == 1 || length == self.shape.size, "segments of two sizes");
        self.lengths[index] = length;
    }

    /// The length of one datagram.
    #[must_use]
    pub fn length(&self, index: usize) -> usize {
        self.lengths[index]
    }

    /// The datagrams per call and the bytes of each.
    #[must_use]
    pub fn shape(&self) -> BatchShape {
        self.shape
    }

    /// The payload of one datagram.
    pub fn payload_mut(&mut self, index: usize) -> &mut [u8] {
        &mut self.payloads[index * self.shape.size..][..self.lengths[index]]
    }

    /// Sends the datagrams of a range; the kernel may accept fewer, of a super-buffer all or none.
    ///
    /// # Errors
    /// `sendmmsg`: `ECONNREFUSED` for an earlier datagram, `EMSGSIZE`, `EPERM` from a firewall; for super-buffers also `EIO` and `EINVAL`,
    /// if the device or the route cannot split them.
    ///
    /// # Panics
    /// If the range is empty or beyond the batch.
    pub fn send(&mut self, socket: impl AsFd, range: Range<usize>, wait: Wait) -> Result<SendResult> {
        assert!(!range.is_empty(), "an empty batch");
        let n_datagrams = range.len();
        let names = self.names.get_mut(range.clone()).unwrap_or_default();
        let headers = self.headers.point_at_lengths(&mut self.payloads, &self.lengths, self.segments, range);
        for (header, name) in headers.iter_mut().zip(names) {
            header.msg_hdr.msg_namelen = name.length();
            header.msg_hdr.msg_name = name.0.as_mut_ptr().cast();
        }
        let flags = libc::MSG_NOSIGNAL | wait.flag();
        let count = count(headers);
        // SAFETY: `count` headers point to payloads and names that outlive the call; the kernel only reads those.
        let sent = unsafe { libc::sendmmsg(socket.as_fd().as_raw_fd(), headers.as_mut_ptr(), count, flags) };
        if let Ok(sent) = usize::try_from(sent) {
            return Ok(SendResult::Datagrams((sent * self.segments).min(n_datagrams)));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(SendResult::WouldBlock),
            Some(libc::ENOBUFS) => Ok(SendResult::NoBuffers),
            _ => Err(Error::new("sendmmsg", error)),
        }
    }
}

/// A buffer for received datagrams.
pub struct ReceiveBatch {
    shape: BatchShape,
    payloads: Box<[u8]>,
    controls: Box<[ControlBuffer]>,
    headers: Headers,
    /// The sources of the first datagrams: one, or one for each.
    names: Box<[SocketName]>,
    drops: Option<u32>,
}

impl ReceiveBatch {
    /// Creates an empty batch; a datagram longer than the shape's size is truncated.
    ///
    /// # Panics
    /// If the shape is out of range.
    #[must_use]
    pub fn new(shape: BatchShape) -> Self {
        shape.check();
        Self {
            shape,
            payloads: vec![0; shape.count * shape.size].into_boxed_slice(),
            controls: vec![ControlBuffer([0; CONTROL_SIZE]); shape.count].into_boxed_slice(),
            headers: Headers::new(shape.count),
            names: [SocketName::NOWHERE].into(),
            drops: None,
        }
    }

    /// Like `ReceiveBatch::new`, but records the source of every datagram for answers.
    ///
    /// # Panics
    /// If the shape is out of range.
    #[must_use]
    pub fn of_questions(shape: BatchShape) -> Self {
        Self { names: vec![SocketName::NOWHERE; shape.count].into_boxed_slice(), ..Self::new(shape) }
    }

    /// Receives available datagrams, at least one; `None` means none now (or none within the timeout).
    ///
    /// [`Wait::Block`] waits for the first datagram only (`MSG_WAITFORONE`).
    ///
    /// # Errors
    /// `recvmmsg`: `ECONNREFUSED` on a connected socket whose peer is gone.
    pub fn receive(&mut self, socket: impl AsFd, wait: Wait) -> Result<Option<usize>> {
        let headers = self.headers.point_at(&mut self.payloads, self.shape.size);
        for (header, control) in headers.iter_mut().zip(&mut self.controls) {
            header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = CONTROL_SIZE;
        }
        for (header, name) in headers.iter_mut().zip(&mut self.names) {
            header.msg_hdr.msg_name = name.0.as_mut_ptr().cast();
            header.msg_hdr.msg_namelen = SocketName::LENGTH_MAX;
        }
        let flags = libc::MSG_WAITFORONE | wait.flag();
        let count = count(headers);
        let fd = socket.as_fd().as_raw_fd();
        // SAFETY: `count` headers point to distinct payloads, controls and names, all borrowed from `self`.
        let received = unsafe { libc::recvmmsg(fd, headers.as_mut_ptr(), count, flags, ptr::null_mut()) };
        let Ok(received) = usize::try_from(received) else {
            self.headers.used = 0;
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(None),
                _ => Err(Error::new("recvmmsg", error)),
            };
        };
        self.headers.used = received;
        if received > 0 {
            self.drops = self.ancillary(received - 1, libc::SO_RXQ_OVFL).map(u32::from_ne_bytes).or(self.drops);
        }
        Ok(Some(received))
    }

    /// The payload of a datagram of the last call, truncated to the available room.
    ///
    /// # Panics
    /// If the last call received fewer datagrams.
    #[must_use]
    pub fn payload(&self, index: usize) -> &[u8] {
        assert!(index < self.headers.used, "datagram {index} of {}", self.headers.used);
        let length = usize::try_from(self.headers.messages[index].msg_len).expect("at most 65535");
        &self.payloads[index * self.shape.size..][..length.min(self.shape.size)]
    }

    /// Splits a merged datagram into its segments; all but the last have the same length.
    ///
    /// Needs [`set_receive_offload`]; otherwise the only segment is [`ReceiveBatch::payload`].
    ///
    /// # Panics
    /// If the last call received fewer datagrams.
    pub fn segments(&self, index: usize) -> Segments<'_> {
        let stride = self.ancillary_of(index, (libc::SOL_UDP, libc::UDP_GRO)).map(c_int::from_ne_bytes);
        let stride = stride.and_then(|stride| usize::try_from(stride).ok()).filter(|stride| *stride > 0);
        Segments { rest: Some(self.payload(index)), stride: stride.unwrap_or(usize::MAX) }
    }

    /// Returns whether a datagram was longer than its room.
    ///
    /// # Panics
    /// If the last call received fewer datagrams.
    #[must_use]
    pub fn is_cut(&self, index: usize) -> bool {
        assert!(index < self.headers.used, "datagram {index} of {}", self.headers.used);
        self.headers.messages[index].msg_hdr.msg_flags & libc::MSG_TRUNC != 0
    }

    /// The source of the first datagram of the last call; `None` if none arrived.
    #[must_use]
    pub fn source(&self) -> Option<SocketAddr> {
        self.source_of(0)
    }

    /// The source of a datagram of the last call; `None` if it is unknown.
    #[must_use]
    pub fn source_of(&self, index: usize) -> Option<SocketAddr> {
        let name = self.names.get(..self.headers.used.min(self.names.len()))?.get(index)?;
        name.address()
    }

    /// Like `ReceiveBatch::source_of`, as a sender to answer to.
    #[must_use]
    pub fn sender(&self, index: usize) -> Option<Sender> {
        self.source_of(index).map(Sender::of)
    }

    /// The last reported value of the socket's drop counter; `None` before the first drop.
    ///
    /// Needs [`crate::socket::set_report_drops`]. It is cumulative and wraps around.
    #[must_use]
    pub fn drops(&self) -> Option<u32> {
        self.drops
    }

    /// The socket's drop counter at the time a datagram was queued; `None` before the first drop.
    ///
    /// Otherwise as [`ReceiveBatch::drops`]; a dropped super-buffer counts once.
    ///
    /// # Panics
    /// If the last call received fewer datagrams.
    #[must_use]
    pub fn drops_before(&self, index: usize) -> Option<u32> {
        self.ancillary(index, libc::SO_RXQ_OVFL).map(u32::from_ne_bytes)
    }

    /// The kernel's receive time of a datagram, on `CLOCK_REALTIME`.
    ///
    /// Needs [`crate::socket::set_report_time`]; otherwise `None`.
    ///
    /// # Panics
    /// If the last call received fewer datagrams.
    #[must_use]
    pub fn kernel_time(&self, index: usize) -> Option<Nanos> {
        self.ancillary(index, libc::SO_TIMESTAMPNS).and_then(time)
    }

    /// The first bytes of a `SOL_SOCKET` control message.
    fn ancillary<const N: usize>(&self, index: usize, kind: c_int) -> Option<[u8; N]> {
        self.ancillary_of(index, (libc::SOL_SOCKET, kind))
    }

    fn ancillary_of<const N: usize>(&self, index: usize, of: (c_int, c_int)) -> Option<[u8; N]> {
        assert!(index < self.headers.used, "datagram {index} of {}", self.headers.used);
        let length = self.headers.messages[index].msg_hdr.msg_controllen.min(CONTROL_SIZE);
        control_messages(&self.controls[index].0[..length])
            .find(|message| (message.level, message.kind) == of)
            .and_then(|message| message.value.first_chunk().copied())
    }
}

/// The datagrams of one super-buffer.
#[derive(Debug, Clone)]
pub struct Segments<'a> {
    rest: Option<&'a [u8]>,
    stride: usize,
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest.take()?;
        let Some((segment, rest)) = rest.split_at_checked(self.stride) else { return Some(rest) };
        self.rest = Some(rest).filter(|rest| !rest.is_empty());
        Some(segment)
    }
}

/// The kernel's view of a batch; its pointers are set before each call and not used after it.
struct Headers {
    vectors: Box<[libc::iovec]>,
    messages: Box<[libc::mmsghdr]>,
    used: usize,
}

// SAFETY: the pointers are only followed within the call that sets them, on the calling thread.
unsafe impl Send for Headers {}

impl Headers {
    fn new(count: usize) -> Self {
        // SAFETY: `mmsghdr` holds integers and raw pointers, for which zero is valid.
        let message: libc::mmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        let vector = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        Self { vectors: vec![vector; count].into(), messages: vec![message; count].into(), used: 0 }
    }

    /// Sets up one header for each message of a range: a datagram, or several adjacent ones of equal length.
    fn point_at_lengths(
        &mut self,
        payloads: &mut [u8],
        lengths: &[usize],
        segments: usize,
        range: Range<usize>,
    ) -> &mut [libc::mmsghdr] {
        let size = payloads.len() / lengths.len();
        let firsts = range.clone().step_by(segments);
        let mut count = 0;
        for ((first, vector), message) in firsts.zip(&mut self.vectors).zip(&mut self.messages) {
            let last = (first + segments).min(range.end) - 1;
            let payload = &mut payloads[first * size..last * size + lengths[last]];
            *vector = libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() };
            message.msg_hdr.msg_iov = vector;
            message.msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        &mut self.messages[..count]
    }

    /// Sets up one header for each `size` bytes of the payloads.
    fn point_at(&mut self, payloads: &mut [u8], size: usize) -> &mut [libc::mmsghdr] {
        let mut count = 0;
        for ((payload, vector), message) in
            payloads.chunks_exact_mut(size).zip(&mut self.vectors).zip(&mut self.messages)
        {
            *vector = libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: size };
            message.msg_hdr.msg_iov = vector;
            message.msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        &mut self.messages[..count]
    }
}

fn count(headers: &[libc::mmsghdr]) -> c_uint {
    c_uint::try_from(headers.len()).expect("a batch has at most 1024 datagrams")
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::policy::AllowedPeers;
    use crate::{clock, socket::Socket};

    const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    fn pair() -> (Socket, Socket) {
        let far = socket::datagram(LOOPBACK, &AllowedPeers::anybody()).unwrap();
        let near = socket::datagram(LOOPBACK, &AllowedPeers::anybody()).unwrap();
        near.connect(&far.local_addr().unwrap()).unwrap();
        socket::set_timeout(&far, Nanos::from_secs(1)).unwrap();
        (near, far)
    }

    fn numbered(shape: BatchShape) -> SendBatch {
        let mut batch = SendBatch::new(shape);
        for index in 0..shape.count {
            batch.payload_mut(index).fill(u8::try_from(index).unwrap());
        }
        batch
    }

    #[test]
    fn a_batch_arrives_with_lengths_contents_and_source() {
        let (near, far) = pair();
        let mut out = numbered(BatchShape { count: 8, size: 100 });
        assert_eq!(out.send(&near, 2..7, Wait::Never).unwrap(), SendResult::Datagrams(5));
        let mut batch = ReceiveBatch::new(BatchShape { count: 16, size: 200 });
        assert_eq!(batch.source(), None);
        assert_eq!(batch.receive(&far, Wait::Block).unwrap(), Some(5));
        for index in 0..5 {
            assert_eq!(batch.payload(index), [u8::try_from(index + 2).unwrap(); 100]);
            assert!(!batch.is_cut(index));
            assert_eq!(batch.kernel_time(index), None);
        }
        assert_eq!(batch.source(), Some(socket::local_address(&near).unwrap()));
        assert_eq!(batch.receive(&far, Wait::Never).unwrap(), None);
        assert_eq!(batch.source(), None);
    }

    #[test]
    fn every_answer_goes_to_where_its_question_came_from() {
        for address in [LOOPBACK, SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 0)] {
            let Ok(far) = socket::datagram(address, &AllowedPeers::anybody()) else { continue };
            socket::set_timeout(&far, Nanos::from_secs(1)).unwrap();
            let near: Vec<Socket> =
                (0..3).map(|_| socket::datagram(address, &AllowedPeers::anybody()).unwrap()).collect();
            for (socket, text) in near.iter().zip([b"0", b"1", b"2"]) {
                socket.connect(&far.local_addr().unwrap()).unwrap();
                socket::send(socket, text, Wait::Block).unwrap();
            }
            let mut questions = ReceiveBatch::of_questions(BatchShape { count: 4, size: 8 });
            let mut answers = SendBatch::of_answers(BatchShape { count: 4, size: 8 });
            assert_eq!(questions.receive(&far, Wait::Block).unwrap(), Some(3));
            let sources: Vec<_> = near.iter().map(|socket| socket::local_address(socket).ok()).collect();
            assert_eq!([0, 1, 2, 3].map(|index| questions.source_of(index))[..3], sources);
            assert_eq!(
                (questions.source_of(3), questions.sender(1).and_then(|sender| sender.address())),
                (None, sources[1])
            );
            // The second question gets no answer.
            for (index, question) in [0, 2].into_iter().enumerate() {
                answers.set_length(index, 3);
                answers.payload_mut(index).fill(questions.payload(question)[0]);
                answers.answer(index, &questions, question);
            }
            assert_eq!(answers.send(&far, 0..2, Wait::Block).unwrap(), SendResult::Datagrams(2));
            let mut room = [0; 8];
            let told: Vec<_> = near
                .iter()
                .map(|socket| socket::recv(socket, &mut room, Wait::Never).unwrap().map(|n| room[..n].to_vec()))
                .collect();
            assert_eq!(told, [Some(b"000".to_vec()), None, Some(b"222".to_vec())]);
        }
    }

    #[test]
    fn a_batch_that_has_moved_to_another_thread_still_works() {
        let (near, far) = pair();
        let mut out = numbered(BatchShape { count: 3, size: 10 });
        std::thread::scope(|scope| {
            scope.spawn(move || assert_eq!(out.send(&near, 0..3, Wait::Block).unwrap(), SendResult::Datagrams(3)));
        });
        let mut batch = ReceiveBatch::new(BatchShape { count: 3, size: 10 });
        assert_eq!(batch.receive(&far, Wait::Block).unwrap(), Some(3));
        assert_eq!(batch.payload(2), [2; 10]);
    }

    #[test]
    fn a_datagram_longer_than_its_room_is_cut_and_says_so() {
        let (near, far) = pair();
        SendBatch::new(BatchShape { count: 1, size: 100 }).send(&near, 0..1, Wait::Never).unwrap();
        let mut batch = ReceiveBatch::new(BatchShape { count: 1, size: 60 });
        batch.receive(&far, Wait::Block).unwrap();
        assert_eq!((batch.payload(0).len(), batch.is_cut(0)), (60, true));
    }

    #[test]
    fn drops_and_receive_times_come_with_the_datagrams() {
        let (near, far) = pair();
        socket::set_report_drops(&far).unwrap();
        socket::set_report_time(&far).unwrap();
        socket::set_buffer(&far, socket::Buffer::Receive, fathom_model::units::Bytes(4096)).unwrap();
        let mut out = SendBatch::new(BatchShape { count: 50, size: 1000 });
        assert_eq!(out.send(&near, 0..50, Wait::Never).unwrap(), SendResult::Datagrams(50));
        let mut batch = ReceiveBatch::new(BatchShape { count: 50, size: 1000 });
        let first = batch.receive(&far, Wait::Block).unwrap().unwrap();
        let age = clock::wall() - batch.kernel_time(0).unwrap();
        assert!(age < Nanos::from_secs(5), "{age}");
        assert_eq!(batch.drops(), None);
        out.send(&near, 0..1, Wait::Never).unwrap();
        batch.receive(&far, Wait::Block).unwrap();
        assert_eq!(batch.drops().map(usize::try_from), Some(Ok(50 - first)));
        assert_eq!(batch.drops_before(0), batch.drops());
    }

    #[test]
    fn datagrams_of_several_lengths_leave_in_one_call() {
        let (near, far) = pair();
        let mut out = numbered(BatchShape { count: 4, size: 100 });
        for (index, length) in [100, 1, 60, 18].into_iter().enumerate() {
            out.set_length(index, length);
        }
        assert_eq!(out.send(&near, 0..4, Wait::Never).unwrap(), SendResult::Datagrams(4));
        let mut batch = ReceiveBatch::new(BatchShape { count: 8, size: 100 });
        assert_eq!(batch.receive(&far, Wait::Block).unwrap(), Some(4));
        let lengths: Vec<usize> = (0..4).map(|index| batch.payload(index).len()).collect();
        assert_eq!((lengths, batch.payload(2)), (vec![100, 1, 60, 18], &[2; 60][..]));
    }

    /// The first byte and the length of every datagram that has arrived.
    fn arrived(batch: &mut ReceiveBatch, far: &Socket) -> Vec<(u8, usize)> {
        let mut arrived = Vec::new();
        while let Some(n) = batch.receive(far, Wait::Never).unwrap() {
            let segments = (0..n).flat_map(|index| batch.segments(index));
            arrived.extend(segments.map(|segment| (segment[0], segment.len())));
        }
        arrived
    }

    #[test]
    fn super_buffers_are_cut_into_the_datagrams_they_were_made_of() {
        let shape = BatchShape { count: 10, size: 100 };
        let all: Vec<(u8, usize)> = (2..10).map(|first| (first, 100)).collect();
        for receives_joined in [false, true] {
            let (near, far) = pair();
            if receives_joined {
                set_receive_offload(&far).unwrap();
            }
            set_segment_size(&near, Some(100)).unwrap();
            let mut out = numbered(shape);
            out.set_segments(3);
            assert_eq!(out.send(&near, 2..10, Wait::Never).unwrap(), SendResult::Datagrams(8), "3 + 3 + 2");
            let mut batch = ReceiveBatch::new(BatchShape { count: 16, size: 65_535 });
            let n = batch.receive(&far, Wait::Block).unwrap().unwrap();
            let first: Vec<_> = (0..n).flat_map(|index| batch.segments(index)).map(|s| (s[0], s.len())).collect();
            assert_eq!((n, first), (if receives_joined { 3 } else { 8 }, all.clone()));
            set_segment_size(&near, None).unwrap();
            out.set_segments(1);
            out.send(&near, 0..2, Wait::Never).unwrap();
            assert_eq!(arrived(&mut batch, &far), [(0, 100), (1, 100)], "each alone again");
        }
    }

    #[test]
    fn a_short_last_segment_and_an_empty_datagram_are_datagrams() {
        let (near, far) = pair();
        set_receive_offload(&far).unwrap();
        set_segment_size(&near, Some(100)).unwrap();
        socket::send(&near, &[7; 250], Wait::Never).unwrap();
        socket::send(&near, &[], Wait::Never).unwrap();
        let mut batch = ReceiveBatch::new(BatchShape { count: 4, size: 65_535 });
        assert_eq!(batch.receive(&far, Wait::Block).unwrap(), Some(2));
        let lengths = |index| batch.segments(index).map(<[u8]>::len).collect::<Vec<_>>();
        assert_eq!((lengths(0), lengths(1)), (vec![100, 100, 50], vec![0]));
    }

    #[test]
    fn a_refused_super_buffer_is_an_error_with_its_number_and_nothing_of_it_was_sent() {
        let (near, far) = pair();
        set_segment_size(&near, Some(100)).unwrap();
        // Without a checksum, the device has nothing to complete for each segment (`udp_send_skb`).
        set_checksum_off(&near).unwrap();
        let mut out = numbered(BatchShape { count: 4, size: 100 });
        out.set_segments(4);
        let error = out.send(&near, 0..4, Wait::Never).unwrap_err();
        assert!(is_segmentation_refused(&error), "{error}");
        assert_eq!(arrived(&mut ReceiveBatch::new(BatchShape { count: 4, size: 200 }), &far), []);
    }

    #[test]
    fn as_many_segments_fit_as_a_datagram_is_long() {
        assert_eq!([1, 64, 1023, 1400, 32_753, 32_754, PAYLOAD_MAX].map(segments_of), [64, 64, 64, 46, 2, 1, 1]);
    }

    #[test]
    fn a_full_send_buffer_is_not_an_error() {
        let (near, far) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let mut out = SendBatch::new(BatchShape { count: 1024, size: 1000 });
        let sent = loop {
            match out.send(&near, 0..1024, Wait::Never).unwrap() {
                SendResult::Datagrams(_) => {}
                other => break other,
            }
        };
        assert_eq!(sent, SendResult::WouldBlock);
        drop(far);
    }
}
