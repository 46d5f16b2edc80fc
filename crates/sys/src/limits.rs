//! How much the kernel lets this process have (getrlimit(2)).

use rustix::{
    io::Errno,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

use crate::{Error, Result};

/// Lets this process have at least `count` open descriptors (`RLIMIT_NOFILE`); the limit there was is never lowered.
///
/// Up to the hard limit it needs nothing, beyond it `CAP_SYS_RESOURCE`; the sysctl `fs.nr_open` is the end.
///
/// # Errors
/// `setrlimit(RLIMIT_NOFILE)`, when the hard limit is lower and may not be raised.
pub fn allow_descriptors(count: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let suffices = |bound: Option<u64>| bound.is_none_or(|bound| bound >= count);
    if suffices(limit.current) {
        return Ok(());
    }
    let maximum = if suffices(limit.maximum) { limit.maximum } else { Some(count) };
    setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum }).map_err(|error: Errno| {
        let hard = limit.maximum.unwrap_or(u64::MAX);
        Error::new(format!("setrlimit(RLIMIT_NOFILE, {count}), where the hard limit is {hard}"), error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_and_never_lowered() {
        let before = getrlimit(Resource::Nofile);
        let more = before.current.unwrap_or(1024).min(before.maximum.unwrap_or(u64::MAX).saturating_sub(1)) + 1;
        allow_descriptors(more).unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current, before.current.map(|current| current.max(more)));
        allow_descriptors(1).unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current, before.current.map(|current| current.max(more)));
    }

    #[test]
    fn more_than_the_kernel_can_have_is_refused_with_the_limit() {
        let error = allow_descriptors(1 << 40).unwrap_err();
        assert!(error.call.starts_with("setrlimit(RLIMIT_NOFILE, 1099511627776), where"), "{error}");
        assert!(error.is_permission(), "{error}");
    }
}
