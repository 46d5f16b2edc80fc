//! What must hold for every capture whose messages are sent again as they were.
//!
//! Shared by the fuzz target and by the test of `replay` that runs the corpus.

use fathom_capture::{ConversationSide, FlowDatagram, FlowObserver, KeyLog, PacketClass, read_datagrams};
use fathom_replay::{Transport, raw_contents};

/// Counts what clients sent.
#[derive(Default)]
struct Asked {
    n_whole: u64,
}

impl FlowObserver for Asked {
    fn on_datagram(&mut self, datagram: &FlowDatagram<'_>) {
        self.n_whole += u64::from(datagram.side == ConversationSide::Client && datagram.n_cut == 0);
    }

    fn on_other(&mut self, _: PacketClass) {}

    fn on_end(&mut self, _: u64) {}
}

/// Every whole datagram of a client is a message, and TCP is read as far as UDP is.
pub(crate) fn raw(bytes: &[u8]) {
    let [udp, tcp] =
        [Transport::Udp, Transport::Tcp].map(|transport| raw_contents(bytes, transport, KeyLog::default()));
    let asked = read_datagrams(bytes, Asked::default(), |_, _| true);
    match (udp, tcp, asked) {
        (Ok(udp), Ok(_), Ok((asked, _))) => assert_eq!(udp.n_messages, asked.n_whole),
        (Err(udp), Err(tcp), Err(asked)) => {
            assert_eq!([udp.to_string(), tcp.to_string()], [(); 2].map(|()| asked.to_string()));
        }
        (udp, tcp, _) => panic!("one is no capture: {udp:?} {tcp:?}"),
    }
}
