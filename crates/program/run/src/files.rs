//! User files: read up to a size limit, written atomically.

use std::{
    env, fs,
    io::{self, Read as _, Write},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use tempfile::NamedTempFile;

/// The permissions of a written file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileReaders {
    /// Only the owner may read it: it holds results or secrets.
    Owner,
    /// The user's umask decides: the user named the file.
    Anyone,
}

/// Returns the folder of the user's settings for this program; `None` if neither HOME nor `XDG_CONFIG_HOME` is set.
pub fn config_folder() -> Option<PathBuf> {
    let configured = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".config"));
    Some(configured.or_else(home)?.join("fathom"))
}

/// Reads a text file of at most `most` bytes.
pub fn read_text(path: &Path, most: u64) -> anyhow::Result<String> {
    let cannot = || format!("cannot read {}", path.display());
    let mut text = String::new();
    let read = fs::File::open(path).and_then(|file| file.take(most + 1).read_to_string(&mut text));
    let n_bytes = read.with_context(cannot)?;
    let is_short = u64::try_from(n_bytes).is_ok_and(|n_bytes| n_bytes <= most);
    anyhow::ensure!(is_short, "{}: it is larger than {most} bytes", cannot());
    Ok(text)
}

/// Writes a file atomically: a temporary file in the same folder is renamed to `path` once it is complete.
///
/// An existing file keeps its permissions, unless only its owner may read the new one. A device such as `/dev/stdout`, and a
/// file in a folder without write permission, are written in place.
pub fn write_whole(
    path: &Path,
    readers: FileReaders,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if readers == FileReaders::Owner {
        refuse_foreign(path)?;
    }
    // A symbolic link stays; its target is replaced.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let written = match draft_of(&target, readers) {
        Ok(Some(mut draft)) => fill(draft.as_file_mut(), write).and_then(|()| Ok(draft.persist(&target).map(drop)?)),
        Ok(None) => open_in_place(&target).and_then(|mut file| fill(&mut file, write)),
        Err(error) => Err(error.into()),
    };
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Refuses a link, a pipe or a device that another user has put in the place of a file for the owner alone: in a shared folder it would lead
/// secrets elsewhere. A plain file is replaced and never written into.
fn refuse_foreign(path: &Path) -> anyhow::Result<()> {
    let Ok(present) = fs::symlink_metadata(path) else { return Ok(()) };
    let is_ours = [fathom_sys::process::effective_user(), 0].contains(&present.uid());
    anyhow::ensure!(
        present.is_file() || is_ours,
        "cannot write {}: another user has put a link or a pipe there; choose another folder",
        path.display()
    );
    Ok(())
}

/// Creates an empty file in the target's folder with the permissions of the result. Returns none if the target is written in place.
fn draft_of(target: &Path, readers: FileReaders) -> io::Result<Option<NamedTempFile>> {
    let present = fs::metadata(target).ok();
    if present.as_ref().is_some_and(|present| !present.is_file()) {
        return Ok(None);
    }
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mode = if readers == FileReaders::Owner { 0o600 } else { 0o666 };
    let mut builder = tempfile::Builder::new();
    let draft = builder.prefix(".fathom-").permissions(fs::Permissions::from_mode(mode)).tempfile_in(folder);
    match (draft, present) {
        (Err(error), Some(_)) if readers == FileReaders::Anyone && error.kind() == io::ErrorKind::PermissionDenied => {
            Ok(None)
        }
        (Ok(draft), Some(present)) if readers == FileReaders::Anyone => {
            draft.as_file().set_permissions(present.permissions())?;
            Ok(Some(draft))
        }
        (draft, _) => draft.map(Some),
    }
}

fn open_in_place(target: &Path) -> anyhow::Result<fs::File> {
    Ok(fs::File::options().write(true).truncate(true).open(target)?)
}

fn fill(file: &mut fs::File, write: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut out = io::BufWriter::new(file);
    write(&mut out)?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_whole_is_as_it_was_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        write_whole(&path, FileReaders::Owner, |out| Ok(out.write_all(b"first")?)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = write_whole(&path, FileReaders::Owner, |out| {
            out.write_all(b"half of the sec")?;
            Err(io::Error::from(io::ErrorKind::StorageFull).into())
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("run.json"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn a_file_that_is_there_keeps_its_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.scenario");
        fs::write(&path, "old").unwrap();
        for mode in [0o600, 0o666, 0o755] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            write_whole(&path, FileReaders::Anyone, |out| Ok(out.write_all(b"new")?)).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
        }
        write_whole(&path, FileReaders::Owner, |out| Ok(out.write_all(b"secret")?)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn secrets_go_through_no_link_and_no_pipe_of_another_user() {
        const NOBODY: u32 = 65_534;
        if fathom_sys::process::effective_user() != 0 {
            return fathom_testkit::skip("only root can make files of another user");
        }
        let folder = tempfile::tempdir().unwrap();
        let (own, link) = (folder.path().join("own"), folder.path().join("shop.har"));
        fs::write(&own, "mine").unwrap();
        std::os::unix::fs::symlink(&own, &link).unwrap();
        let write = |readers| write_whole(&link, readers, |out| Ok(out.write_all(b"secret")?));
        std::os::unix::fs::lchown(&link, Some(NOBODY), None).unwrap();
        assert!(write(FileReaders::Owner).unwrap_err().to_string().contains("another user"));
        assert_eq!(fs::read(&own).unwrap(), b"mine");
        std::os::unix::fs::lchown(&link, Some(0), None).unwrap();
        write(FileReaders::Owner).unwrap();
        assert_eq!(fs::read(&own).unwrap(), b"secret", "a link of one's own is followed");
    }

    #[test]
    fn what_is_no_file_is_written_to_and_an_endless_one_is_read_to_its_limit() {
        write_whole(Path::new("/dev/null"), FileReaders::Anyone, |out| Ok(out.write_all(b"gone")?)).unwrap();
        let error = write_whole(Path::new("/dev/full"), FileReaders::Anyone, |out| Ok(out.write_all(b"gone")?));
        assert!(error.unwrap_err().to_string().contains("/dev/full"));
        let error = read_text(Path::new("/dev/zero"), 1 << 20).unwrap_err().to_string();
        assert!(error.contains("/dev/zero") && error.contains("larger than 1048576 bytes"), "{error}");
    }
}
