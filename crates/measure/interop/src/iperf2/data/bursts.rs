//! TCP streams whose writes begin with a header and the time (`--trip-times`).

use fathom_sys::{
    clock,
    socket::{self, Socket, Wait},
};
use fathom_transport::{payload::Payload, stream::ByteSchedule};

use super::{FlowContext, FlowCounter, FlowPlan, burst_length};
use crate::iperf2::{BURST_LEN, BurstHeader, BurstReader};

/// Sends bursts until it is over or the budget is spent. The last one may be cut off.
pub(super) fn send(socket: &Socket, plan: &FlowPlan, context: &impl FlowContext) -> fathom_sys::Result<()> {
    let mut payload = Payload::random(burst_length(plan.length), clock::now().0);
    let mut schedule = plan.rate().and_then(|rate| ByteSchedule::new(rate, context.start()));
    let begun = clock::wall();
    let (mut id, mut n_sent) = (0_u32, 0_u64);
    let mut left = plan.budget.unwrap_or(u64::MAX);
    while left > 0 && !context.is_over() {
        if let Some(schedule) = &mut schedule {
            let now = clock::now();
            let due = schedule.next_due(now);
            if due > now {
                clock::sleep_until(due.min(now + crate::iperf2::socket_setup::BLOCKING_TIMEOUT));
                continue;
            }
        }
        let size = usize::try_from(left).unwrap_or(usize::MAX).clamp(BURST_LEN, payload.bytes().len());
        id = id.wrapping_add(1);
        n_sent += size as u64;
        let header = BurstHeader {
            start: begun,
            sent: clock::wall(),
            id,
            size: u32::try_from(size).expect("a write is short"),
            n_bytes: n_sent,
        };
        header.write(payload.bytes_mut());
        send_whole(socket, &payload.bytes()[..size], context)?;
        left = left.saturating_sub(size as u64);
        if let Some(schedule) = &mut schedule {
            schedule.advance(size as u64);
        }
    }
    Ok(())
}

/// Sends all of a burst, unless it is over.
fn send_whole(socket: &Socket, mut rest: &[u8], context: &impl FlowContext) -> fathom_sys::Result<()> {
    while !rest.is_empty() {
        match socket::send(socket, rest, Wait::Block)? {
            Some(count) => {
                context.add(FlowCounter::Bytes, count as u64);
                context.add(FlowCounter::Calls, 1);
                rest = &rest[count..];
            }
            None if context.is_over() => return Ok(()),
            None => context.add(FlowCounter::Errors, 1),
        }
    }
    Ok(())
}

/// Receives bursts to the end of the stream, and counts the time of each from its write to its last byte.
pub(super) fn receive(socket: &Socket, plan: &FlowPlan, context: &impl FlowContext) -> fathom_sys::Result<()> {
    let mut room = Payload::random(plan.length, 0);
    let mut reader = BurstReader::default();
    while !context.is_over() {
        let Some(count) = socket::recv(socket, room.bytes_mut(), Wait::Block)? else { continue };
        if count == 0 {
            break;
        }
        context.add(FlowCounter::Bytes, count as u64);
        context.add(FlowCounter::Calls, 1);
        context.add_read(count as u64);
        let now = clock::wall();
        // A sender whose clock is ahead would give times below zero.
        reader.take(&room.bytes()[..count], |burst| context.add_transit(now.since(burst.sent)));
    }
    Ok(())
}
