//! Errors of the device, worded for the operator.

use std::{error::Error as _, io};

use fathom_model::units::Nanos;
use fathom_sys::socket::PeerProcess;

/// How a target is written.
pub const TARGET_FORM: &str = "NAME=ADDRESS[,ADDRESS][,weight=N]";

/// Why a balancer could not be started, asked or changed.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A text is not a target.
    #[error("target `{given}`: {why}")]
    BadTarget {
        /// The given text.
        given: String,
        /// The problem.
        why: String,
    },
    /// A target cannot be added.
    #[error("target `{given}`: {why}")]
    TargetRefused {
        /// The target.
        given: String,
        /// The problem.
        why: String,
    },
    /// A setting is out of range or contradicts another one.
    #[error("{option}: {why}")]
    BadSetting {
        /// The option.
        option: &'static str,
        /// The problem.
        why: String,
    },
    /// The process may not change the network.
    #[error("a balancer needs CAP_NET_ADMIN")]
    Unprivileged,
    /// The kernel has no queues.
    #[error("this kernel has no packet queues (nfnetlink_queue)")]
    NoQueues,
    /// The kernel has no rule that fills a queue.
    #[error("this kernel has no rule that sends packets to a queue")]
    NoQueueRule,
    /// Another program reads a queue.
    #[error("queue {0} belongs to another program")]
    QueueTaken(u16),
    /// A balancer of this name runs in the network namespace.
    #[error("a balancer `{name}` runs here already{}", by.map_or_else(String::new, |by| format!(", {}", in_words(by))))]
    Running {
        /// Its name.
        name: String,
        /// Its process, if it told.
        by: Option<PeerProcess>,
    },
    /// The name of a balancer belongs to a user whose answers are not to be believed.
    #[error("{} has the name `{name}`", in_words(*by))]
    NameTaken {
        /// The name.
        name: String,
        /// Who has it.
        by: PeerProcess,
    },
    /// The rules are there, and nobody owns the name.
    #[error("the table {table} of nf_tables exists already")]
    RulesExist {
        /// The table, behind its family.
        table: String,
    },
    /// The file of tun devices is not there, or is not open to this user.
    #[error("cannot make a tun device, by which fragments that waited come in again")]
    NoTun(#[source] fathom_sys::Error),
    /// The tun device has the name of one that exists: another balancer begins its marks at the same number.
    #[error("the marks from {0} on belong to another balancer")]
    MarksTaken(u32),
    /// Another rule or table uses the mark.
    #[error("the mark {mark} is used by another routing rule")]
    MarkTaken {
        /// The mark.
        mark: u32,
    },
    /// The process may not load programs into the kernel.
    #[error("data paths xdp and tc need CAP_BPF and CAP_NET_ADMIN outside user namespaces")]
    NoPrograms,
    /// There is no interface of this name.
    #[error("there is no interface `{0}` here")]
    NoInterface(String),
    /// Its frames have no Ethernet header.
    #[error("{0} is no Ethernet interface")]
    NoEthernet(String),
    /// The kernel runs no programs at the ingress of its stack.
    #[error("this kernel runs no programs at the ingress of interfaces (TCX)")]
    NoIngressPrograms,
    /// The driver runs no programs.
    #[error("the driver of {0} has no native XDP")]
    NoNativeXdp(String),
    /// The interface has a program of somebody else.
    #[error("{0} has an XDP program already")]
    OtherProgram(String),
    /// Frames for a target would vanish.
    #[error("{interface}, the interface to target {target}, takes no frames from XDP programs")]
    NoRedirect {
        /// The target.
        target: String,
        /// The interface.
        interface: String,
    },
    /// No balancer of this name runs in the network namespace.
    #[error("no balancer `{name}` runs here")]
    NotRunning {
        /// The name.
        name: String,
        /// The names of those that run.
        others: Vec<String>,
    },
    /// The process that asks belongs to another user.
    #[error("the balancer belongs to another user")]
    OtherUser,
    /// The balancer refused a change.
    #[error("{what}")]
    Refused {
        /// Why.
        what: String,
        /// The way out.
        fix: Option<String>,
    },
    /// The balancer is occupied, or is none.
    #[error("no answer within {after}{}", if *is_change { "; the change may still be made" } else { "" })]
    NoAnswer {
        /// How long it was waited for.
        after: Nanos,
        /// Whether a change was asked for.
        is_change: bool,
    },
    /// The control socket failed.
    #[error("cannot {attempt}")]
    Control {
        /// The attempted action.
        attempt: &'static str,
        /// The error from the system.
        source: io::Error,
    },
    /// The kernel refused an action.
    #[error("cannot {attempt}")]
    Kernel {
        /// The attempted action.
        attempt: &'static str,
        /// The call that failed.
        source: fathom_sys::Error,
    },
    /// The tables refused a change.
    #[error(transparent)]
    Tables(#[from] crate::BalancerError),
}

/// A process with its user.
fn in_words(peer: PeerProcess) -> String {
    // A process of another pid namespace has no number here.
    let number = if peer.pid == 0 { String::new() } else { format!(" {}", peer.pid) };
    format!("process{number} of user {}", peer.user)
}

impl DeviceError {
    pub(super) fn kernel(attempt: &'static str, source: fathom_sys::Error) -> Self {
        if source.is_permission() { Self::Unprivileged } else { Self::Kernel { attempt, source } }
    }

    /// The same error of a balancer of the tier, which is given like a target.
    pub(super) fn of_tier(self) -> Self {
        match self {
            Self::TargetRefused { given, why } => Self::BadSetting { option: "tier", why: format!("{given}: {why}") },
            other => other,
        }
    }

    /// The error with all its causes, for a reader that gets one text.
    pub(super) fn full_text(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(source) = cause {
            text.push_str(": ");
            text.push_str(&source.to_string());
            cause = source.source();
        }
        text
    }

    /// Returns a hint about how to fix the problem, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::BadTarget { .. } => format!("write {TARGET_FORM}"),
            Self::Unprivileged => "run as root, or in a lab: fathom lab up targets:4 --device balancer".to_owned(),
            Self::NoTun(source) if source.is_permission() => {
                "chmod 666 /dev/net/tun, as most distributions have it, or run as root outside a user namespace".to_owned()
            }
            Self::NoTun(_) => "modprobe tun".to_owned(),
            Self::NoQueues => "use a kernel with CONFIG_NETFILTER_NETLINK_QUEUE (modprobe nfnetlink_queue)".to_owned(),
            Self::NoQueueRule => {
                "use a kernel with CONFIG_NFT_QUEUE (modprobe nft_queue), or with CONFIG_NFT_COMPAT and \
                 CONFIG_NETFILTER_XT_TARGET_NFQUEUE (modprobe nft_compat xt_NFQUEUE)"
                    .to_owned()
            }
            Self::QueueTaken(_) => "see /proc/net/netfilter/nfnetlink_queue, and choose others with --queues".to_owned(),
            Self::Running { .. } => "end it with ctrl-C or SIGTERM, or run this one as --name OTHER --queues M-N --first-mark N".to_owned(),
            Self::RulesExist { table } => format!("nft delete table {table}, or choose another --name"),
            Self::MarksTaken(_) | Self::MarkTaken { .. } => "see ip rule list, and choose others with --first-mark N".to_owned(),
            Self::NoPrograms => "run as root outside a user namespace, or with --data-path nfqueue".to_owned(),
            Self::NoInterface(_) => "see ip link, and name the interface by which packets come in with --interface".to_owned(),
            Self::NoNativeXdp(_) => "name an interface whose driver has it, such as veth, virtio_net, ice or mlx5, or use --data-path tc or nfqueue".to_owned(),
            Self::NoEthernet(_) => "name another interface, or use --data-path nfqueue".to_owned(),
            Self::NoIngressPrograms => "use Linux 6.6 or newer, or --data-path xdp or nfqueue".to_owned(),
            Self::OtherProgram(interface) => format!("end the program that put it there (bpftool link); one without a link: ip link set dev {interface} xdp off"),
            Self::NoRedirect { .. } => "a veth takes them while its other end has GRO (there: ethtool -K PEER gro on), some NICs while they have a program of their own; or use --data-path tc or nfqueue".to_owned(),
            Self::NotRunning { others, .. } if !others.is_empty() => format!("--name {}", others.join(" or --name ")),
            Self::NotRunning { .. } => {
                "fathom balancer run --vip 198.18.8.1 --target t1=198.18.1.1; in a lab: fathom lab exec LAB dut -- fathom balancer …".to_owned()
            }
            Self::NameTaken { by, .. } => format!("if it is a balancer that you trust, ask as user {}; else end it", by.user),
            Self::OtherUser => "ask as root or as the user who started it".to_owned(),
            Self::Refused { fix, .. } => return fix.clone(),
            Self::TargetRefused { .. } | Self::BadSetting { .. } | Self::NoAnswer { .. } | Self::Control { .. } | Self::Kernel { .. } | Self::Tables(_) => return None,
        })
    }
}
