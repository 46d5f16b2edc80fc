//! What an importer is asked for.

use fathom_http::host_names::HostNames;

/// More is not read: a recording of a day fits, and what is larger would fill the memory of a machine.
pub const SIZE_MAX: usize = 64 << 20;

/// A format that is understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// An archive of HTTP, version 1.2, as browsers write it.
    Har,
    /// A test plan of JMeter.
    Jmx,
    /// Command lines of curl.
    Curl,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Har, Self::Jmx, Self::Curl];

    /// The word on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Har => "har",
            Self::Jmx => "jmx",
            Self::Curl => "curl",
        }
    }
}

/// Which requests of a recording are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordingFilter {
    /// Whether page assets are.
    pub assets: Assets,
    /// Those to these hosts; all if none is named.
    pub hosts: HostNames,
    /// Those whose path begins with one of these; all if there are none.
    pub paths: Vec<String>,
}

/// Whether requests for what a page only shows are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Assets {
    /// All requests are.
    #[default]
    Kept,
    /// Pictures, style sheets, scripts, fonts and media are left out.
    LeftOut,
}
