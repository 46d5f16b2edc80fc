//! Rules of the kernel's packet filter: made, counted and read back, without the program `nft`.
//!
//! Through netlink (`linux/netfilter/nf_tables.h`), in the network namespace of the thread that opened it; needs `CAP_NET_ADMIN`
//! there, also for reading. It makes the few rules that a device under test needs, and reads the counters of anybody's.

use std::{fmt, io, net::IpAddr, num::NonZeroU32};

use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::{
    Error, Result,
    netlink::message::{
        ACKNOWLEDGE, APPEND, CREATE, DUMP, MessageBody, NetlinkRequest, NetlinkSocket, attribute, attributes,
    },
};

/// The subsystem of `nf_tables`, in the high byte of a message's type and in the header of a batch.
const SUBSYSTEM: u8 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u8 = 0;
const DELETE_TABLE: u8 = 2;
const NEW_CHAIN: u8 = 3;
const GET_CHAIN: u8 = 4;
const NEW_RULE: u8 = 6;
const GET_RULE: u8 = 7;

const UNSPECIFIED: u8 = 0;
/// The families by their numbers (`linux/netfilter.h`), as `nft` calls them.
const FAMILIES: [(u8, &str); 6] = [(1, "inet"), (2, "ip"), (3, "arp"), (5, "netdev"), (7, "bridge"), (10, "ip6")];

/// Attributes of tables, chains and rules: the table is the first of each, a chain's name and a rule's chain differ.
const TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const RULE_EXPRESSIONS: u16 = 4;
const ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const COUNTER_PACKETS: u16 = 2;
const IMMEDIATE_REGISTER: u16 = 1;
const IMMEDIATE_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;

const REGISTER_VERDICT: u32 = 0;
const REGISTER: u32 = 1;
const DROP: i32 = 0;
const ACCEPT: i32 = 1;
const JUMP: i32 = -3;

/// As many rules as fit a message of the default send buffer (208 KiB), at 200 bytes each, with room to spare.
const RULES_AT_ONCE: usize = 500;

/// Where in the path of a packet a chain begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Before the route is looked up.
    Prerouting = 0,
    /// Packets for this host.
    Input = 1,
    /// Packets for others.
    Forward = 2,
}

/// Which packets come to the rules of a table that is made here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableFamily {
    /// `NFPROTO_IPV4`.
    Ipv4 = 2,
    /// `NFPROTO_IPV6`.
    Ipv6 = 10,
}

/// A table by its family and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table<'a> {
    /// Whose packets come to it.
    pub family: TableFamily,
    /// Unique in its family.
    pub name: &'a str,
}

impl Table<'_> {
    /// How a message about it begins.
    fn body(self) -> MessageBody {
        body(self.family as u8).text(TABLE, self.name)
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", word_of(self.family as u8), self.name)
    }
}

/// Which packets a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketMatch {
    /// All of them.
    Any,
    /// Those from this address, of the version of the table.
    Source(IpAddr),
    /// One of every so many that come to the rule, the first of each group.
    OneOf(NonZeroU32),
}

/// What a rule does with its packets, after counting them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleVerdict<'a> {
    /// They go on.
    Accept,
    /// They end here.
    Drop,
    /// The rules of another chain come first.
    Jump(&'a str),
}

/// One rule; it counts what it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule<'a> {
    /// Its packets.
    pub matching: PacketMatch,
    /// What becomes of them.
    pub verdict: RuleVerdict<'a>,
}

/// Rules that are gone through in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain<'a> {
    /// Unique in its table.
    pub name: &'a str,
    /// Where packets enter it; absent for one that others jump to.
    pub hook: Option<Hook>,
    /// What it does.
    pub rules: Vec<Rule<'a>>,
}

/// What became of packets at a rule, as it is read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleFate {
    /// They ended there.
    Dropped,
    /// They went on, to another rule or out of the chain.
    Passed,
}

/// A rule that counts, whoever made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountedRule {
    /// The chain that it stands in.
    pub chain: ChainName,
    /// Its number in the table, as `nft --handle` shows it.
    pub handle: u64,
    /// What became of its packets.
    pub fate: RuleFate,
    /// How many it matched.
    pub n_packets: u64,
}

