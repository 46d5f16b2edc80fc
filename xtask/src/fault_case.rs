//! Planted faults, the test that suffers from them, and the findings that name them.

/// A fault of a lab, of a test or of this machine.
pub(crate) struct PlantedFault {
    /// The fault with its values, or a device that harms what passes.
    pub(crate) words: Vec<String>,
    /// The host of the fault; empty for a fault of the device, of the test or of this machine.
    pub(crate) host: String,
}

impl PlantedFault {
    pub(crate) fn new(words: &[&str], host: &str) -> Self {
        Self { words: words.iter().map(|word| (*word).to_owned()).collect(), host: host.to_owned() }
    }

    /// The device between the two hosts, if the fault is one.
    pub(crate) fn device(&self) -> Option<&str> {
        self.words.first().map(String::as_str).filter(|fault| fault.starts_with("impair"))
    }

    fn name(&self) -> String {
        let fault = self.words.join(" ");
        if self.host.is_empty() { fault } else { format!("{fault} on {}", self.host) }
    }
}

/// Faults with a test that suffers from them.
pub(crate) struct Case {
    /// The faults; empty for a lab without one.
    pub(crate) faults: Vec<PlantedFault>,
    /// The layer and its options.
    pub(crate) test: String,
    /// For each cause, the findings that name it. If empty, nothing above a remark may be said, except about the shared cores of this machine.
    pub(crate) expected: Vec<&'static [&'static str]>,
}

impl Case {
    /// Whether one of its faults is this one.
    pub(crate) fn has(&self, fault: &str) -> bool {
        self.faults.iter().any(|planted| planted.words == [fault])
    }

    /// Whether a finding names one of its causes.
    pub(crate) fn expects(&self, id: &str) -> bool {
        self.expected.iter().any(|names| names.contains(&id))
    }

    /// The faults and their hosts.
    pub(crate) fn name(&self) -> String {
        let names: Vec<String> = self.faults.iter().map(PlantedFault::name).collect();
        if names.is_empty() { "no fault".to_owned() } else { names.join(" + ") }
    }
}
