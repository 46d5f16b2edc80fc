//! How the time of a stream divides: that of its threads at both ends, and that of its connections.

use fathom_model::{
    FlowSummary, Record, TestRun, TimeDivision, TimeOwner, TimeShare, TimeUse,
    names::count,
    units::{Nanos, approximate, ratio},
};

use crate::window::{host_of, usable_trials};

/// Returns the division for each owner that tells its time; nothing for a test that is no stream.
///
/// The time of threads is that of all trials; the time of connections is that of the round in [`TestRun::flows`].
pub(crate) fn time_division(test: &TestRun) -> Vec<TimeDivision> {
    let sends = |record: &Record| count_of(record, count::BYTES_SENT) > count_of(record, count::BYTES_RECEIVED);
    let receives = |record: &Record| count_of(record, count::BYTES_RECEIVED) > count_of(record, count::BYTES_SENT);
    let senders = threads(test, TimeOwner::SendingThreads, sends);
    let receivers = threads(test, TimeOwner::ReceivingThreads, receives);
    [senders, connections(&test.flows), receivers].into_iter().flatten().collect()
}

fn count_of(record: &Record, name: &str) -> u64 {
    record.totals.get(name).copied().unwrap_or(0)
}

/// Divides the time of the threads on the side with these records.
fn threads(test: &TestRun, owner: TimeOwner, is_of_owner: impl Fn(&Record) -> bool) -> Option<TimeDivision> {
    let (mut on_core, mut waited, mut whole) = (Nanos::ZERO, Nanos::ZERO, Nanos::ZERO);
    let mut host = None;
    for trial in usable_trials(&test.trials) {
        for (key, record) in trial.records.iter().filter(|(_, record)| is_of_owner(record)) {
            host = Some(host_of(key));
            let (from, to) = record.measured_ns;
            on_core += record.cpu_ns_by_core.values().fold(Nanos::ZERO, |sum, spent| sum + *spent);
            waited += record.run_delay_ns?;
            whole += (to - from) * record.n_threads?;
        }
    }
    let [on_core, waited] = [on_core, waited].map(|part| ratio(part.0, whole.0));
    // The time of a thread is read a little before or after the end of the window.
    let on_core = on_core?.min(1.0);
    let waited = waited?.min(1.0 - on_core);
    let uses = [(TimeUse::OnCore, on_core), (TimeUse::CoreWait, waited), (TimeUse::Asleep, 1.0 - on_core - waited)];
    Some(division(owner, host?, &uses))
}

/// Divides the time of the connections that send, each with the same weight.
fn connections(flows: &[FlowSummary]) -> Option<TimeDivision> {
    let n = approximate(u64::try_from(flows.len()).unwrap_or(u64::MAX));
    let mean = |of: fn(&FlowSummary) -> f64| flows.iter().map(of).sum::<f64>() / n;
    let uses = [
        (TimeUse::Network, mean(|flow| flow.waits.network)),
        (TimeUse::ReceiveWindow, mean(|flow| flow.waits.receive_window)),
        (TimeUse::SendBuffer, mean(|flow| flow.waits.send_buffer)),
        (TimeUse::NoData, mean(|flow| flow.waits.application)),
    ];
    Some(division(TimeOwner::Connections, &flows.first()?.sender, &uses))
}

fn division(owner: TimeOwner, host: &str, uses: &[(TimeUse, f64)]) -> TimeDivision {
    let used = uses.iter().filter(|(_, share)| *share > 0.0);
    let shares = used.map(|(to, share)| TimeShare { to: *to, share: *share }).collect();
    TimeDivision { owner, host: host.to_owned(), shares }
}

#[cfg(test)]
mod tests {
    use fathom_model::{Bottleneck, SenderTime, Trial};

    use super::*;
    use crate::run_builder::RunBuilder;

    /// A stream of two trials of a second, whose threads at both ends tell their time.
    fn stream() -> TestRun {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1000]);
        let mut test = builder.run.tests.remove(0);
        for record in test.trials.iter_mut().flat_map(|trial: &mut Trial| trial.records.values_mut()) {
            let (from, to) = record.measured_ns;
            record.cpu_ns_by_core = [("cpu0".to_owned(), (to - from) / 2)].into();
            record.run_delay_ns = Some((to - from) / 4);
            record.n_threads = Some(2);
        }
        test
    }

    fn of(test: &TestRun, owner: TimeOwner) -> Option<Vec<(TimeUse, f64)>> {
        let all = time_division(test);
        let division = all.iter().find(|division| division.owner == owner)?;
        Some(division.shares.iter().map(|share| (share.to, share.share)).collect())
    }

    #[test]
    fn the_time_of_threads_is_on_a_core_waiting_for_one_or_asleep() {
        let expected = Some(vec![(TimeUse::OnCore, 0.25), (TimeUse::CoreWait, 0.125), (TimeUse::Asleep, 0.625)]);
        for owner in [TimeOwner::SendingThreads, TimeOwner::ReceivingThreads] {
            assert_eq!(of(&stream(), owner), expected);
        }
        let hosts: Vec<_> = time_division(&stream()).into_iter().map(|division| division.host).collect();
        assert_eq!(hosts, ["client", "target"]);
    }

    #[test]
    fn an_end_that_does_not_tell_its_threads_time_is_left_out() {
        let mut test = stream();
        test.trials[1].records.get_mut("target").unwrap().run_delay_ns = None;
        assert!(of(&test, TimeOwner::SendingThreads).is_some());
        assert_eq!(of(&test, TimeOwner::ReceivingThreads), None);
    }

    #[test]
    fn connections_count_alike_and_their_shares_add_up() {
        let flow = |network: f64, application: f64| FlowSummary {
            id: String::new(),
            sender: "client".to_owned(),
            acknowledged_bps: 1.0,
            waits: SenderTime { application, receive_window: 1.0 - network - application, send_buffer: 0.0, network },
            held_by: Bottleneck::Application,
        };
        let test = TestRun { flows: vec![flow(0.5, 0.5), flow(0.25, 0.25)], ..stream() };
        let uses = of(&test, TimeOwner::Connections).unwrap();
        let expected = [(TimeUse::Network, 0.375), (TimeUse::ReceiveWindow, 0.25), (TimeUse::NoData, 0.375)];
        assert_eq!(uses, expected);
    }
}