/// A chain by its family, its table and its own name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainName {
    family: u8,
    table: String,
    name: String,
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", word_of(self.family), self.table, self.name)
    }
}

fn word_of(family: u8) -> &'static str {
    FAMILIES.iter().find(|(number, _)| *number == family).map_or("?", |(_, word)| word)
}

/// A socket to `nf_tables`.
#[derive(Debug)]
pub struct Nftables(NetlinkSocket);

impl Nftables {
    /// Opens one in the network namespace of the calling thread.
    ///
    /// # Errors
    /// Whatever `socket` and `bind` answer.
    pub fn open() -> Result<Self> {
        let open = NetlinkSocket::open(NETLINK_NETFILTER);
        open.map(Self).map_err(|error| Error::new("socket(NETLINK_NETFILTER)", error))
    }

    /// Makes a table with these chains; a rule may jump to any of them.
    ///
    /// # Errors
    /// `EOPNOTSUPP` or `ENOENT` when the kernel lacks a part of it.
    pub fn install(&mut self, table: Table<'_>, chains: &[Chain<'_>]) -> Result<()> {
        let failed = |what: &str| format!("nf_tables(new {what} in table {table})");
        let begin = request(NEW_TABLE, CREATE, table.body());
        let makers = std::iter::once(begin).chain(chains.iter().map(|chain| new_chain(table, chain)));
        self.commit(makers.collect()).map_err(|error| Error::new(failed("chains"), error))?;
        for chain in chains {
            for rules in chain.rules.chunks(RULES_AT_ONCE) {
                let rules = rules.iter().map(|rule| new_rule((table, chain.name), rule)).collect();
                self.commit(rules).map_err(|error| Error::new(failed("rules"), error))?;
            }
        }
        Ok(())
    }

    /// Removes a table with everything in it.
    ///
    /// # Errors
    /// `ENOENT` when there is none of that name.
    pub fn remove(&mut self, table: Table<'_>) -> Result<()> {
        let gone = self.commit(vec![request(DELETE_TABLE, 0, table.body())]);
        gone.map_err(|error| Error::new(format!("nf_tables(delete table {table})"), error))
    }

    /// The chains that packets enter from outside, of all families.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`, `EINVAL` when the kernel has no `nf_tables`.
    pub fn base_chains(&mut self) -> Result<Vec<ChainName>> {
        let answers = self.0.ask(request(GET_CHAIN, DUMP, body(UNSPECIFIED)));
        let answers = answers.map_err(|error| Error::new("nf_tables(get chains)", error))?;
        Ok(answers.iter().filter_map(|answer| base_chain_of(answer)).collect())
    }

    /// The rules of a chain that count, in their order.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`.
    pub fn counted(&mut self, chain: &ChainName) -> Result<Vec<CountedRule>> {
        let of_chain = body(chain.family).text(TABLE, &chain.table).text(RULE_CHAIN, &chain.name);
        let answers = self.0.ask(request(GET_RULE, DUMP, of_chain));
        let answers = answers.map_err(|error| Error::new(format!("nf_tables(get rules of {chain})"), error))?;
        Ok(answers.iter().filter_map(|answer| counted_of(answer.get(4..)?, chain)).collect())
    }

    /// A chain of a table that was made here.
    #[must_use]
    pub fn chain(table: Table<'_>, name: &str) -> ChainName {
        ChainName { family: table.family as u8, table: table.name.to_owned(), name: name.to_owned() }
    }

    /// Carries these out together or not at all.
    fn commit(&mut self, mut requests: Vec<NetlinkRequest>) -> io::Result<()> {
        if let Some(NetlinkRequest(_, flags, _)) = requests.last_mut() {
            *flags |= ACKNOWLEDGE;
        }
        let mark = |kind| NetlinkRequest(kind, 0, MessageBody::of([UNSPECIFIED, 0, 0, SUBSYSTEM]));
        let batch = std::iter::once(mark(BATCH_BEGIN)).chain(requests).chain([mark(BATCH_END)]);
        self.0.ask_all(batch).map(drop)
    }
}

fn request(message: u8, flags: u16, body: MessageBody) -> NetlinkRequest {
    NetlinkRequest(u16::from_be_bytes([SUBSYSTEM, message]), flags, body)
}

