//! What must hold for two recordings, whatever they claim to be.

use fathom_correlate::{CorrelateOptions, Error, RecordingText, correlate};
use fathom_import::Assets;
use fathom_scenario as scenario;

/// Between the two recordings of an input.
const BETWEEN: &str = "\n----\n";

/// Either they are refused, or what is made of them is a scenario in its final form, with as many columns in each row of its data.
pub(crate) fn correlated(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (one, two) = text.split_once(BETWEEN).unwrap_or((text, text));
    let recording = |text| RecordingText { name: "seed", text };
    let options = CorrelateOptions { assets: Assets::Kept, data_file: "typed.csv" };
    match correlate(recording(one), recording(two), options) {
        Ok(correlation) => {
            assert_eq!(scenario::format(&correlation.scenario).as_ref(), Ok(&correlation.scenario));
            assert!(correlation.counts.n_uses >= correlation.counts.n_taken);
            if let Some(typed) = correlation.typed {
                assert!(typed.csv.lines().count() >= 3 && !typed.columns.is_empty());
            }
        }
        // That is a mistake of ours and not of the input.
        Err(Error::Unwritten(error)) => panic!("{error}: {}", bytes.escape_ascii()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
