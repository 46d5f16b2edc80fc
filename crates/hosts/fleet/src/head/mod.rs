//! An agent that is the head of a group: it starts the agents of its members as a controller does, and passes messages on.
//!
//! The members are the hosts of a [`Fleet`] of its own, in a thread that lives as long as the agent. Outcomes that the controller wants
//! merged stay here, so that a group is one stream with one record per side. It makes no decision: which roles run, when they start and
//! what the loss of a member means is up to the controller.

mod member_stream;

use std::{
    collections::BTreeMap,
    io,
    sync::mpsc::{self, Receiver, Sender, TryRecvError},
    thread::JoinHandle,
};

use fathom_engine::{Stop, StopFlag};
use fathom_model::{Side, units::Nanos};
use fathom_sys::clock;

use crate::{
    AgentFailure, ErrorClass, Fleet, HostLink,
    agent::kept_outcomes::KeptOutcomes,
    connection::SendQueue,
    controller::{FleetEvent, HostIndex, Waker},
    protocol::{FromAgent, Hello, Member, MemberIndex, RoleId, ToAgent, clock_offset::ClockOffset},
    threads,
};

/// What the controller wants from the members.
pub(crate) enum HeadOrder {
    Member(MemberIndex, ToAgent),
    Clocks,
}

/// The members of a head; dropping it says goodbye to them.
pub(crate) struct Head {
    orders: Option<Sender<HeadOrder>>,
    waker: Waker,
    /// Set when the controller is gone, so that nobody waits for a member that does not answer.
    stop: StopFlag,
    thread: Option<JoinHandle<()>>,
}

/// How long the thread waits for an event before it looks at its orders again: it is woken for each order.
const TURN: Nanos = Nanos::from_millis(100);

impl Head {
    /// Starts the agents of the members; what becomes of each is told to the controller.
    pub(crate) fn start(
        members: Vec<Member>,
        tool: &str,
        kept: KeptOutcomes,
        outbox: SendQueue<FromAgent>,
    ) -> io::Result<Self> {
        let (orders, inbox) = mpsc::channel();
        let fleet = Fleet::new(tool);
        let waker = fleet.waker();
        let stop = StopFlag::default();
        let stopping = stop.clone();
        let thread = threads::start("head", move || {
            let mut group = Group {
                fleet,
                member_of: BTreeMap::new(),
                host_of: BTreeMap::new(),
                kept_roles: BTreeMap::new(),
                kept,
                outbox,
            };
            group.connect(members, &stopping);
            group.pass_messages(&inbox);
        })?;
        Ok(Self { orders: Some(orders), waker, stop, thread: Some(thread) })
    }

    /// Passes an order on to the thread.
    pub(crate) fn tell(&self, order: HeadOrder) {
        // A thread that has panicked is gone, and its members with it, which the controller notices.
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
        self.waker.wake();
    }
}

