//! What a server of identities writes for what it reads on one connection. No I/O.

use crate::{
    dialect::{Dialect, MCONNECT_HELLO},
    identity::{Identity, NAME_MAX},
    message::{self, NotAMessage},
};

/// The first port that Linux gives to clients (`net.ipv4.ip_local_port_range`): those below are of servers, such as that of echo.
const CLIENT_PORT_MIN: u16 = 32_768;

/// One connection of a server.
#[derive(Debug, Default)]
pub(super) struct ServedConnection {
    /// What was read and is not answered yet.
    read: Vec<u8>,
    /// What is to be written.
    pub(super) to_write: Vec<u8>,
    /// Whether the name is told, for a server that tells it once.
    is_named: bool,
    /// The messages that were answered.
    pub(super) n_answered: u64,
    /// Whether bytes came that are not of the protocol.
    pub(super) is_strange: bool,
}

impl ServedConnection {
    /// A connection that was just opened.
    pub(super) fn open(dialect: Dialect, identity: &Identity) -> Self {
        let mut opened = Self::default();
        if dialect == Dialect::Mconnect {
            opened.to_write.extend(identity.name().as_bytes());
            opened.n_answered = 1;
        }
        opened
    }

    /// Takes bytes that were read.
    ///
    /// # Errors
    /// If they are not of the protocol.
    pub(super) fn absorb(&mut self, bytes: &[u8], dialect: Dialect, identity: &Identity) -> Result<(), NotAMessage> {
        match dialect {
            Dialect::Mconnect => {
                self.to_write.extend(identity.name().as_bytes());
                self.n_answered += 1;
            }
            Dialect::Ctraffic => self.echo(bytes, identity),
            Dialect::Fathom => {
                self.read.extend(bytes);
                self.answer_messages(identity)?;
            }
        }
        Ok(())
    }

    /// Echoes, with the name over the first 64 bytes of the connection.
    fn echo(&mut self, bytes: &[u8], identity: &Identity) {
        self.n_answered += 1;
        if self.is_named {
            self.to_write.extend(bytes);
            return;
        }
        self.read.extend(bytes);
        if self.read.len() >= NAME_MAX {
            let name = identity.name().as_bytes();
            self.read[..name.len()].copy_from_slice(name);
            self.to_write.append(&mut self.read);
            self.is_named = true;
        }
    }

    fn answer_messages(&mut self, identity: &Identity) -> Result<(), NotAMessage> {
        let mut begin = 0;
        while let Some(length) = message::length_of(&self.read[begin..])? {
            let Some(message) = self.read.get_mut(begin..begin + length) else { break };
            let n_answer = message::sign(message, identity)?;
            self.to_write.extend_from_slice(&message[..n_answer]);
            self.n_answered += 1;
            begin += length;
        }
        self.read.drain(..begin);
        Ok(())
    }
}

/// A datagram that was read.
pub(super) struct ReadDatagram<'a> {
    /// Becomes the answer.
    pub(super) bytes: &'a mut Vec<u8>,
    pub(super) from_port: u16,
    /// The port that it came to.
    pub(super) to_port: u16,
}

