//! Rules of the kernel's packet filter: creates, counts and reads them, without the program `nft`.
//!
//! Uses netlink (`linux/netfilter/nf_tables.h`), in the network namespace of the thread that opened the socket; needs `CAP_NET_ADMIN`
//! there, also for reading. It creates the few rules that devices of a lab and the reference balancer need, and reads the counters of all
//! rules.

use std::{
    fmt, io,
    net::IpAddr,
    num::{NonZeroU16, NonZeroU32},
};

use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::{
    Error, Result,
    netlink::message::{
        ACKNOWLEDGE, APPEND, CREATE, DUMP, EXCLUSIVE, MessageBody, NetlinkRequest, NetlinkSocket, attribute, attributes,
    },
};

/// The `nf_tables` subsystem, in the high byte of a message's type and in the header of a batch.
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
/// The families by number (`linux/netfilter.h`), with their names in `nft`.
const FAMILIES: [(u8, &str); 6] = [(1, "inet"), (2, "ip"), (3, "arp"), (5, "netdev"), (7, "bridge"), (10, "ip6")];

/// Attributes of tables, chains and rules. All use number 1 for the table; the numbers of a chain's name and of a rule's chain differ.
const TABLE: u16 = 1;
const TABLE_FLAGS: u16 = 2;
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

/// `NFT_TABLE_F_OWNER` (Linux 5.12): nobody else may change the table, and it is gone with the socket that made it.
const OWNED: u32 = 2;
/// The general registers of 32 bits (`NFT_REG32_00`); the four of them at the start are also [`REGISTER`].
const REGISTER_WORD: u32 = 8;
/// The bases of `payload`: the IP header, and the header behind it.
const IP_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
/// The key of `meta` for the mark of a packet (`NFT_META_MARK`).
const META_MARK: u32 = 3;
/// `NFT_NAT_DNAT`.
const TO_DESTINATION: u32 = 1;
/// The revision of the target `NFQUEUE` whose value is [`xt_queue`] (`struct xt_NFQ_info_v3`).
const QUEUE_TARGET_REVISION: u32 = 3;
/// Packets go on if no program listens on their queue (`NFQ_FLAG_BYPASS`, the same in both ways to say it).
const QUEUE_BYPASS: u16 = 1;
/// The seed of the hash that divides flows among targets: any number, such that all tables divide them alike.
const HASH_SEED: u32 = 1;

/// The number of rules that fit into a message of the default send buffer (208 KiB), at 200 bytes each, with room to spare.
const RULES_AT_ONCE: usize = 500;

/// The point in a packet's path at which a chain starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Before the route lookup.
    Prerouting,
    /// Before the route lookup and before connection tracking, which puts fragments together (priority -400).
    BeforeTracking,
    /// Before the route lookup, where the destination of the first packet of a connection may be translated.
    Translation,
    /// For packets to this host.
    Input,
    /// For forwarded packets.
    Forward,
    /// For packets that leave, behind all translations.
    AfterTranslation,
}

impl Hook {
    /// The number of the hook (`enum nf_inet_hooks`), the priority there, and the type of its chains.
    const fn place(self) -> (u32, i32, &'static str) {
        match self {
            Self::Prerouting => (0, 0, "filter"),
            Self::BeforeTracking => (0, -450, "filter"),
            Self::Translation => (0, -100, "nat"),
            Self::Input => (1, 0, "filter"),
            Self::Forward => (2, 0, "filter"),
            Self::AfterTranslation => (4, 300, "filter"),
        }
    }
}

/// The packets that a new table sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableFamily {
    /// `NFPROTO_IPV4`.
    Ipv4 = 2,
    /// `NFPROTO_IPV6`.
    Ipv6 = 10,
}

/// A table, identified by family and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table<'a> {
    /// The family of its packets.
    pub family: TableFamily,
    /// The name, unique in its family.
    pub name: &'a str,
}

impl Table<'_> {
    /// The start of a message about this table.
    fn body(self) -> MessageBody {
        body(self.family as u8).text(TABLE, self.name)
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", word_of(self.family as u8), self.name)
    }
}

