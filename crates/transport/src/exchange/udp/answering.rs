//! The side that answers: a socket per worker, and each request is answered when it comes.

use std::net::SocketAddr;

use fathom_engine::{Crew, Error, Session, Test, Worker};
use fathom_model::{Endpoints, Note, Record, Side};
use fathom_sys::socket::{self, Socket, Wait};

use super::{Header, OF_RESPONDER, Terms};
use crate::{
    causes::Causes,
    link::{self, Doors, PATIENCE},
};

/// Places among the counters of a responder.
const TRANSACTIONS: usize = 0;
const RECEIVED: usize = 1;
const STRANGERS: usize = 2;
/// So many looks without success go by before a spinning worker looks at the phase.
const LOOKS: u32 = 64;

/// The responder, ready to start.
pub(super) struct Answering {
    terms: Terms,
    sockets: Vec<Socket>,
    addresses: Vec<SocketAddr>,
    notes: Vec<Note>,
}

impl Answering {
    pub(super) fn bind(terms: Terms, doors: Doors) -> Result<Self, Error> {
        let (mut sockets, mut addresses, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        for worker in 0..terms.n_workers {
            // A datagram comes to one place, so each worker has one, however many ports were asked for.
            let at = doors.of_worker(worker).next().expect("every worker has a place");
            let cannot = |cause| Error::system(format!("open a UDP socket at {at}"), "CAP_NET_BIND_SERVICE", cause);
            let open = if at.port() == 0 { socket::datagram } else { socket::datagram_sharing };
            let socket = open(at).map_err(cannot)?;
            notes = terms.options.apply(&socket)?;
            socket::set_timeout(&socket, PATIENCE).map_err(cannot)?;
            addresses.push(link::local_address(&socket)?);
            sockets.push(socket);
        }
        addresses.dedup();
        Ok(Self { terms, sockets, addresses, notes })
    }
}

impl Test for Answering {
    fn endpoints(&self) -> Endpoints {
        link::tell_all(&self.addresses)
    }

    fn run(self: Box<Self>, session: &Session) -> Result<Record, Error> {
        let Self { terms, sockets, notes, .. } = *self;
        let role = &terms.role;
        let crew = Crew { states: sockets, counters: OF_RESPONDER, cores: &role.cores, until: role.side.into() };
        let conducted = crew.conduct(session, &mut (), |worker, socket| Ok(answer(&worker, &socket, &terms)))?;
        let mut record = conducted.record(role.side);
        conducted.workers.into_iter().for_each(|causes| causes.add_to(&mut record));
        record.notes.extend(notes);
        Ok(record)
    }
}

fn answer(worker: &Worker<'_>, socket: &Socket, terms: &Terms) -> Causes {
    let mut causes = Causes::default();
    let mut answers = terms.sizes.messages(Side::Responder, terms.role.seed);
    // A byte more than a request may have, so that one that is too long is noticed.
    let mut room = vec![0; terms.sizes.longest_request() + 1];
    let wait = if terms.spins { Wait::Never } else { Wait::Block };
    let mut n_looks = 0_u32;
    loop {
        match socket::recv_from(socket, &mut room, wait) {
            Ok(Some((length, sender))) => {
                let header = Header::read(&room[..length]).filter(|header| header.token == terms.token);
                let class = header.and_then(|header| terms.sizes.class(header.class.0));
                let (Some(header), Some(class)) = (header, class) else {
                    worker.add(STRANGERS, 1);
                    continue;
                };
                if length != terms.sizes.request(class) {
                    worker.add(STRANGERS, 1);
                    continue;
                }
                worker.add(RECEIVED, 1);
                let answer = &mut answers[class.idx()];
                header.write(answer);
                match socket::send_to(socket, answer, (&sender, Wait::Block)) {
                    Ok(Some(_)) => worker.add(TRANSACTIONS, 1),
                    Ok(None) => causes.note("sendto: no room in the socket"),
                    Err(error) => causes.count(&error),
                }
            }
            Ok(None) => {
                n_looks += 1;
                if (wait == Wait::Block || n_looks.is_multiple_of(LOOKS)) && worker.is_over() {
                    return causes;
                }
            }
            Err(error) => causes.count(&error),
        }
        // A flood does not keep the worker beyond the end.
        if wait == Wait::Block && worker.is_over() {
            return causes;
        }
    }
}
