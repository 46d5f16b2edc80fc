//! The sizes of requests and responses: all equal, or several sizes in given proportions.
//!
//! The first byte of a request names its pair of sizes, so the responder need not know the order. The response begins with the
//! same byte, so the initiator notices an unexpected answer.

use std::sync::Arc;

use fathom_engine::Error;
use fathom_model::{OptionDoc, Settings, Side, ValueKind, units::Bytes};

use crate::{options::invalid_value, payload};

/// The size of a request.
pub(crate) const REQUEST: OptionDoc = OptionDoc {
    name: "request",
    value: ValueKind::Text,
    default: Some("1"),
    help: "bytes of a request, or a mix of sizes with weights: 64:7,4KiB:3",
};
/// The size of a response.
pub(crate) const RESPONSE: OptionDoc = OptionDoc {
    name: "response",
    value: ValueKind::Text,
    default: Some("1"),
    help: "bytes of a response, or a mix of sizes with weights: 128:1,1MiB:1",
};

/// The most sizes of a mix: each pair of a request and a response has its own buffer.
const PARTS_MAX: usize = 8;
/// The longest message of a mix, for the same reason.
const IN_MIX_MAX: usize = 1 << 20;
/// The longest message otherwise; anything larger is a stream.
const MESSAGE_MAX: usize = 16 << 20;
/// The most transactions after which a mix repeats. With one byte each, the cycle stays in the second-level cache.
const CYCLE_MAX: u64 = 1 << 16;

/// The bit of the first byte of a request that announces a stamped exchange; the other bits hold 8 × 8 pairs of sizes.
pub(crate) const ANNOUNCEMENT: u8 = 0x40;

/// A pair of sizes, by its number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SizeClass(pub(crate) u8);

impl SizeClass {
    pub(crate) fn idx(self) -> usize {
        self.0.into()
    }
}

/// The shortest and the longest message of a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SizeBounds {
    pub(crate) shortest: usize,
    pub(crate) longest: usize,
}

impl SizeBounds {
    /// The limits of a byte stream.
    pub(crate) const STREAM: Self = Self { shortest: 1, longest: MESSAGE_MAX };
}

/// Sizes with their weights.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SizeMix(Vec<(usize, u64)>);

impl SizeMix {
    fn of(settings: &Settings, option: &OptionDoc, bounds: SizeBounds) -> Result<Self, Error> {
        let text = settings.text(option.name).unwrap_or_else(|| bounds.shortest.to_string());
        let parts = text.split(',').map(part).collect::<Option<Vec<_>>>();
        let longest = if text.contains(',') { bounds.longest.min(IN_MIX_MAX) } else { bounds.longest };
        let fits = |(size, weight): &(usize, u64)| (bounds.shortest..=longest).contains(size) && *weight > 0;
        match parts {
            Some(parts) if parts.len() <= PARTS_MAX && parts.iter().all(fits) => Ok(Self(parts)),
            _ => {
                let bytes = |size: usize| Bytes(u64::try_from(size).unwrap_or(u64::MAX));
                let (shortest, longest) = (bytes(bounds.shortest), bytes(longest));
                let expected =
                    format!("{shortest} to {longest}, or up to {PARTS_MAX} such sizes with weights (64:7,4KiB:3)");
                Err(invalid_value(option.name, &expected, &text))
            }
        }
    }

    fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, (_, weight)| sum.saturating_add(*weight))
    }

    fn sizes(&self) -> Vec<usize> {
        self.0.iter().map(|(size, _)| *size).collect()
    }
}

/// Parses `64:7` or `64`.
fn part(text: &str) -> Option<(usize, u64)> {
    let (size, weight) = text.split_once(':').unwrap_or((text, "1"));
    let size = usize::try_from(size.trim().parse::<Bytes>().ok()?.0).ok()?;
    Some((size, weight.trim().parse().ok()?))
}

/// The sizes of a test and their order.
#[derive(Debug, Clone)]
pub(crate) struct MessageSizes {
    requests: Vec<usize>,
    responses: Vec<usize>,
    /// One cycle of classes.
    order: Arc<[u8]>,
}

impl MessageSizes {
    /// Reads the sizes from settings.
    ///
    /// # Errors
    /// A size is out of bounds, or the weights make too long a cycle.
    pub(crate) fn of(settings: &Settings, seed: u64, bounds: SizeBounds) -> Result<Self, Error> {
        let requests = SizeMix::of(settings, &REQUEST, bounds)?;
        let responses = SizeMix::of(settings, &RESPONSE, bounds)?;
        let cycle = requests.total().saturating_mul(responses.total());
        if cycle > CYCLE_MAX {
            let expected = format!("weights whose sums multiply to at most {CYCLE_MAX}");
            return Err(invalid_value(REQUEST.name, &expected, &cycle));
        }
        let n_responses = responses.0.len();
        let mut order = Vec::new();
        for (i, (_, request_weight)) in requests.0.iter().enumerate() {
            for (k, (_, response_weight)) in responses.0.iter().enumerate() {
                let class = u8::try_from(i * n_responses + k).expect("at most 8 × 8 pairs");
                order.extend((0..request_weight * response_weight).map(|_| class));
            }
        }
        fastrand::Rng::with_seed(seed).shuffle(&mut order);
        Ok(Self { requests: requests.sizes(), responses: responses.sizes(), order: order.into() })
    }

