//! The share of the recorded connections that are sent.

use fathom_engine::Error;
use fathom_model::{Settings, settings::SettingError, units::approximate};
use fathom_statistics::splitmix;

/// Why something of the others is not sent.
pub(crate) const LEFT_OUT: &str = "on connections that --sessions leaves out";

/// A share of the connections, chosen at random by the seed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionShare {
    /// From 0 to 1.
    share: f64,
    seed: u64,
}

impl SessionShare {
    /// Reads the option `sessions`.
    ///
    /// # Errors
    /// Names the option if it is wrong.
    pub(crate) fn of(settings: &Settings, seed: u64) -> Result<Self, Error> {
        let Some(text) = settings.text("sessions") else { return Ok(Self { share: 1.0, seed }) };
        let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
        let share = percent.filter(|percent| *percent > 0.0 && *percent <= 100.0).map(|percent| percent / 100.0);
        share.map(|share| Self { share, seed }).ok_or_else(|| {
            let expected = "a share of the connections, above 0 % and up to 100 %, such as 10%".to_owned();
            SettingError::NotAllowed { name: "sessions".to_owned(), expected, given: text }.into()
        })
    }

    /// Whether a connection is among those that are chosen.
    pub(crate) fn has(self, connection: u64) -> bool {
        approximate(splitmix(self.seed, connection)) < self.share * approximate(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(text: &str) -> Result<SessionShare, Error> {
        SessionShare::of(&Settings::default().with("sessions", text), 1)
    }

    #[test]
    fn a_share_of_the_connections_is_chosen() {
        let chosen = share("10%").unwrap();
        let n = (0..10_000).filter(|connection| chosen.has(*connection)).count();
        assert!((900..1100).contains(&n), "{n}");
        let all = SessionShare::of(&Settings::default(), 1).unwrap();
        assert!((0..100).all(|connection| all.has(connection)));
    }

    #[test]
    fn a_wrong_share_is_named() {
        for text in ["0%", "101%", "ten", "5"] {
            let error = share(text).unwrap_err().to_string();
            assert!(error.contains("sessions") && error.contains(text), "{error}");
        }
    }
}
