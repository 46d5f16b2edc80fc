//! Readings beside the counters, as a view shows them, and what of them another host is shown.

use fathom_model::{
    record::ProgramTime,
    units::{Nanos, ratio},
};
use serde::{Deserialize, Serialize};

use crate::{
    queue_shares::QueueShare,
    sockets::{BusySockets, WaitingListener},
};

/// The readings of a host at one time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LiveTables {
    /// The queues of interfaces with several.
    #[serde(default)]
    pub(crate) queues: Vec<QueueShare>,
    /// The connections that moved the most bytes; absent if they cannot be read, or are withheld.
    #[serde(default)]
    pub(crate) sockets: Option<BusySockets>,
    /// The listeners with connections that wait for accept.
    #[serde(default)]
    pub(crate) listeners: Option<Vec<WaitingListener>>,
    /// The programs with the most CPU time in the last seconds.
    #[serde(default)]
    pub(crate) programs: Vec<ProgramTime>,
    /// The time in which they used it; zero without two readings.
    #[serde(default)]
    pub(crate) programs_span_ns: Nanos,
    /// Why readings are missing, a sentence each.
    #[serde(default)]
    pub(crate) losses: Vec<String>,
}

/// Who is shown the readings of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Onlooker {
    /// Its owner, who could read them there: everything.
    Owner,
    /// A controller with the key of a served host: its queues and its full listeners.
    Guest,
}

/// A guest is told what says how the host copes with traffic. With whom it talks, and what else runs on it, is its owner's matter.
const WITHHELD: &str =
    "connections and programs are withheld: a served host tells a controller neither its peers nor what runs on it";

impl LiveTables {
    /// Returns the programs with their CPU time in a span at the same rate.
    pub(crate) fn programs_in(&self, span: Nanos) -> Vec<ProgramTime> {
        let longer = ratio(span.0, self.programs_span_ns.0).unwrap_or(1.0);
        let scaled = |program: &ProgramTime| {
            let cpu_ns = Nanos::from_secs_f64(program.cpu_ns.as_secs_f64() * longer);
            ProgramTime { cpu_ns, ..program.clone() }
        };
        self.programs.iter().map(scaled).collect()
    }

    /// Removes what an onlooker is not shown, and says so.
    pub(crate) fn shown_to(self, onlooker: Onlooker) -> Self {
        match onlooker {
            Onlooker::Owner => self,
            Onlooker::Guest => {
                let losses = self.losses.into_iter().chain([WITHHELD.to_owned()]).collect();
                Self { sockets: None, programs: Vec::new(), losses, ..self }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_the_same_share_of_whatever_time_is_judged() {
        let program =
            ProgramTime { name: "yes".to_owned(), pid: 7, cpu_ns: Nanos::from_secs(2), ..ProgramTime::default() };
        let tables =
            LiveTables { programs: vec![program], programs_span_ns: Nanos::from_secs(2), ..LiveTables::default() };
        for seconds in [1, 7, 60] {
            assert_eq!(tables.programs_in(Nanos::from_secs(seconds))[0].cpu_ns, Nanos::from_secs(seconds));
        }
        // A host of an older fathom does not tell the time.
        let tables = LiveTables { programs_span_ns: Nanos::ZERO, ..tables };
        assert_eq!(tables.programs_in(Nanos::from_secs(7))[0].cpu_ns, Nanos::from_secs(2));
    }

    #[test]
    fn a_guest_is_shown_queues_and_listeners_and_what_is_withheld() {
        let listener =
            WaitingListener { address: "198.18.0.2:80".parse().unwrap(), n_waiting: 3, n_length: 2, is_full: true };
        let program = ProgramTime {
            name: "secret".to_owned(),
            pid: 7,
            cpu_ns: Nanos::from_secs(1),
            n_threads: 1,
            ..ProgramTime::default()
        };
        let all = LiveTables {
            sockets: Some(BusySockets { interval_ns: Nanos::from_secs(1), n_connections: 9, busiest: Vec::new() }),
            listeners: Some(vec![listener]),
            programs: vec![program],
            ..LiveTables::default()
        };
        assert_eq!(all.clone().shown_to(Onlooker::Owner), all);
        let text = serde_json::to_string(&all.clone().shown_to(Onlooker::Guest)).unwrap();
        assert!(!text.contains("secret") && text.contains("withheld"), "{text}");
        let told: LiveTables = serde_json::from_str(&text).unwrap();
        assert_eq!((told.sockets, told.programs, told.listeners), (None, Vec::new(), all.listeners));
    }
}
