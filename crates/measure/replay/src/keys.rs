//! The secrets by which connections over TLS are decrypted.

use std::{io::BufReader, path::PathBuf};

use fathom_capture::KeyLog;
use fathom_engine::Error;
use fathom_model::Settings;
use fathom_sys::policy::Policy;

/// Reads the secrets that the option `keys` names; none if it is absent.
///
/// # Errors
/// The file cannot be read, or has none.
pub(crate) fn key_log(settings: &Settings, policy: &Policy) -> Result<KeyLog, Error> {
    let Some(path) = settings.text("keys").map(PathBuf::from) else { return Ok(KeyLog::default()) };
    let unusable = |why: &str, hint: Option<&str>| {
        let what = format!("cannot use the keys in {}: {why}", path.display());
        Error::Unsupported { what, hint: hint.map(str::to_owned) }
    };
    let file = policy.open(&path).map_err(|error| unusable(&error.to_string(), None))?;
    KeyLog::read(BufReader::new(file)).map_err(|error| unusable(&error.to_string(), error.hint()))
}
