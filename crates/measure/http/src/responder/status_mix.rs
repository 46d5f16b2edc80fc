//! The statuses of the answers.

use std::str::FromStr;

use fathom_model::mix::EvenRotation;

use super::{
    InvalidText,
    fraction::{Fraction, WHOLE, sum_to_whole},
};

/// A longer list would contain nearly every status there is.
const STATUSES_MAX: usize = 32;

/// A mix of statuses with their shares. As text: `200:95%,404:4%,503:1%`, or a single one: `204`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusMix(Vec<(u16, Fraction)>);

impl Default for StatusMix {
    /// Every answer is 200.
    fn default() -> Self {
        Self(vec![(200, Fraction(WHOLE))])
    }
}

impl StatusMix {
    /// The statuses in the given order.
    pub(super) fn codes(&self) -> impl ExactSizeIterator<Item = u16> {
        self.0.iter().map(|(code, _)| *code)
    }

    /// The index of the status with the largest share among those whose answers have a body.
    pub(super) fn main_status(&self) -> usize {
        let with_body = self.0.iter().enumerate().rev().filter(|(_, (code, _))| has_body(*code));
        with_body.max_by_key(|(_, (_, share))| share.0).map_or(0, |(idx, _)| idx)
    }
}

/// Whether answers of this status have a body (RFC 9110 sections 15.3.5, 15.3.6 and 15.4.5).
pub(super) fn has_body(code: u16) -> bool {
    ![204, 205, 304].contains(&code)
}

impl FromStr for StatusMix {
    type Err = InvalidText;

    fn from_str(text: &str) -> Result<Self, InvalidText> {
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        // 1xx announces a further answer, so it cannot be one (RFC 9110 section 15.2).
        let code = |text: &str| {
            let code = text.trim().parse().ok();
            code.filter(|code| (200..600).contains(code)).ok_or(InvalidText)
        };
        let statuses = match parts[..] {
            [one] if !one.contains(':') => vec![(code(one)?, Fraction(WHOLE))],
            _ => parts
                .into_iter()
                .map(|part| {
                    let (status, share) = part.split_once(':').ok_or(InvalidText)?;
                    Ok((code(status)?, share.parse()?))
                })
                .collect::<Result<_, InvalidText>>()?,
        };
        let is_sound = statuses.len() <= STATUSES_MAX && sum_to_whole(statuses.iter().map(|(_, share)| *share));
        if is_sound { Ok(Self(statuses)) } else { Err(InvalidText) }
    }
}

impl StatusMix {
    /// The order of one worker's answers. A client counts the exact mix and not a random sample of it.
    pub(super) fn rotation(&self) -> EvenRotation {
        EvenRotation::new(self.0.iter().map(|(_, share)| share.0.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_every_answer_each_status_has_its_share_within_one() {
        let statuses: StatusMix = "200:95%, 404:4%, 503:1%".parse().unwrap();
        let (mut rotation, mut counts) = (statuses.rotation(), [0_i64; 3]);
        for n in 1..=10_000_i64 {
            counts[rotation.next_index()] += 1;
            for (count, percent) in counts.iter().zip([95, 4, 1]) {
                assert!((count * 100 - n * percent).abs() <= 100, "{counts:?} of {n}");
            }
        }
        assert_eq!(counts, [9_500, 400, 100]);
    }

    #[test]
    fn statuses_are_given_evenly() {
        let statuses: StatusMix = "200:50%,500:50%".parse().unwrap();
        let mut rotation = statuses.rotation();
        let given: Vec<usize> = (0..6).map(|_| rotation.next_index()).collect();
        assert_eq!(given, [0, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn what_is_no_mix_is_refused() {
        for text in ["", "100", "600", "200:90%", "200:50%,404", "200:95%,404:6%", "OK", "200=95%"] {
            assert_eq!(text.parse::<StatusMix>(), Err(InvalidText), "{text}");
        }
        assert_eq!("204".parse::<StatusMix>().unwrap().codes().collect::<Vec<_>>(), [204]);
        assert_eq!("404:10%,200:90%".parse::<StatusMix>().unwrap().main_status(), 1);
        assert_eq!("404:10%,204:90%".parse::<StatusMix>().unwrap().main_status(), 0);
    }
}