/// Turns a datagram into its answer, which is no longer than 64 bytes or the datagram. An answer of another server gets none: its sender
/// may be forged, and two servers would send to each other without end.
///
/// # Errors
/// If it is not of the protocol, or does not come from a client.
pub(super) fn answer_datagram(
    datagram: ReadDatagram<'_>,
    dialect: Dialect,
    identity: &Identity,
) -> Result<(), NotAMessage> {
    let ReadDatagram { bytes, from_port, to_port } = datagram;
    let name = identity.name().as_bytes();
    match dialect {
        Dialect::Mconnect => {
            if bytes.as_slice() != MCONNECT_HELLO || name == MCONNECT_HELLO {
                return Err(NotAMessage);
            }
            bytes.clear();
            bytes.extend(name);
        }
        Dialect::Ctraffic => {
            // The next question of a client of ctraffic is the answer that it got, so the bytes do not tell them apart.
            if from_port == to_port || from_port < CLIENT_PORT_MIN {
                return Err(NotAMessage);
            }
            let n = name.len().min(bytes.len());
            bytes[..n].copy_from_slice(&name[..n]);
        }
        Dialect::Fathom => {
            if message::length_of(bytes)? != Some(bytes.len()) {
                return Err(NotAMessage);
            }
            let n_answer = message::sign(bytes, identity)?;
            bytes.truncate(n_answer);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{HEADER, Question};

    fn identity() -> Identity {
        Identity::new("t1", 9)
    }

    #[test]
    fn messages_are_answered_one_by_one_however_they_arrive() {
        let mut two = vec![3; HEADER + 10];
        Question { number: 1, flow: 0 }.write(&mut two[..HEADER + 10]);
        let mut second = vec![0; HEADER];
        Question { number: 2, flow: 0 }.write(&mut second);
        two.extend(second);
        for step in [1, 50, 97, two.len()] {
            let mut served = ServedConnection::open(Dialect::Fathom, &identity());
            for part in two.chunks(step) {
                served.absorb(part, Dialect::Fathom, &identity()).unwrap();
            }
            assert_eq!((served.to_write.len(), served.n_answered), (two.len(), 2), "{step}");
            let answer = message::read(&served.to_write[HEADER + 10..]).unwrap();
            assert_eq!((answer.number, answer.identity), (2, Some(identity())));
        }
    }

    #[test]
    fn strange_bytes_end_a_connection() {
        let mut served = ServedConnection::open(Dialect::Fathom, &identity());
        assert_eq!(served.absorb(&[b'x'; 72], Dialect::Fathom, &identity()), Err(NotAMessage));
    }

    #[test]
    fn an_echo_has_the_name_once_and_a_greeting_has_it_for_each_read() {
        let mut echo = ServedConnection::open(Dialect::Ctraffic, &identity());
        echo.absorb(&[1; 60], Dialect::Ctraffic, &identity()).unwrap();
        assert!(echo.to_write.is_empty(), "64 bytes are not there yet");
        echo.absorb(&[1; 10], Dialect::Ctraffic, &identity()).unwrap();
        assert_eq!((&echo.to_write[..3], echo.to_write.len()), (&b"t1\x01"[..], 70));
        echo.absorb(&[2; 64], Dialect::Ctraffic, &identity()).unwrap();
        assert_eq!(echo.to_write[70..], [2; 64]);
        let mut greeting = ServedConnection::open(Dialect::Mconnect, &identity());
        greeting.absorb(b"x", Dialect::Mconnect, &identity()).unwrap();
        assert_eq!(greeting.to_write, b"t1t1");
    }

    /// Answers a datagram from a client's port.
    fn answer(bytes: &[u8], dialect: Dialect) -> Result<Vec<u8>, NotAMessage> {
        let mut bytes = bytes.to_vec();
        let datagram = ReadDatagram { bytes: &mut bytes, from_port: 40_000, to_port: 7701 };
        answer_datagram(datagram, dialect, &identity()).map(|()| bytes)
    }

    #[test]
    fn a_datagram_becomes_its_answer() {
        assert_eq!(answer(b"Hello", Dialect::Mconnect).unwrap(), b"t1");
        assert_eq!(answer(b"xxxx", Dialect::Ctraffic).unwrap(), b"t1xx");
        assert_eq!(answer(b"x", Dialect::Ctraffic).unwrap(), b"t");
        assert_eq!(answer(b"xxxx", Dialect::Fathom), Err(NotAMessage));
    }

    #[test]
    fn what_another_server_has_answered_gets_no_answer() {
        let mut question = [0; HEADER + 10];
        Question { number: 1, flow: 0 }.write(&mut question);
        let told = answer(&question, Dialect::Fathom).unwrap();
        assert_eq!(answer(&told, Dialect::Fathom), Err(NotAMessage));
        assert_eq!(answer(b"t2", Dialect::Mconnect), Err(NotAMessage));
        for from_port in [7, 5003, 7701] {
            let datagram = ReadDatagram { bytes: &mut vec![0; 96], from_port, to_port: 7701 };
            assert_eq!(answer_datagram(datagram, Dialect::Ctraffic, &identity()), Err(NotAMessage));
        }
        let mut served = ServedConnection::open(Dialect::Fathom, &identity());
        assert_eq!(served.absorb(&told, Dialect::Fathom, &identity()), Err(NotAMessage));
        assert!(served.to_write.is_empty());
    }
}