/// `struct nfgenmsg`: the family, the version, and a number that only a batch uses.
fn body(family: u8) -> MessageBody {
    MessageBody::of([family, 0, 0, 0])
}

fn new_chain(table: Table<'_>, chain: &Chain<'_>) -> NetlinkRequest {
    let body = table.body().text(CHAIN_NAME, chain.name);
    let body = match chain.hook {
        // The priority of filters is 0.
        Some(hook) => {
            let hook = MessageBody::default().number(HOOK_NUMBER, hook as u32).number(HOOK_PRIORITY, 0);
            body.nest(CHAIN_HOOK, &hook).text(CHAIN_TYPE, "filter")
        }
        None => body,
    };
    request(NEW_CHAIN, CREATE, body)
}

fn new_rule((table, chain): (Table<'_>, &str), rule: &Rule<'_>) -> NetlinkRequest {
    let matching = match rule.matching {
        PacketMatch::Any => MessageBody::default(),
        PacketMatch::Source(address) => {
            let (at, octets) = match address {
                IpAddr::V4(address) => (12, address.octets().to_vec()),
                IpAddr::V6(address) => (8, address.octets().to_vec()),
            };
            // That many bytes from there in the network header (base 1).
            let length = u32::try_from(octets.len()).expect("an address is short");
            let load = MessageBody::default().number(1, REGISTER).number(2, 1).number(3, at).number(4, length);
            expression("payload", &load).join(&equals(&octets))
        }
        PacketMatch::OneOf(n) => {
            // Counts up (type 0) and begins again after n.
            let load = MessageBody::default().number(1, REGISTER).number(2, n.get()).number(3, 0);
            expression("numgen", &load).join(&equals(&0_u32.to_ne_bytes()))
        }
    };
    let count = expression("counter", &MessageBody::default());
    let expressions = matching.join(&count).join(&decide(rule.verdict));
    let body = table.body().text(RULE_CHAIN, chain).nest(RULE_EXPRESSIONS, &expressions);
    request(NEW_RULE, CREATE | APPEND, body)
}

fn expression(name: &str, data: &MessageBody) -> MessageBody {
    let expression = MessageBody::default().text(EXPRESSION_NAME, name).nest(EXPRESSION_DATA, data);
    MessageBody::default().nest(ELEMENT, &expression)
}

/// Goes on with the rule only where the register holds this.
fn equals(value: &[u8]) -> MessageBody {
    // The operator 0 is equality.
    expression(
        "cmp",
        &MessageBody::default()
            .number(1, REGISTER)
            .number(2, 0)
            .nest(3, &MessageBody::default().put(DATA_VALUE, value)),
    )
}

fn decide(verdict: RuleVerdict<'_>) -> MessageBody {
    let (code, chain) = match verdict {
        RuleVerdict::Accept => (ACCEPT, None),
        RuleVerdict::Drop => (DROP, None),
        RuleVerdict::Jump(chain) => (JUMP, Some(chain)),
    };
    let verdict = MessageBody::default().number(VERDICT_CODE, code.cast_unsigned());
    let verdict = chain.into_iter().fold(verdict, |verdict, chain| verdict.text(VERDICT_CHAIN, chain));
    let data = MessageBody::default().nest(DATA_VERDICT, &verdict);
    expression(
        "immediate",
        &MessageBody::default().number(IMMEDIATE_REGISTER, REGISTER_VERDICT).nest(IMMEDIATE_DATA, &data),
    )
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.strip_suffix(b"\0").unwrap_or(bytes)).into_owned()
}

fn base_chain_of(answer: &[u8]) -> Option<ChainName> {
    let (family, said) = (*answer.first()?, answer.get(4..)?);
    attribute(said, CHAIN_HOOK)?;
    let text = |kind| attribute(said, kind).map(text_of);
    Some(ChainName { family, table: text(TABLE)?, name: text(CHAIN_NAME)? })
}

