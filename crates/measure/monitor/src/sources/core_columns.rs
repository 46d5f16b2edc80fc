//! The header of tables with a column per core: `CPU0 CPU1 CPU3`.

use crate::procfs::{fields, number};

/// The most cores that Linux supports (`NR_CPUS` on x86): a higher number is not that of a core.
pub(super) const CORES_MAX: usize = 8192;

/// Returns the number of the core of each column; `None` for a column that is none of a core.
///
/// A core that is offline may have no column, so a column's place is not its core.
pub(super) fn core_columns(header: &[u8]) -> impl Iterator<Item = Option<usize>> {
    let core = |name: &[u8]| number(name.strip_prefix(b"CPU")?).filter(|core| *core < CORES_MAX);
    fields(header).map(core)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_belongs_to_the_core_that_its_header_names() {
        let cores: Vec<_> = core_columns(b"      CPU0       CPU2   CPUx CPU8192 ").collect();
        assert_eq!(cores, [Some(0), Some(2), None, None]);
    }
}
