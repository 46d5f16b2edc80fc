//! What must hold for every file that claims to be a data set.
//!
//! Shared by the fuzz target and by the test of `app` that runs the corpus.

use std::path::Path;

use fathom_scenario::execution::{DataLayout, DataRows};

/// Reads a file in every form that it may claim: each row has a cell for each column, and no text is lost or made up.
pub(crate) fn rows(bytes: &[u8]) {
    for name in ["data.csv", "data.tsv", "data.json"] {
        let Ok(rows) = DataRows::parse(Path::new(name), bytes, &DataLayout::default()) else { continue };
        let n = u32::try_from(rows.n()).expect("a row has a cell in a table of 32-bit offsets");
        assert!(n > 0 && !rows.columns().is_empty(), "{name}");
        let cells = (0..n).flat_map(|row| (0..rows.columns().len()).map(move |column| (row, column)));
        let length: usize = cells.map(|(row, column)| rows.cell(row, column).len()).sum();
        // What JSON escapes in six letters has one to three bytes; numbers may be written longer than they were.
        let most = if name == "data.json" { 40 * bytes.len() } else { bytes.len() };
        assert!(length <= most, "{name}: {length} bytes of {}", bytes.len());
        assert!(rows.cell(n, 0).is_empty(), "{name}: there is nothing beyond the last row");
    }
}