/// The packets that a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketMatch {
    /// All packets.
    Any,
    /// Packets from this address, in the IP version of the table.
    Source(IpAddr),
    /// Packets to this address, in the IP version of the table.
    Destination(IpAddr),
    /// Packets to this address with this mark.
    Marked(IpAddr, u32),
    /// One share of the flows to this address, by a hash (jhash) of their source address and source port.
    Share(IpAddr, FlowShare),
    /// One in every n packets that reach the rule, the first of each group.
    OneOf(NonZeroU32),
}

/// One of n equal shares of all flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowShare {
    /// Which one, from 0.
    pub place: u32,
    /// The number of shares.
    pub n_shares: NonZeroU32,
}

/// Consecutive queues of `nfnetlink_queue` among which a rule divides packets by a hash of their addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueRange {
    /// The first one.
    pub first: u16,
    /// The number of queues.
    pub n_queues: NonZeroU16,
}

/// How a rule sends packets to a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueWay {
    /// The expression `queue` of `nf_tables` (`CONFIG_NFT_QUEUE`).
    Expression,
    /// The target `NFQUEUE` of xtables (`CONFIG_NETFILTER_XT_TARGET_NFQUEUE` and `CONFIG_NFT_COMPAT`).
    Target,
}

impl QueueWay {
    /// Both, the better one first.
    pub const ALL: [Self; 2] = [Self::Expression, Self::Target];
}

impl fmt::Display for QueueWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expression => "the queue expression of nf_tables",
            Self::Target => "the xtables target NFQUEUE",
        })
    }
}

/// The action of a rule on its packets, after counting them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleVerdict<'a> {
    /// They continue.
    Accept,
    /// They are dropped.
    Drop,
    /// They go through the rules of another chain first.
    Jump(&'a str),
    /// Their connection goes to this address instead; only in a chain of [`Hook::Translation`].
    Translate(IpAddr),
    /// They continue with this source address, and with checksums that fit.
    RewriteSource(IpAddr),
    /// They wait in a queue for the verdict of a program; connection tracking leaves them alone. Without a program, they continue.
    QueueUntracked(QueueRange, QueueWay),
    /// They wait in a queue for the verdict of a program. Without a program, they continue.
    Queue(QueueRange, QueueWay),
}

/// A rule; it counts the packets that it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule<'a> {
    /// The packets that it matches.
    pub matching: PacketMatch,
    /// The action on them.
    pub verdict: RuleVerdict<'a>,
}

/// An ordered list of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain<'a> {
    /// The name, unique in its table.
    pub name: &'a str,
    /// The hook at which packets enter it; absent for a chain that others jump to.
    pub hook: Option<Hook>,
    /// The rules, in order.
    pub rules: Vec<Rule<'a>>,
}

/// The effect of a rule on packets, as read back from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleFate {
    /// They were dropped.
    Dropped,
    /// They continued, to another rule or out of the chain.
    Passed,
}

/// A rule with a counter, no matter who created it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountedRule {
    /// The chain that contains it.
    pub chain: ChainName,
    /// Its handle, as shown by `nft --handle`.
    pub handle: u64,
    /// The effect on its packets.
    pub fate: RuleFate,
    /// The number of packets that it matched.
    pub n_packets: u64,
}

/// A chain, identified by its family, its table and its own name.
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

/// An `nf_tables` socket.
#[derive(Debug)]
pub struct Nftables(NetlinkSocket);

impl Nftables {
    /// The most rules of a table that is replaced: they go in one message.
    pub const REPLACED_RULES_MAX: usize = RULES_AT_ONCE;

    /// Opens a socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// Any error of `socket` and `bind`.
    pub fn open() -> Result<Self> {
        let open = NetlinkSocket::open(NETLINK_NETFILTER);
        open.map(Self).map_err(|error| Error::new("socket(NETLINK_NETFILTER)", error))
    }

