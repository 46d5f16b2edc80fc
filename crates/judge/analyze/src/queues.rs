//! How packets were divided among the queues of a device (NFQUEUE).

use fathom_model::{
    PacketQueueShare, Run, TestRun, Trial,
    names::host::{DEVICE_CPU_NS, NFQUEUE_DROPPED, NFQUEUE_PACKETS, NFQUEUE_USER_DROPPED, QUEUE_THREAD},
    units::{Nanos, ratio},
};

use crate::{conservation::host_growth, path_check::device_of};

/// The number of a queue, of which a counter is.
fn number(of: &str) -> &str {
    of.strip_prefix("queue").unwrap_or(of)
}

/// Returns what each queue of the device of a test had. Empty for a device with fewer than two of them.
pub(crate) fn queues(run: &Run, test: &TestRun) -> Vec<PacketQueueShare> {
    let Some(device) = device_of(run, test) else { return Vec::new() };
    let trials: Vec<&Trial> = test.trials.iter().collect();
    let records = || trials.iter().filter_map(|trial| trial.hosts.get(device));
    let mut names: Vec<&str> =
        records().flat_map(|record| record.series_of(NFQUEUE_PACKETS)).map(|series| series.of.as_str()).collect();
    names.sort_by_key(|name| (number(name).parse::<u64>().unwrap_or(u64::MAX), *name));
    names.dedup();
    if names.len() < 2 {
        return Vec::new();
    }
    let growth = |counter: &str, queue: &str| host_growth(&trials, device, counter, Some(queue));
    let n_all: u64 = names.iter().map(|queue| growth(NFQUEUE_PACKETS, queue)).sum();
    let span = records().map(fathom_model::HostRecord::span).fold(Nanos::ZERO, |all, one| all + one);
    let core_share = |queue: &str| {
        let thread = format!("{QUEUE_THREAD}{}", number(queue));
        let is_told = records().flat_map(|record| record.series_of(DEVICE_CPU_NS)).any(|series| series.of == thread);
        ratio(growth(DEVICE_CPU_NS, &thread), span.0).filter(|_| is_told)
    };
    let share = |queue: &&str| {
        let n_packets = growth(NFQUEUE_PACKETS, queue);
        PacketQueueShare {
            queue: number(queue).to_owned(),
            n_packets,
            share: ratio(n_packets, n_all),
            core_share: core_share(queue),
            n_dropped: growth(NFQUEUE_DROPPED, queue),
            n_user_dropped: growth(NFQUEUE_USER_DROPPED, queue),
        }
    };
    names.iter().map(share).collect()
}
