//! Files of the user: read up to a limit, written whole or not at all.

use std::{
    fs,
    io::{self, Read as _, Write},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use anyhow::Context as _;

/// Who may read a file that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readers {
    /// Its owner: it holds results or secrets.
    Owner,
    /// Whoever the user's umask lets: it was asked for by its name.
    Anyone,
}

/// Reads a text of at most `most` bytes.
pub(crate) fn read_text(path: &Path, most: u64) -> anyhow::Result<String> {
    let cannot = || format!("cannot read {}", path.display());
    let mut text = String::new();
    let read = fs::File::open(path).and_then(|file| file.take(most + 1).read_to_string(&mut text));
    let n_bytes = read.with_context(cannot)?;
    let is_short = u64::try_from(n_bytes).is_ok_and(|n_bytes| n_bytes <= most);
    anyhow::ensure!(is_short, "{}: it is longer than {most} bytes", cannot());
    Ok(text)
}

/// Writes a file whole or not at all: a draft beside it takes its name when everything is in it.
///
/// What is no regular file, such as `/dev/stdout`, is written to as it is.
pub(crate) fn write_whole(
    path: &Path,
    readers: Readers,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    // A link keeps pointing where it points.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if target.exists() && !target.is_file() {
        let mut out = io::BufWriter::new(fs::File::options().write(true).open(&target).with_context(cannot)?);
        write(&mut out).with_context(cannot)?;
        return out.flush().with_context(cannot);
    }
    let mode = if readers == Readers::Owner { 0o600 } else { 0o666 };
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix(".fathom-").permissions(fs::Permissions::from_mode(mode));
    let mut draft = builder.tempfile_in(folder).with_context(cannot)?;
    let mut out = io::BufWriter::new(draft.as_file_mut());
    write(&mut out).and_then(|()| Ok(out.flush()?)).with_context(cannot)?;
    drop(out);
    draft.persist(&target).map_err(|error| error.error).with_context(cannot)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_whole_is_as_it_was_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        write_whole(&path, Readers::Owner, |out| Ok(out.write_all(b"first")?)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = write_whole(&path, Readers::Owner, |out| {
            out.write_all(b"half of the sec")?;
            Err(io::Error::from(io::ErrorKind::StorageFull).into())
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("run.json"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn what_is_no_file_is_written_to_and_an_endless_one_is_read_to_its_limit() {
        write_whole(Path::new("/dev/null"), Readers::Anyone, |out| Ok(out.write_all(b"gone")?)).unwrap();
        let error = write_whole(Path::new("/dev/full"), Readers::Anyone, |out| Ok(out.write_all(b"gone")?));
        assert!(error.unwrap_err().to_string().contains("/dev/full"));
        let error = read_text(Path::new("/dev/zero"), 1 << 20).unwrap_err().to_string();
        assert!(error.contains("/dev/zero") && error.contains("longer than 1048576 bytes"), "{error}");
    }
}