    /// Creates a table with these chains; a rule may jump to any of them.
    ///
    /// # Errors
    /// `EOPNOTSUPP` or `ENOENT` if the kernel lacks a feature that the rules need.
    pub fn install(&mut self, table: Table<'_>, chains: &[Chain<'_>]) -> Result<()> {
        self.make(table, request(NEW_TABLE, CREATE, table.body()), chains)
    }

    /// Creates a table like [`Self::install`] that goes with this socket, however the program ends, and that nobody else may change.
    ///
    /// # Errors
    /// As [`Self::install`], and `EEXIST` or `EPERM` if there is a table with this name.
    pub fn install_owned(&mut self, table: Table<'_>, chains: &[Chain<'_>]) -> Result<()> {
        let begin = || request(NEW_TABLE, CREATE | EXCLUSIVE, table.body().number(TABLE_FLAGS, OWNED));
        self.make(table, begin(), chains).inspect_err(|error| {
            // Half a table is of no use to anybody; that of somebody else stays.
            if !matches!(error.errno(), Some(libc::EEXIST | libc::EPERM)) {
                let _ = self.remove(table);
            }
        })
    }

    /// Replaces the content of a table that this socket owns, in one transaction: no packet meets half of it.
    ///
    /// # Errors
    /// `ENOENT` if the socket owns no such table. Then nothing was changed.
    ///
    /// # Panics
    /// If there are more rules than [`Self::REPLACED_RULES_MAX`].
    pub fn replace_owned(&mut self, table: Table<'_>, chains: &[Chain<'_>]) -> Result<()> {
        let rules = || chains.iter().flat_map(|chain| chain.rules.iter().map(|rule| new_rule(table, chain.name, rule)));
        assert!(rules().count() <= RULES_AT_ONCE, "the rules of a table that is replaced fit into one message");
        let begin = [
            request(DELETE_TABLE, 0, table.body()),
            request(NEW_TABLE, CREATE | EXCLUSIVE, table.body().number(TABLE_FLAGS, OWNED)),
        ];
        let all = begin.into_iter().chain(chains.iter().map(|chain| new_chain(table, chain))).chain(rules());
        let failed = || format!("nf_tables(replace table {table})");
        self.commit(all.collect()).map_err(|error| Error::new(failed(), error))
    }

    fn make(&mut self, table: Table<'_>, begin: NetlinkRequest, chains: &[Chain<'_>]) -> Result<()> {
        let failed = |what: &str| format!("nf_tables(new {what} in table {table})");
        let makers = std::iter::once(begin).chain(chains.iter().map(|chain| new_chain(table, chain)));
        self.commit(makers.collect()).map_err(|error| Error::new(failed("chains"), error))?;
        for chain in chains {
            for rules in chain.rules.chunks(RULES_AT_ONCE) {
                let rules = rules.iter().map(|rule| new_rule(table, chain.name, rule)).collect();
                self.commit(rules).map_err(|error| Error::new(failed("rules"), error))?;
            }
        }
        Ok(())
    }

    /// Removes a table with all its content.
    ///
    /// # Errors
    /// `ENOENT` if there is no table with this name.
    pub fn remove(&mut self, table: Table<'_>) -> Result<()> {
        let gone = self.commit(vec![request(DELETE_TABLE, 0, table.body())]);
        gone.map_err(|error| Error::new(format!("nf_tables(delete table {table})"), error))
    }

    /// Returns the base chains of all families, at which packets enter the filter.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`, `EINVAL` if the kernel has no `nf_tables`.
    pub fn base_chains(&mut self) -> Result<Vec<ChainName>> {
        let answers = self.0.ask(request(GET_CHAIN, DUMP, body(UNSPECIFIED)));
        let answers = answers.map_err(|error| Error::new("nf_tables(get chains)", error))?;
        Ok(answers.iter().filter_map(|answer| base_chain_of(answer)).collect())
    }

    /// Returns the rules of a chain that have a counter, in order.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`.
    pub fn counted(&mut self, chain: &ChainName) -> Result<Vec<CountedRule>> {
        let of_chain = body(chain.family).text(TABLE, &chain.table).text(RULE_CHAIN, &chain.name);
        let answers = self.0.ask(request(GET_RULE, DUMP, of_chain));
        let answers = answers.map_err(|error| Error::new(format!("nf_tables(get rules of {chain})"), error))?;
        Ok(answers.iter().filter_map(|answer| counted_of(answer.get(4..)?, chain)).collect())
    }

    /// Returns the name of a chain of a table created here.
    #[must_use]
    pub fn chain(table: Table<'_>, name: &str) -> ChainName {
        ChainName { family: table.family as u8, table: table.name.to_owned(), name: name.to_owned() }
    }

    /// Executes all requests as one transaction.
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
        Some(hook) => {
            let (number, priority, kind) = hook.place();
            let hook = MessageBody::default().number(HOOK_NUMBER, number);
            body.nest(CHAIN_HOOK, &hook.number(HOOK_PRIORITY, priority.cast_unsigned())).text(CHAIN_TYPE, kind)
        }
        None => body,
    };
    request(NEW_CHAIN, CREATE, body)
}

