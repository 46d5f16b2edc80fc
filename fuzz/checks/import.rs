//! What must hold for every input that is imported, whatever it claims to be.
//!
//! Shared by the fuzz targets and by the test of `app` that runs their corpora.

use fathom_import::{Error, Format, ImportOptions, import};
use fathom_scenario as scenario;

/// Either it is refused, or what is made of it is a scenario in its final form.
pub(crate) fn imported(bytes: &[u8], format: Format) {
    // Half of the inputs have their secrets moved out.
    let secrets_file = (bytes.len() % 2 == 1).then(|| "seed-secrets.csv".to_owned());
    let wanted = ImportOptions { format: Some(format), secrets_file, ..ImportOptions::default() };
    match import(bytes, &wanted, "seed") {
        Ok(imported) => {
            assert_eq!(scenario::format(&imported.text).as_ref(), Ok(&imported.text));
            for note in &imported.notes {
                assert!(!note.location.is_empty() && !note.what.is_empty(), "{note:?}");
            }
        }
        // That is a mistake of ours and not of the input.
        Err(Error::Unwritten { fault }) => panic!("{fault}: {}", bytes.escape_ascii()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
