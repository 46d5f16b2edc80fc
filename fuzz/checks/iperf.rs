//! What must hold for every message of iperf 2, whoever sent it.
//!
//! Shared by the fuzz target and by the test of `interop` that runs the corpus.

use fathom_interop::iperf2::{
    BurstReader, ClientHeader, DatagramNumber, HEADER_MAX, HeaderLen, ServerAck, ServerReport, header_len,
    read_datagram,
};

/// Reads a message as everything that it may be: what is taken is within its ranges, and is the same when it is written again.
pub(crate) fn message(bytes: &[u8]) {
    if let Some(first) = bytes.first_chunk()
        && let HeaderLen::Bytes(length) = header_len(*first)
    {
        assert!((4..=HEADER_MAX).contains(&length));
        if let Some(header) = bytes.get(..length).and_then(ClientHeader::read_stream) {
            again(header, |header| ClientHeader::read_stream(&header.write_stream()));
        }
    }
    if let Some(header) = read_datagram(bytes) {
        again(header, |header| {
            let mut datagram = [0; 200];
            header.write_datagram(&mut datagram);
            read_datagram(&datagram)
        });
    }
    for is_wide in [false, true] {
        if let Some(number) = DatagramNumber::read(bytes, is_wide) {
            let mut datagram = [0; 16];
            number.write(&mut datagram);
            assert_eq!(DatagramNumber::read(&datagram, true).map(|again| again.number), Some(number.number));
        }
    }
    if let Some(report) = ServerReport::read(bytes) {
        let written = report.write(usize::MAX).expect("there is room");
        let again = ServerReport::read(&written).expect("what was taken is taken again");
        assert_eq!((again.bytes, again.lost, again.datagrams), (report.bytes, report.lost, report.datagrams));
    }
    if let Some(ack) = ServerAck::read(bytes) {
        assert_eq!(ServerAck::read(&ack.write()).map(|again| again.version), Some(ack.version));
    }
    let (mut reader, mut n) = (BurstReader::default(), 0);
    bytes.chunks(7).for_each(|piece| reader.take(piece, |_| n += 1));
    assert!(n <= bytes.len() / 92, "a burst is at least as long as its header");
}

/// Checks that a header is the same after it was written and read again, but for what this program never asks for.
fn again(header: ClientHeader, write_and_read: impl Fn(ClientHeader) -> Option<ClientHeader>) {
    if header.foreign.is_some() || !header.is_extended || header.has_no_fin {
        return;
    }
    let read = write_and_read(header).expect("what was taken is taken again");
    assert_eq!(
        (read.mode, read.port, read.length, read.amount),
        (header.mode, header.port, header.length, header.amount)
    );
    assert_eq!(
        (read.tos, read.rate, read.trip_start.is_some()),
        (header.tos, header.rate, header.trip_start.is_some())
    );
}