fn new_rule(table: Table<'_>, chain: &str, rule: &Rule<'_>) -> NetlinkRequest {
    let matching = matches(rule.matching);
    let count = expression("counter", &MessageBody::default());
    let expressions = matching.join(&count).join(&decide(rule.verdict));
    let body = table.body().text(RULE_CHAIN, chain).nest(RULE_EXPRESSIONS, &expressions);
    request(NEW_RULE, CREATE | APPEND, body)
}

/// The expressions that let only these packets reach the rest of a rule.
fn matches(matching: PacketMatch) -> MessageBody {
    match matching {
        PacketMatch::Any => MessageBody::default(),
        PacketMatch::Source(address) => load_address(AddressField::Source, address).join(&equals(&octets_of(address))),
        PacketMatch::Destination(address) => {
            load_address(AddressField::Destination, address).join(&equals(&octets_of(address)))
        }
        PacketMatch::Marked(address, mark) => {
            let load = MessageBody::default().number(1, REGISTER).number(2, META_MARK);
            let marked = expression("meta", &load).join(&equals(&mark.to_ne_bytes()));
            matches(PacketMatch::Destination(address)).join(&marked)
        }
        PacketMatch::Share(address, share) => {
            matches(PacketMatch::Destination(address)).join(&in_share(address, share))
        }
        PacketMatch::OneOf(n) => {
            // Count up (type 0) and wrap around at n.
            let load = MessageBody::default().number(1, REGISTER).number(2, n.get()).number(3, 0);
            expression("numgen", &load).join(&equals(&0_u32.to_ne_bytes()))
        }
    }
}

/// One of the two addresses of an IP header.
#[derive(Clone, Copy)]
enum AddressField {
    Source,
    Destination,
}

