//! Events that are a word with the thing it is about: a link that goes down, a target that stops.

use fathom_sys::process::own_program;

use super::super::held_change::ChangeText;

/// An event that is a word with the thing it is about.
pub(super) struct BuiltIn {
    pub(super) word: &'static str,
    pub(super) form: &'static str,
    /// What happens on which host, for the part behind the `=`.
    pub(super) what: fn(&str) -> Option<(String, BuiltInAction)>,
}

/// What such an event does.
pub(super) enum BuiltInAction {
    /// A change that is undone.
    Change(ChangeText),
    /// A command after which nothing is as before.
    Final(String),
}

/// Keeps in `again` the commands that give a device its IPv6 addresses, neighbors and routes again, which the kernel forgets when it goes
/// down. It restores routes of its own itself. The last are those through a gateway, which another route leads to.
const REMEMBER_DEVICE: &str = r#"again=$(
ip -6 -o addr show dev DEVICE scope global | awk '{print "ip -6 addr replace " $4 " dev DEVICE nodad"}'
ip neigh show dev DEVICE nud permanent | awk '{print "ip neigh replace " $1 " lladdr " $3 " dev DEVICE nud permanent"}'
for family in 4 6; do
    ip -$family route show table all dev DEVICE | awk -v family=$family '
        /^(local|broadcast|anycast|multicast) .*proto kernel/ { next }
        { gsub(/ (linkdown|dead)/, ""); line = "ip -" family " route replace " $0 " dev DEVICE" }
        / via / { late = late line "\n"; next }
        { print line }
        END { printf "%s", late }'
done
)"#;

pub(super) const BUILT_INS: &[BuiltIn] = &[
    BuiltIn {
        word: "link-down",
        form: "link-down=HOST:DEVICE",
        what: |about| {
            let (host, device) = about.split_once(':')?;
            let is_name = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
            (!device.is_empty() && device.chars().all(is_name)).then(|| {
                let set = |state: &str| format!("ip link set dev {device} {state}");
                let make = format!("{}\n{}", REMEMBER_DEVICE.replace("DEVICE", device), set("down"));
                let undo = format!("{}\neval \"$again\"", set("up"));
                (host.to_owned(), BuiltInAction::Change(ChangeText { make, undo }))
            })
        },
    },
    BuiltIn {
        word: "black-hole",
        form: "black-hole=HOST",
        what: |about| {
            let chain = "add chain TABLE drop_all { type filter hook prerouting priority -500; policy drop; }";
            Some((about.to_owned(), BuiltInAction::Change(table("black_hole", chain))))
        },
    },
    BuiltIn {
        word: "stop-target",
        form: "stop-target=HOST",
        // What clients see when the program that serves them has ended: the kernel resets and refuses.
        what: |about| {
            let rules = "add chain TABLE refuse_all { type filter hook input priority -500; }; \
                         add rule TABLE refuse_all meta l4proto tcp reject with tcp reset; \
                         add rule TABLE refuse_all meta l4proto udp reject";
            Some((about.to_owned(), BuiltInAction::Change(table("stop_target", rules))))
        },
    },
    BuiltIn {
        word: "kill-device",
        form: "kill-device=HOST",
        // Whoever holds the lab started the balancer, so only that can start it again.
        what: |about| {
            let kill = format!("exec {} balancer kill", own_program::shell_word());
            (!about.is_empty()).then(|| (about.to_owned(), BuiltInAction::Final(kill)))
        },
    },
];

/// A table of nftables with these commands, in which it is called TABLE.
fn table(name: &str, commands: &str) -> ChangeText {
    // The number of the shell, so that two of them do not share a table.
    let table = format!("inet fathom_{name}_$$");
    let make = format!("nft \"add table {table}; {}\"", commands.replace("TABLE", &table));
    ChangeText { make, undo: format!("nft \"delete table {table}\"") }
}