impl Drop for Head {
    fn drop(&mut self) {
        drop(self.orders.take());
        self.stop.abort();
        self.waker.wake();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Group {
    fleet: Fleet,
    member_of: BTreeMap<HostIndex, MemberIndex>,
    host_of: BTreeMap<MemberIndex, HostIndex>,
    /// The roles whose outcomes stay here.
    kept_roles: BTreeMap<RoleId, Side>,
    kept: KeptOutcomes,
    outbox: SendQueue<FromAgent>,
}

impl Group {
    fn connect(&mut self, members: Vec<Member>, stop: &StopFlag) {
        let mut links = Vec::new();
        let mut places = Vec::new();
        let started = member_stream::start_all(&members, stop);
        for (member, (Member { name, run, .. }, stream)) in members.into_iter().zip(started).enumerate() {
            let place = MemberIndex::try_from(member).expect("a group is smaller than a message");
            match stream {
                Ok(stream) => {
                    places.push((place, name.clone()));
                    links.push(HostLink { name, stream, run });
                }
                Err(error) => self.send(&FromAgent::Lost { member: place, failure: error.to_failure() }),
            }
        }
        let outcomes = self.fleet.connect_all_unless(links, &|| stop.state() != Stop::Continue);
        for ((place, name), outcome) in places.into_iter().zip(outcomes) {
            match outcome.and_then(|()| self.fleet.greeting(&name)) {
                Ok((host, tool, facts)) => {
                    self.member_of.insert(host, place);
                    self.host_of.insert(place, host);
                    self.pass_up(place, FromAgent::Hello(Hello { tool, facts, run: None }));
                }
                Err(error) => self.send(&FromAgent::Lost { member: place, failure: error.to_failure() }),
            }
        }
    }

    /// Passes messages in both directions until the agent ends.
    fn pass_messages(&mut self, orders: &Receiver<HeadOrder>) {
        loop {
            loop {
                match orders.try_recv() {
                    Ok(HeadOrder::Member(member, message)) => self.pass_down(member, message),
                    Ok(HeadOrder::Clocks) => self.send_clocks(),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            match self.fleet.next_event(clock::now() + TURN) {
                FleetEvent::Message(host, _, message) => self.receive(host, message),
                FleetEvent::Disconnected(host) => self.report_loss(host),
                FleetEvent::Idle => {}
            }
        }
    }

    fn pass_down(&mut self, member: MemberIndex, message: ToAgent) {
        let Some(&host) = self.host_of.get(&member) else { return };
        let message = match message {
            ToAgent::Prepare { role_id, role, watch, keep } => {
                if keep {
                    self.kept_roles.insert(role_id, role.side);
                }
                ToAgent::Prepare { role_id, role, watch, keep: false }
            }
            // The controller gives the member up.
            ToAgent::Bye => return self.fleet.give_up(host),
            other => other,
        };
        // A stream that breaks is reported as a loss.
        let _ = self.fleet.send(host, &message);
    }

    fn receive(&mut self, host: HostIndex, message: FromAgent) {
        let Some(&member) = self.member_of.get(&host) else { return };
        match message {
            FromAgent::Outcome { role_id, outcome } if self.kept_roles.remove(&role_id).is_some() => {
                let row = self.kept.keep(role_id, *outcome, self.fleet.clock_of(host));
                self.pass_up(member, FromAgent::Outcome { role_id, outcome: Box::new(row) });
            }
            FromAgent::Interval { role_id, progress } if self.kept_roles.contains_key(&role_id) => {
                let side = self.kept_roles[&role_id];
                if let Some(all) = self.kept.add_progress(clock::now(), (role_id, side), progress) {
                    self.send(&all);
                }
            }
            FromAgent::Hello(_) | FromAgent::Heartbeat | FromAgent::Bye | FromAgent::Clock { .. } => {}
            other => self.pass_up(member, other),
        }
    }

    fn report_loss(&mut self, host: HostIndex) {
        let Some(member) = self.member_of.remove(&host) else { return };
        self.host_of.remove(&member);
        let failure = self.fleet.loss_of(host).to_failure();
        self.send(&FromAgent::Lost { member, failure });
    }

    fn send_clocks(&mut self) {
        let hosts: Vec<HostIndex> = self.host_of.values().copied().collect();
        self.fleet.compare_clocks_of(&hosts);
        let n_members = self.host_of.keys().next_back().map_or(0, |last| last + 1);
        let offset = |member| self.host_of.get(&member).map(|host| self.fleet.clock_of(*host));
        let offsets: Vec<Option<ClockOffset>> = (0..n_members).map(offset).collect();
        self.send(&FromAgent::Clocks(offsets));
    }

    fn pass_up(&self, member: MemberIndex, message: FromAgent) {
        self.send(&FromAgent::Member { member, message: Box::new(message) });
    }

    fn send(&self, message: &FromAgent) {
        if let Err(error) = self.outbox.send(message) {
            let member = match message {
                FromAgent::Member { member, .. } => *member,
                _ => return,
            };
            let text = format!("its message cannot be passed on: {error}");
            // A failure is only a few lines, so it fits.
            let _ = self.outbox.send(&FromAgent::Lost { member, failure: AgentFailure::new(ErrorClass::Failed, text) });
        }
    }
}
