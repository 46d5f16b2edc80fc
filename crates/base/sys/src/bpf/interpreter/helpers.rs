//! The kernel's helper functions that are known here.

use super::{
    super::{Helper, XdpAction},
    Offence, Outcome, Run, low,
    memory::{Address, KEPT_HEAD_ROOM},
};

const MAP_LOOKUP: i32 = Helper::MapLookup as i32;
const MONOTONIC_NANOS: i32 = Helper::MonotonicNanos as i32;
const RANDOM: i32 = Helper::Random as i32;
const ADJUST_HEAD: i32 = Helper::AdjustHead as i32;
const ADJUST_TAIL: i32 = Helper::AdjustTail as i32;
const REDIRECT_MAP: i32 = Helper::RedirectMap as i32;
const FRAME_LENGTH: i32 = Helper::FrameLength as i32;

impl Run<'_> {
    /// Calls a helper, after which `R1` to `R5` are unknown.
    pub(super) fn call(&mut self, helper: i32) -> Outcome<()> {
        let (start, end) = self.frame.bounds();
        let value = match helper {
            MAP_LOOKUP => self.look_up()?,
            MONOTONIC_NANOS => self.surroundings.now,
            RANDOM => self.surroundings.random.into(),
            ADJUST_HEAD => {
                let change = self.change()?;
                self.resized((KEPT_HEAD_ROOM, start + change), end)
            }
            ADJUST_TAIL => {
                let change = self.change()?;
                self.resized((0, start), end + change)
            }
            FRAME_LENGTH => {
                self.context()?;
                (end - start).cast_unsigned()
            }
            REDIRECT_MAP => self.redirect_map()?,
            _ => return Err(Offence::UnknownHelper(helper)),
        };
        self.registers[1..=5].fill(None);
        self.set(0, value)
    }

    fn context(&self) -> Outcome<()> {
        let context = self.register(1)?;
        if context == Address::CONTEXT { Ok(()) } else { Err(Offence::WrongArgument(context)) }
    }

    /// The second argument of a helper that adjusts the frame, an `int`.
    fn change(&self) -> Outcome<i64> {
        self.context()?;
        Ok(low(self.register(2)?).cast_signed().into())
    }

    fn resized(&mut self, start: (usize, i64), end: i64) -> u64 {
        if self.frame.resize(start, end) { 0 } else { i64::from(-libc::EINVAL).cast_unsigned() }
    }

    /// Whatever is at an index of the map can be reached.
    fn redirect_map(&self) -> Outcome<u64> {
        let map = self.register(1)?;
        let Address::Map(idx) = Address::of(map) else { return Err(Offence::WrongArgument(map)) };
        let is_there = self.surroundings.maps.look_up(idx, low(self.register(2)?)) != 0;
        if is_there { Ok(XdpAction::Redirect as u64) } else { self.register(3) }
    }

    fn look_up(&mut self) -> Outcome<u64> {
        let map = self.register(1)?;
        let Address::Map(idx) = Address::of(map) else { return Err(Offence::WrongArgument(map)) };
        let key = self.register(2)?;
        let key = self.load(key, 4)?;
        Ok(self.surroundings.maps.look_up(idx, low(key)))
    }
}
