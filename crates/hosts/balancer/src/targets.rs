//! The targets of a group: names, marks and weights.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A host that packets are forwarded to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The name, which alone decides the target's places in the table: two balancers with the same names agree.
    pub name: String,
    /// The firewall mark that routes packets to it; never 0, which netfilter reads as no mark.
    pub mark: u32,
    /// Its share of the flows in relation to other targets: 1 to [`WEIGHT_MAX`].
    pub weight: u32,
}

/// The highest weight: Envoy and Cilium limit the weights of a group in the same order of magnitude.
pub const WEIGHT_MAX: u32 = 1000;

/// Why a text is no target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The text does not have the form of a target.
    #[error("target `{0}`: write NAME,mark=MARK or NAME,mark=MARK,weight=WEIGHT")]
    Form(String),
    /// The mark is not usable.
    #[error("target `{0}`: the mark is a number from 1 to 4294967295")]
    Mark(String),
    /// The weight is out of range.
    #[error("target `{0}`: the weight is a number from 1 to {WEIGHT_MAX}")]
    Weight(String),
}

impl FromStr for Target {
    type Err = TargetError;

    /// Parses `t1,mark=1` or `t1,mark=1,weight=2`.
    fn from_str(text: &str) -> Result<Self, TargetError> {
        let mut parts = text.split(',').map(str::trim);
        let name = parts.next().filter(|name| !name.is_empty() && !name.contains(['=', ' ']));
        let name = name.ok_or_else(|| TargetError::Form(text.to_owned()))?.to_owned();
        let (mut mark, mut weight) = (None, None);
        for part in parts {
            match part.split_once('=') {
                Some(("mark", number)) if mark.is_none() => {
                    let number = number.parse().ok().filter(|number| *number > 0);
                    mark = Some(number.ok_or_else(|| TargetError::Mark(text.to_owned()))?);
                }
                Some(("weight", number)) if weight.is_none() => {
                    let number = number.parse().ok().filter(|number| (1..=WEIGHT_MAX).contains(number));
                    weight = Some(number.ok_or_else(|| TargetError::Weight(text.to_owned()))?);
                }
                _ => return Err(TargetError::Form(text.to_owned())),
            }
        }
        let mark = mark.ok_or_else(|| TargetError::Form(text.to_owned()))?;
        Ok(Self { name, mark, weight: weight.unwrap_or(1) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_name_with_a_mark_and_perhaps_a_weight() {
        let target = |mark, weight| Ok(Target { name: "t1".to_owned(), mark, weight });
        assert_eq!("t1,mark=7".parse(), target(7, 1));
        assert_eq!("t1, weight=3, mark=7".parse(), target(7, 3));
    }

    #[test]
    fn what_is_no_target_is_refused_with_the_form_of_one() {
        for text in ["", "t1", ",mark=1", "a=b", "t1,mark=1,mark=2", "t1,colour=1", "t 1,mark=1", "t1,weight=1"] {
            assert_eq!(text.parse::<Target>(), Err(TargetError::Form(text.to_owned())));
        }
        for text in ["t1,mark=0", "t1,mark=", "t1,mark=-1", "t1,mark=4294967296"] {
            assert_eq!(text.parse::<Target>(), Err(TargetError::Mark(text.to_owned())));
        }
        for text in ["t1,mark=1,weight=0", "t1,mark=1,weight=1001"] {
            assert_eq!(text.parse::<Target>(), Err(TargetError::Weight(text.to_owned())));
        }
    }
}
