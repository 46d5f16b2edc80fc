//! The lanes of a connection: streams that followed each other share one.

/// Which lanes have a stream that is not over.
#[derive(Debug, Default)]
pub(super) struct Lanes(Vec<bool>);

impl Lanes {
    /// Takes the first free lane, or a new one. Returns its number.
    pub(super) fn take(&mut self) -> u32 {
        let free = self.0.iter().position(|is_taken| !is_taken).unwrap_or(self.0.len());
        match self.0.get_mut(free) {
            Some(is_taken) => *is_taken = true,
            None => self.0.push(true),
        }
        u32::try_from(free).expect("there are as many lanes as streams at the same time")
    }

    /// The stream on a lane is over.
    pub(super) fn leave(&mut self, lane: u32) {
        self.0[lane as usize] = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_takes_the_first_lane_that_is_free() {
        let mut lanes = Lanes::default();
        assert_eq!([lanes.take(), lanes.take(), lanes.take()], [0, 1, 2]);
        lanes.leave(1);
        lanes.leave(0);
        assert_eq!([lanes.take(), lanes.take(), lanes.take()], [0, 1, 3]);
    }
}