fn counted_of(said: &[u8], chain: &ChainName) -> Option<CountedRule> {
    let handle = u64::from_be_bytes(attribute(said, RULE_HANDLE)?.try_into().ok()?);
    let (mut n_packets, mut fate) = (None, RuleFate::Passed);
    for (_, expression) in attributes(attribute(said, RULE_EXPRESSIONS)?) {
        let Some(data) = attribute(expression, EXPRESSION_DATA) else { continue };
        match attribute(expression, EXPRESSION_NAME).map(text_of).as_deref() {
            Some("counter") => {
                n_packets = attribute(data, COUNTER_PACKETS).and_then(|n| n.try_into().ok()).map(u64::from_be_bytes);
            }
            Some("immediate") if drops(data) => fate = RuleFate::Dropped,
            Some("reject") => fate = RuleFate::Dropped,
            _ => {}
        }
    }
    Some(CountedRule { chain: chain.clone(), handle, fate, n_packets: n_packets? })
}

fn drops(immediate: &[u8]) -> bool {
    let verdict = attribute(immediate, IMMEDIATE_DATA).and_then(|data| attribute(data, DATA_VERDICT));
    verdict.and_then(|verdict| attribute(verdict, VERDICT_CODE)) == Some(DROP.to_be_bytes().as_slice())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::namespace::NetNs;
    use fathom_testkit::or_skip;
    use std::net::UdpSocket;

    const OF_IPV4: Table<'_> = Table { family: TableFamily::Ipv4, name: "planted" };
    const OF_IPV6: Table<'_> = Table { family: TableFamily::Ipv6, name: "planted" };

    #[test]
    fn every_packet_is_counted_at_the_rule_that_it_met() {
        let Some(namespace) = or_skip(NetNs::new(), Error::is_permission) else { return };
        namespace
            .enter_with(|| {
                look(OF_IPV4, ["127.0.0.1", "192.0.2.1"].map(|text| text.parse().unwrap()));
                look(OF_IPV6, ["::1", "2001:db8::1"].map(|text| text.parse().unwrap()));
            })
            .unwrap();
    }

    fn look(table: Table<'_>, [here, nobody]: [IpAddr; 2]) {
        let rule = |matching, verdict| Rule { matching, verdict };
        let unmatched = PacketMatch::Source(nobody);
        let rules = vec![
            rule(PacketMatch::Any, RuleVerdict::Jump("others")),
            rule(PacketMatch::OneOf(NonZeroU32::new(4).unwrap()), RuleVerdict::Drop),
            rule(PacketMatch::Source(here), RuleVerdict::Accept),
        ];
        let chains = [
            Chain { name: "entry", hook: Some(Hook::Input), rules },
            // More than fit one batch.
            Chain { name: "others", hook: None, rules: vec![rule(unmatched, RuleVerdict::Drop); 1_200] },
        ];
        let mut nft = Nftables::open().unwrap();
        assert_eq!(nft.base_chains().unwrap(), []);
        nft.install(table, &chains).unwrap();
        let to = UdpSocket::bind((here, 0)).unwrap();
        let from = UdpSocket::bind((here, 0)).unwrap();
        for _ in 0..40 {
            // A datagram that the filter drops is refused at once on the loopback, or not, as the kernel likes.
            let _ = from.send_to(b"counted", to.local_addr().unwrap());
        }
        let found = nft.base_chains().unwrap();
        assert_eq!(found, [Nftables::chain(table, "entry")]);
        assert_eq!(found[0].to_string(), format!("{table} entry"));
        let counted = nft.counted(&found[0]).unwrap();
        let seen: Vec<(RuleFate, u64)> = counted.iter().map(|rule| (rule.fate, rule.n_packets)).collect();
        assert_eq!(seen, [(RuleFate::Passed, 40), (RuleFate::Dropped, 10), (RuleFate::Passed, 30)]);
        let others = nft.counted(&Nftables::chain(table, "others")).unwrap();
        assert_eq!((others.len(), others.iter().map(|rule| rule.n_packets).sum::<u64>()), (1_200, 0));
        assert!(
            nft.install(
                table,
                &[Chain { name: "x", hook: None, rules: vec![rule(unmatched, RuleVerdict::Jump("nowhere"))] }]
            )
            .is_err()
        );
        nft.remove(table).unwrap();
        assert_eq!(nft.remove(table).unwrap_err().errno(), Some(libc::ENOENT));
    }
}
