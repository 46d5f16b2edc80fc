//! The page `docs/findings.md`: one section per state of the machine, each of which can be written without the other.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::Context as _;

use crate::{fault_case::Case, findings::Outcome};

const PAGE: &str = "docs/findings.md";
const INTRODUCTION: &str = "# Planted faults and what fathom says

`make findings` plants each fault in a lab of two hosts (`fathom lab fault add`), runs the test and compares the findings with the fault: \
first on a quiet machine, then beside two programs that use its cores. *First* counts the runs in which the fault led the findings, *found* \
those in which it was named at all; *also said* lists other findings above a remark. A full core, other programs and time that the \
hypervisor took are true of a lab on a small machine if the record of the run bears them out: a core is busy 95 % of the time with the \
test's own threads and interrupts, or others used as much as the finding says. These are left out, and counted below the table; without \
such a record they count as untrue. Of two faults at once, one that explains much less than the other may be a remark. \
A fault that is only ever told as a remark, as it costs the test nothing, leads where nothing else stands above one. \
Beside busy programs, threads that a fault leaves one core wait for it, so that `other-programs` is as true; where the fault itself takes \
CPU from a test that uses all it gets (a quota, segmentation in software), or where the test needs a core of its own (frames), the programs \
are a second fault. \
Servers in Python, nginx and iperf run on host b. Where a test ends with `--allow`, host a runs alone and nobody reads the counters of host b: what is wrong is told by the client alone. \
Place, strength and direction of the faults in the last table of a section are drawn by seeds (`cargo xtask findings --short --seed N` \
draws others), so that no rule can be fitted to the numbers of a table.
";

/// The state of the machine during a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Section {
    /// Nothing else runs.
    Quiet,
    /// Other programs use the cores.
    Busy,
}

const SECTIONS: [Section; 2] = [Section::Quiet, Section::Busy];

impl Section {
    const fn heading(self) -> &'static str {
        match self {
            Self::Quiet => "## On a quiet machine",
            Self::Busy => "## Beside two programs that use the cores",
        }
    }

    /// Returns its part of a page, without the heading.
    fn of(self, page: &str) -> Option<&str> {
        let (_, behind) = page.split_once(&format!("{}\n", self.heading()))?;
        Some(behind.split("\n## ").next().unwrap_or(behind).trim())
    }
}

/// Writes the section of a pass; the other one stays as it is.
pub(crate) fn write(root: &Path, section: Section, rows: &[(&Case, Outcome)]) -> anyhow::Result<()> {
    let path = root.join(PAGE);
    let page = with_section(&fs::read_to_string(&path).unwrap_or_default(), section, &body(rows));
    fs::write(&path, page).with_context(|| format!("cannot write {PAGE}"))
}

/// Returns a page with another body of one section.
fn with_section(page: &str, section: Section, body: &str) -> String {
    let mut text = INTRODUCTION.to_owned();
    for one in SECTIONS {
        if let Some(body) = if one == section { Some(body) } else { one.of(page) } {
            write!(text, "\n{}\n\n{}\n", one.heading(), body.trim()).expect("a text takes everything");
        }
    }
    text
}

fn body(rows: &[(&Case, Outcome)]) -> String {
    let (drawn, listed): (Vec<_>, Vec<_>) = rows.iter().partition(|(case, _)| case.is_drawn);
    format!("{}\nDrawn by seeds, each once:\n\n{}{}", table(&listed), table(&drawn), sums(rows))
}

fn table(rows: &[&(&Case, Outcome)]) -> String {
    let mut table = "| fault | test | expected | first | found | also said |\n|---|---|---|---|---|---|\n".to_owned();
    for (case, outcome) in rows {
        let causes: Vec<String> = case.expected.iter().map(|names| names.join(" or ")).collect();
        let expected = if causes.is_empty() { "nothing".to_owned() } else { causes.join(" and ") };
        let Outcome { n_runs, n_first, n_found, others, .. } = outcome;
        let row = format!(
            "| {} | `{}` | {expected} | {n_first} of {n_runs} | {n_found} of {n_runs} | {} |",
            case.name(),
            case.test,
            others.join(", ")
        );
        writeln!(table, "{row}").expect("a text takes everything");
    }
    table
}

/// The sums of all rows in a sentence each.
fn sums(rows: &[(&Case, Outcome)]) -> String {
    let of = |n_causes: std::ops::RangeInclusive<usize>| {
        let outcomes = rows.iter().filter(move |(case, _)| n_causes.contains(&case.expected.len()));
        outcomes.fold(Outcome::default(), |all, (_, one)| Outcome {
            n_runs: all.n_runs + one.n_runs,
            n_first: all.n_first + one.n_first,
            n_found: all.n_found + one.n_found,
            n_untrue: all.n_untrue + one.n_untrue,
            n_of_lab: all.n_of_lab + one.n_of_lab,
            others: Vec::new(),
        })
    };
    let (single, clean, pairs, all) = (of(1..=1), of(0..=0), of(2..=2), of(0..=usize::MAX));
    let mut text = format!(
        "\nNamed first: {} of {} runs with a fault. Nothing untrue: {} of {} runs without one. Another finding stood beside the fault in {} \
         of {} runs with one.\n",
        single.n_first,
        single.n_runs,
        clean.n_first,
        clean.n_runs,
        single.n_untrue + pairs.n_untrue,
        single.n_runs + pairs.n_runs
    );
    if pairs.n_runs > 0 {
        let sentence = format!(
            "Of two faults at once, one was named first in {} of {} runs, and both were named in {}.\n",
            pairs.n_first, pairs.n_runs, pairs.n_found
        );
        text.push_str(&sentence);
    }
    let left_out =
        format!("Left out as true of the lab by its record: {} findings in {} runs.\n", all.n_of_lab, all.n_runs);
    text + &left_out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_section_is_written_without_the_other() {
        let quiet = with_section("", Section::Quiet, "the quiet table");
        assert_eq!((Section::Quiet.of(&quiet), Section::Busy.of(&quiet)), (Some("the quiet table"), None));
        let both = with_section(&quiet, Section::Busy, "the busy table");
        let bodies = |page: &str| SECTIONS.map(|section| section.of(page).map(str::to_owned));
        assert_eq!(bodies(&both), [Some("the quiet table".to_owned()), Some("the busy table".to_owned())]);
        let again = with_section(&both, Section::Quiet, "another table");
        assert_eq!(bodies(&again), [Some("another table".to_owned()), Some("the busy table".to_owned())]);
        assert!(again.starts_with(INTRODUCTION) && again.matches("## ").count() == 2, "{again}");
    }
}
