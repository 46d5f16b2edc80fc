//! One question before a test: whether anybody behind the address tells who it is.

use fathom_engine::Error;
use fathom_model::units::Nanos;
use fathom_sys::{
    policy::Destination,
    socket::{self, Socket, Wait},
};

use crate::{
    carrier::Carrier,
    dialect::{Dialect, MCONNECT_HELLO},
    identity::Identity,
    message::{self, HEADER, Question},
    sources::Sources,
    target,
};

/// How long a connect and an answer may take.
const PATIENCE: Nanos = Nanos::from_secs(2);
/// A datagram may be lost, so it is sent a few times within that.
const DATAGRAMS: u64 = 4;
/// Longer than the name of any server.
pub(crate) const GREETING_MAX: usize = 256;

/// Asks once. Returns who answered.
///
/// # Errors
/// Nobody answers, or what answers does not tell who it is.
pub(crate) fn ask(
    (carrier, dialect): (Carrier, Dialect),
    to: &Destination,
    sources: &mut Sources,
) -> Result<Identity, Error> {
    let nobody = |why: &str| target::nobody_answers(to, dialect, why);
    let Some(address) = to.address() else { return Err(nobody("it is no IP address")) };
    let call = |error: fathom_sys::Error| match error.errno() {
        Some(_) if error.call.starts_with("bind") => Error::Unsupported {
            what: format!("an address of `source` cannot be used: {}", error.source.kind()),
            hint: Some(
                "--local-sources makes all addresses of --source belong to this host during the test".to_owned(),
            ),
        },
        _ => nobody(&error.source.kind().to_string()),
    };
    let socket = match carrier {
        Carrier::Tcp => socket::stream(address),
        Carrier::Udp => socket::datagram_unbound(address),
    };
    let socket = socket.map_err(call)?;
    sources.bind(&socket).map_err(call)?;
    let bytes = match carrier {
        Carrier::Tcp => {
            socket::connect(&socket, to, PATIENCE).map_err(call)?;
            ask_stream(&socket, dialect)
        }
        Carrier::Udp => {
            socket::associate(&socket, to).map_err(call)?;
            ask_datagrams(&socket, dialect)
        }
    };
    let bytes = match bytes.map_err(call)? {
        Answer::Whole(bytes) => bytes,
        Answer::None => return Err(nobody("no answer came within 2 s")),
        Answer::Closed => {
            let why =
                "it closed the connection: it may serve others only (--identity-from), or have too many connections";
            return Err(nobody(why));
        }
    };
    identity_in(&bytes, dialect).ok_or_else(|| nobody("the answer is not of this protocol"))
}

/// Returns who sent an answer.
pub(crate) fn identity_in(bytes: &[u8], dialect: Dialect) -> Option<Identity> {
    match dialect {
        Dialect::Mconnect => Identity::from_bytes(bytes, 0),
        Dialect::Fathom | Dialect::Ctraffic => message::read(bytes.get(..HEADER)?).ok()?.identity,
    }
}

/// Returns the question of a dialect; none where the server speaks first.
pub(crate) fn question((carrier, dialect): (Carrier, Dialect), number: u64) -> Vec<u8> {
    match (dialect, carrier) {
        (Dialect::Mconnect, Carrier::Tcp) => Vec::new(),
        (Dialect::Mconnect, Carrier::Udp) => MCONNECT_HELLO.to_vec(),
        (Dialect::Fathom | Dialect::Ctraffic, _) => {
            let mut bytes = vec![0; HEADER];
            Question { number, flow: 0 }.write(&mut bytes);
            bytes
        }
    }
}

/// Returns whether these are all bytes of an answer.
pub(crate) fn is_whole(bytes: &[u8], dialect: Dialect) -> bool {
    match dialect {
        Dialect::Mconnect => !bytes.is_empty(),
        Dialect::Fathom | Dialect::Ctraffic => bytes.len() >= HEADER,
    }
}

/// What came back for a question.
enum Answer {
    Whole(Vec<u8>),
    None,
    Closed,
}

fn ask_stream(socket: &Socket, dialect: Dialect) -> fathom_sys::Result<Answer> {
    socket::set_timeout(socket, PATIENCE)?;
    let question = question((Carrier::Tcp, dialect), 0);
    if !question.is_empty() {
        socket::send(socket, &question, Wait::Block)?;
    }
    let (mut got, mut room) = (Vec::new(), [0; GREETING_MAX]);
    while !is_whole(&got, dialect) {
        match socket::recv(socket, &mut room, Wait::Block)? {
            None => return Ok(Answer::None),
            Some(0) => return Ok(Answer::Closed),
            Some(count) => got.extend_from_slice(&room[..count]),
        }
    }
    Ok(Answer::Whole(got))
}

fn ask_datagrams(socket: &Socket, dialect: Dialect) -> fathom_sys::Result<Answer> {
    socket::set_timeout(socket, PATIENCE / DATAGRAMS)?;
    let mut room = [0; GREETING_MAX];
    for number in 0..DATAGRAMS {
        socket::send(socket, &question((Carrier::Udp, dialect), number), Wait::Block)?;
        if let Some(count) = socket::recv(socket, &mut room, Wait::Block)? {
            return Ok(Answer::Whole(room[..count].to_vec()));
        }
    }
    Ok(Answer::None)
}