#[cfg(test)]
pub(super) mod tests {
    use fathom_sys::{
        netlink::namespace::{Namespaces, NetNs},
        process::{confinement::Confinement, may_administer_network},
    };

    use super::{
        super::{
            super::{held_change::HeldChange, shell_command::ShellCommand},
            running::{CHANGE_MAX, EventFailure},
            spec::{EventAction, EventSpec},
        },
        *,
    };

    /// The change of a built-in event, and a namespace with a wire to nowhere to make it in.
    pub(in super::super) fn change_on_wire(event: &str) -> (ChangeText, Namespaces) {
        let net = NetNs::new().unwrap();
        let EventAction::Change { change, .. } = EventSpec::of(event, true).unwrap().action else {
            panic!("{event}");
        };
        (change, Namespaces { user: None, net, confinement: Confinement::default() })
    }

    fn shell(text: &str, place: &Namespaces) -> String {
        let ended = ShellCommand { text, place: Some(place) }.run(|| None::<()>).unwrap();
        assert!(ended.status.unwrap().success(), "{text}: {}", ended.errors);
        ended.output
    }

    #[test]
    fn a_link_comes_up_again_with_the_routes_of_all_tables() {
        if fathom_testkit::lacks_privileges(may_administer_network()) {
            return;
        }
        let (change, place) = change_on_wire("1s link-down=a:eth0");
        shell(
            "set -e
            ip link add eth0 address 02:00:00:00:00:01 type veth peer name eth1
            ip link set eth1 up; ip link set eth0 up
            ip addr add 198.18.1.1/24 dev eth0; ip -6 addr add 2001:db8::1/64 dev eth0 nodad
            ip neigh add 198.18.1.2 lladdr 02:00:00:00:00:02 dev eth0 nud permanent
            ip route add 198.18.7.7 dev eth0 scope link
            ip route add default via 198.18.7.7 dev eth0
            ip route add 198.18.9.0/24 via 198.18.1.2 dev eth0 table 100
            ip -6 route add 2001:db8:9::/48 via 2001:db8::2 dev eth0 table 100
            ip route add local 198.18.8.0/24 dev eth0 table local",
            &place,
        );
        let routes = || {
            shell(
                "ip -4 route show table all dev eth0 | sort; ip -6 route show table all dev eth0 | grep -v fe80 | sort; \
                 ip neigh show dev eth0 nud permanent; ip -6 -o addr show dev eth0 scope global",
                &place,
            )
        };
        let before = routes();
        for part in ["198.18.9.0/24 via 198.18.1.2 table 100", "2001:db8:9::/48", "local 198.18.8.0/24", "default via"]
        {
            assert!(before.contains(part), "{part} is missing in\n{before}");
        }
        let held = HeldChange::make(&change, Some(&place), CHANGE_MAX).unwrap().unwrap();
        assert!(!routes().contains("table 100"), "the link is down");
        EventFailure::of_change(&held.undo(CHANGE_MAX).unwrap()).unwrap();
        assert_eq!(routes(), before);
    }

    #[test]
    fn black_holes_and_stopped_targets_are_gone_once_nobody_holds_them() {
        if fathom_testkit::lacks_privileges(may_administer_network()) {
            return;
        }
        if std::process::Command::new("nft").arg("--version").output().is_err() {
            return fathom_testkit::skip("needs nft");
        }
        for event in ["1s black-hole=a", "1s stop-target=a"] {
            let (change, place) = change_on_wire(event);
            let tables = || shell("nft list tables", &place);
            let make = || HeldChange::make(&change, Some(&place), CHANGE_MAX).unwrap().unwrap();
            let (first, second) = (make(), make());
            assert_eq!(tables().lines().count(), 2, "{event}");
            for held in [first, second] {
                EventFailure::of_change(&held.undo(CHANGE_MAX).unwrap()).unwrap();
            }
            assert_eq!(tables(), "", "{event}");
        }
    }
}
