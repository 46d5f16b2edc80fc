//! iperf3's output about a file that was sent or written (`-F`).

use std::{fs, path::Path};

use fathom_model::units::{approximate, rounded};
use serde_json::{Value, json};

use super::units::volume;

/// Returns the size of a file at the end of a test and the percentage that was transferred. `None` if the file is gone.
fn share(path: &Path, bytes: u64) -> Option<(u64, u64)> {
    let size = fs::metadata(path).ok()?.len();
    // An empty file is always complete.
    let percent = if size == 0 { 100.0 } else { approximate(bytes) / approximate(size) * 100.0 };
    Some((size, rounded(percent.floor())))
}

/// Returns the line of a stream. iperf3 prints `Sent` for received data, too.
pub(super) fn line(path: &Path, bytes: u64) -> Option<String> {
    let (size, percent) = share(path, bytes)?;
    Some(format!("        Sent {} / {} ({percent}%) of {}", volume(bytes), volume(size), path.display()))
}

/// Returns the JSON object of a stream, with sent and received bytes.
pub(super) fn object(path: &Path, (sent, received): (u64, u64)) -> Option<Value> {
    let (size, percent_sent) = share(path, sent)?;
    let (_, percent_received) = share(path, received)?;
    Some(json!({
        "sent": sent, "received": received, "size": size,
        "percent_sent": percent_sent, "percent_received": percent_received,
        "filename": path.display().to_string(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_told_as_iperf3_tells_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let name = file.path().display();
        assert_eq!(line(file.path(), 0).unwrap(), format!("        Sent 0.00 Byte / 0.00 Byte (100%) of {name}"));
        fs::write(file.path(), vec![0; 3_000_000]).unwrap();
        assert_eq!(
            line(file.path(), 2_999_999).unwrap(),
            format!("        Sent 2.86 MByte / 2.86 MByte (99%) of {name}")
        );
        assert_eq!(object(file.path(), (3_000_000, 30_000)).unwrap()["percent_received"], 1);
        assert_eq!(line(Path::new("/nonesuch"), 1), None);
    }
}
