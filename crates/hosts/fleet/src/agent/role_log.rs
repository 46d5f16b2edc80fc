//! Detects other measurements on a served host: its agents log the start and the end of each role in one file.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    process,
};

use fathom_model::Note;

/// The size of an entry in bytes: a process id, negative for the end of a role.
const ENTRY_LEN: usize = 4;

/// The file shared by all agents of one `fathom serve`; entries are only appended.
#[derive(Debug, Clone)]
pub struct RoleLog(PathBuf);

/// A running role; dropping it logs its end.
pub(super) struct LoggedRole {
    file: File,
    own: i32,
    /// The number of entries at its start, including its own.
    n_before: usize,
    path: PathBuf,
}

impl RoleLog {
    /// The log at this path, such as `/dev/fd/5`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Logs the start of a role.
    pub(super) fn log_start(&self) -> io::Result<LoggedRole> {
        let mut file = File::options().append(true).open(&self.0)?;
        let own = i32::try_from(process::id()).map_err(io::Error::other)?;
        file.write_all(&own.to_le_bytes())?;
        Ok(LoggedRole { file, own, n_before: entries(&self.0)?.len(), path: self.0.clone() })
    }
}

impl LoggedRole {
    /// Returns the note for this role's record if others measured here at the same time.
    pub(super) fn note(&self) -> Option<Note> {
        let text = match entries(&self.path) {
            Ok(entries) if ran_beside_others(&entries, self.own, self.n_before, is_alive) => {
                "another controller measured on this host at the same time, so both saw less than the host can do"
            }
            Ok(_) => return None,
            Err(_) => "whether another controller measured on this host at the same time is not known",
        };
        Some(Note { id: "shared-host".to_owned(), text: text.to_owned() })
    }
}

impl Drop for LoggedRole {
    fn drop(&mut self) {
        // If a process can no longer log the end, the others see that it is dead.
        let _ = self.file.write_all(&(-self.own).to_le_bytes());
    }
}

fn entries(path: &Path) -> io::Result<Vec<i32>> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    let (entries, _) = bytes.as_chunks::<ENTRY_LEN>();
    Ok(entries.iter().map(|entry| i32::from_le_bytes(*entry)).collect())
}

fn is_alive(pid: i32) -> bool {
    fs::exists(format!("/proc/{pid}")).unwrap_or(true)
}

/// Returns whether another process had a role running at any time since ours began.
fn ran_beside_others(entries: &[i32], own: i32, begun: usize, is_alive: impl Fn(i32) -> bool) -> bool {
    let others = |entries: &[i32]| entries.iter().copied().filter(|entry| entry.abs() != own).collect::<Vec<_>>();
    let (before, since) = entries.split_at(begun.min(entries.len()));
    let mut under_way: Vec<i32> = Vec::new();
    for entry in others(before) {
        match under_way.iter().position(|pid| *pid == -entry) {
            Some(idx) => drop(under_way.swap_remove(idx)),
            None => under_way.push(entry),
        }
    }
    !others(since).is_empty() || under_way.into_iter().any(is_alive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_of_others_count_when_they_overlap_and_their_process_lives() {
        let cases: [(&[i32], usize, bool); 7] = [
            (&[1], 1, false),
            (&[2, -2, 1], 3, false),
            (&[2, 1, -2], 2, true),
            (&[2, 1], 2, true),
            (&[1, 2, -2, -1], 1, true),
            (&[2, 2, -2, 1], 4, true),
            (&[9, 1], 2, false),
        ];
        for (entries, begun, expected) in cases {
            assert_eq!(ran_beside_others(entries, 1, begun, |pid| pid != 9), expected, "{entries:?}");
        }
    }
}
