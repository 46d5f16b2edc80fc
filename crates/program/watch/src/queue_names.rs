//! The names that drivers give to the counters of their queues.

/// The direction of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Direction {
    Rx,
    Tx,
}

impl Direction {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Rx => "rx",
            Self::Tx => "tx",
        }
    }
}

/// Words of counters that count other packets than all of a queue: XDP, errors, groups, packets by size.
const NO_QUEUE: [&str; 13] =
    ["xdp", "xsk", "err", "errors", "drop", "drops", "gro", "lro", "mcast", "bcast", "to", "byte", "bytes"];

/// Returns the queue whose packets a counter counts: drivers write `rx_queue_0_packets`, `rx0_packets`, `rx-0.packets`, `queue_0_rx_cnt`,
/// `rx_queue_0_rx_packets`, or `[0]: rx_ucast_packets`.
pub(crate) fn queue_of(name: &str) -> Option<(Direction, u32)> {
    let name = name.to_ascii_lowercase();
    let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let counts_packets = matches!(words.last(), Some(&("packets" | "cnt" | "pkts")));
    let is_special = words.iter().any(|word| NO_QUEUE.contains(word));
    let direction = |word: &str| match word.trim_end_matches(|c: char| c.is_ascii_digit()) {
        "rx" | "rxq" => Some(Direction::Rx),
        "tx" | "txq" => Some(Direction::Tx),
        _ => None,
    };
    let number = |word: &str| word.trim_start_matches(|c: char| c.is_ascii_alphabetic()).parse().ok();
    let way = words.iter().find_map(|word| direction(word))?;
    let queue = words.iter().find_map(|word| number(word))?;
    (counts_packets && !is_special).then_some((way, queue))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_of_a_counter_is_found_in_the_words_of_many_drivers() {
        let cases = [
            ("rx_queue_3_packets", Some((Direction::Rx, 3))),
            ("tx-11.packets", Some((Direction::Tx, 11))),
            ("rx0_packets", Some((Direction::Rx, 0))),
            ("tx_queue_2_tx_cnt", Some((Direction::Tx, 2))),
            ("queue_5_rx_cnt", Some((Direction::Rx, 5))),
            ("rx_packets", None),
            ("rx_queue_0_bytes", None),
            ("rx_queue_0_xdp_packets", None),
            ("rx_64_byte_packets", None),
            ("rx_65_to_127_packets", None),
            ("[0]: rx_ucast_packets", Some((Direction::Rx, 0))),
        ];
        for (name, queue) in cases {
            assert_eq!(queue_of(name), queue, "{name}");
        }
    }
}