fn octets_of(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Loads an address of the header, of the IP version of another one, into [`REGISTER`].
fn load_address(field: AddressField, like: IpAddr) -> MessageBody {
    let (at, length) = match (field, like) {
        (AddressField::Source, IpAddr::V4(_)) => (12, 4),
        (AddressField::Destination, IpAddr::V4(_)) => (16, 4),
        (AddressField::Source, IpAddr::V6(_)) => (8, 16),
        (AddressField::Destination, IpAddr::V6(_)) => (24, 16),
    };
    load(REGISTER, IP_HEADER, (at, length))
}

/// Loads a part of a packet, by its offset from a header and its length, into a register.
fn load(register: u32, header: u32, (at, length): (u32, u32)) -> MessageBody {
    expression("payload", &MessageBody::default().number(1, register).number(2, header).number(3, at).number(4, length))
}

/// Hashes the source address and, in the word behind it, the source port (`jhash`), and compares the remainder.
fn in_share(like: IpAddr, share: FlowShare) -> MessageBody {
    let n_words = if like.is_ipv4() { 1 } else { 4 };
    let (port, result) = (REGISTER_WORD + n_words, REGISTER_WORD + n_words + 1);
    let hash = MessageBody::default()
        .number(1, REGISTER_WORD)
        .number(2, result)
        .number(3, 4 * (n_words + 1))
        .number(4, share.n_shares.get())
        .number(5, HASH_SEED);
    load_address(AddressField::Source, like)
        .join(&load(port, TRANSPORT_HEADER, (0, 2)))
        .join(&expression("hash", &hash))
        .join(&compare(result, &share.place.to_ne_bytes()))
}

fn expression(name: &str, data: &MessageBody) -> MessageBody {
    let expression = MessageBody::default().text(EXPRESSION_NAME, name).nest(EXPRESSION_DATA, data);
    MessageBody::default().nest(ELEMENT, &expression)
}

/// Continues with the rule only if [`REGISTER`] holds this value.
fn equals(value: &[u8]) -> MessageBody {
    compare(REGISTER, value)
}

/// Continues with the rule only if a register holds this value.
fn compare(register: u32, value: &[u8]) -> MessageBody {
    // Operator 0 is equality.
    let value = MessageBody::default().put(DATA_VALUE, value);
    expression("cmp", &MessageBody::default().number(1, register).number(2, 0).nest(3, &value))
}

fn decide(verdict: RuleVerdict<'_>) -> MessageBody {
    let (code, chain) = match verdict {
        RuleVerdict::Accept => (ACCEPT, None),
        RuleVerdict::Drop => (DROP, None),
        RuleVerdict::Jump(chain) => (JUMP, Some(chain)),
        RuleVerdict::Translate(to) => return translate(to),
        RuleVerdict::RewriteSource(to) => return rewrite_source(to),
        RuleVerdict::Queue(queues, way) => return queue(queues, way),
        RuleVerdict::QueueUntracked(queues, way) => {
            return expression("notrack", &MessageBody::default()).join(&queue(queues, way));
        }
    };
    let verdict = MessageBody::default().number(VERDICT_CODE, code.cast_unsigned());
    let verdict = chain.into_iter().fold(verdict, |verdict, chain| verdict.text(VERDICT_CHAIN, chain));
    put(REGISTER_VERDICT, &MessageBody::default().nest(DATA_VERDICT, &verdict))
}

/// Puts a value into a register.
fn put(register: u32, data: &MessageBody) -> MessageBody {
    expression("immediate", &MessageBody::default().number(IMMEDIATE_REGISTER, register).nest(IMMEDIATE_DATA, data))
}

fn translate(to: IpAddr) -> MessageBody {
    let family = if to.is_ipv4() { TableFamily::Ipv4 } else { TableFamily::Ipv6 };
    let address = put(REGISTER, &MessageBody::default().put(DATA_VALUE, &octets_of(to)));
    let nat = MessageBody::default().number(1, TO_DESTINATION).number(2, family as u32).number(3, REGISTER);
    address.join(&expression("nat", &nat))
}

fn rewrite_source(to: IpAddr) -> MessageBody {
    // Only the header of IPv4 has a checksum (type 1, at offset 10); that of the transport covers the address too (flag 1).
    let (at, length, kind, sum_at) = if to.is_ipv4() { (12, 4, 1, 10) } else { (8, 16, 0, 0) };
    let store = MessageBody::default().number(2, IP_HEADER).number(3, at).number(4, length).number(5, REGISTER);
    let store = store.number(6, kind).number(7, sum_at).number(8, 1);
    put(REGISTER, &MessageBody::default().put(DATA_VALUE, &octets_of(to))).join(&expression("payload", &store))
}

fn queue(queues: QueueRange, way: QueueWay) -> MessageBody {
    let QueueRange { first, n_queues } = queues;
    match way {
        QueueWay::Expression => {
            let numbers = [(1, first), (2, n_queues.get()), (3, QUEUE_BYPASS)];
            let put = |body: MessageBody, (kind, number): (u16, u16)| body.put(kind, &number.to_be_bytes());
            expression("queue", &numbers.into_iter().fold(MessageBody::default(), put))
        }
        QueueWay::Target => {
            let target = MessageBody::default().text(1, "NFQUEUE").number(2, QUEUE_TARGET_REVISION);
            expression("target", &target.put(3, &xt_queue(queues)))
        }
    }
}

/// `struct xt_NFQ_info_v3`, padded as values of xtables are (`XT_ALIGN`).
fn xt_queue(QueueRange { first, n_queues }: QueueRange) -> Vec<u8> {
    [first, n_queues.get(), QUEUE_BYPASS, 0].into_iter().flat_map(u16::to_ne_bytes).collect()
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
            // More rules than fit into one batch.
            Chain { name: "others", hook: None, rules: vec![rule(unmatched, RuleVerdict::Drop); 1_200] },
        ];
        let mut nft = Nftables::open().unwrap();
        assert_eq!(nft.base_chains().unwrap(), []);
        nft.install(table, &chains).unwrap();
        let to = UdpSocket::bind((here, 0)).unwrap();
        let from = UdpSocket::bind((here, 0)).unwrap();
        for _ in 0..40 {
            // On loopback, sending a datagram that the filter drops may or may not fail.
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
