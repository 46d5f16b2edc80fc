//! A planted fault, the test that suffers from it, and the findings that name it.

/// A fault with a test that suffers from it.
pub(crate) struct Case {
    /// The fault with its values, or a device that harms what passes; empty for a lab without one.
    pub(crate) fault: Vec<String>,
    /// The host of the fault; empty for a fault of the device, of the test or of this machine.
    pub(crate) host: String,
    /// The layer and its options.
    pub(crate) test: String,
    /// The findings that name it; empty if nothing above a remark may be said, except about the shared cores of this machine.
    pub(crate) expected: &'static [&'static str],
}

impl Case {
    /// Whether the fault is a device between the two hosts.
    pub(crate) fn is_device(&self) -> bool {
        self.fault.first().is_some_and(|fault| fault.starts_with("impair"))
    }

    /// The fault and its host.
    pub(crate) fn name(&self) -> String {
        match self.fault.as_slice() {
            [] => "no fault".to_owned(),
            fault if self.host.is_empty() => fault.join(" "),
            fault => format!("{} on {}", fault.join(" "), self.host),
        }
    }
}