    /// The class of transaction number `n`.
    #[inline]
    pub(crate) fn at(&self, n: usize) -> SizeClass {
        SizeClass(if self.order.len() == 1 { self.order[0] } else { self.order[n % self.order.len()] })
    }

    pub(crate) fn n_classes(&self) -> usize {
        self.requests.len() * self.responses.len()
    }

    #[inline]
    pub(crate) fn request(&self, class: SizeClass) -> usize {
        self.requests[class.idx() / self.responses.len()]
    }

    #[inline]
    pub(crate) fn response(&self, class: SizeClass) -> usize {
        self.responses[class.idx() % self.responses.len()]
    }

    /// The class that the first byte of a message names, if it exists.
    #[inline]
    pub(crate) fn class(&self, byte: u8) -> Option<SizeClass> {
        let class = SizeClass(byte & !ANNOUNCEMENT);
        (class.idx() < self.n_classes()).then_some(class)
    }

    pub(crate) fn longest_request(&self) -> usize {
        self.requests.iter().copied().max().unwrap_or(0)
    }

    pub(crate) fn longest_response(&self) -> usize {
        self.responses.iter().copied().max().unwrap_or(0)
    }

    /// For each class, the message that a side sends: pseudo-random bytes after the byte that names the class.
    pub(crate) fn messages(&self, side: Side, seed: u64) -> Vec<Vec<u8>> {
        let message = |class: u8| {
            let length = match side {
                Side::Initiator => self.request(SizeClass(class)),
                Side::Responder => self.response(SizeClass(class)),
            };
            let mut message = vec![0; length];
            payload::fill(&mut message, seed);
            message[0] = class;
            message
        };
        (0..u8::MAX).take(self.n_classes()).map(message).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use fathom_model::{Phases, Role, units::Nanos};

    use super::*;

    pub(crate) fn role(request: &str, response: &str) -> Role {
        Role {
            test: "test".to_owned(),
            kind: "tcp_rr".to_owned(),
            side: Side::Initiator,
            settings: Settings::default().with("request", request).with("response", response),
            phases: Phases {
                warmup_max_ns: Nanos::ZERO,
                is_warmup_whole: false,
                measure_ns: Nanos::ZERO,
                interval_ns: Nanos::ZERO,
            },
            address: None,
            interface: None,
            peer: BTreeMap::new(),
            cores: Vec::new(),
            meeting: fathom_model::PeerAddresses::default(),
            seed: 7,
        }
    }

    fn sizes(request: &str, response: &str) -> Result<MessageSizes, Error> {
        MessageSizes::of(&role(request, response).settings, 7, SizeBounds::STREAM)
    }

    #[test]
    fn a_single_size_is_that_of_every_transaction() {
        let sizes = sizes("200", "4KiB").unwrap();
        let class = sizes.at(12_345);
        assert_eq!((sizes.request(class), sizes.response(class), sizes.n_classes()), (200, 4096, 1));
        let message = &sizes.messages(Side::Initiator, 3)[0];
        assert_eq!((message.len(), message[0]), (200, 0));
    }

    #[test]
    fn a_mix_keeps_its_proportions_exactly_and_each_request_meets_each_response() {
        let sizes = sizes("1:7,128:3", "64,1MiB").unwrap();
        let mut seen: BTreeMap<(usize, usize), u32> = BTreeMap::new();
        for n in 0..2000 {
            let class = sizes.at(n);
            *seen.entry((sizes.request(class), sizes.response(class))).or_default() += 1;
        }
        let expected = [((1, 64), 700), ((1, 1 << 20), 700), ((128, 64), 300), ((128, 1 << 20), 300)];
        assert_eq!(seen, BTreeMap::from(expected));
        for (class, message) in sizes.messages(Side::Responder, 1).iter().enumerate() {
            assert_eq!(sizes.class(message[0]).map(SizeClass::idx), Some(class));
        }
        assert_eq!(sizes.class(4), None);
    }

    #[test]
    fn what_is_no_size_or_no_mix_is_refused_with_what_would_be_right() {
        for (request, response) in [
            ("0", "1"),
            ("1", "17MiB"),
            ("1,2MiB", "1"),
            ("1:0", "1"),
            ("1:x", "1"),
            ("", "1"),
            ("1,2,3,4,5,6,7,8,9", "1"),
            ("1:300,2:1", "1:300,2:1"),
        ] {
            let refused = sizes(request, response).err().unwrap_or_else(|| panic!("{request} {response}"));
            assert!(matches!(refused, Error::Setting(_)), "{refused}");
        }
    }
}
