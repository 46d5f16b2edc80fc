//! Stories of a connection, line by line, in the manner of packetdrill.
//!
//! A line is what happens, then what is sent, what is counted, and the state after it. Numbers count from the first one of each side, as
//! packetdrill writes them: `1:58` are the bytes from 1 to 57. `<` is a segment of the server, `<<` one for an earlier port of the slot,
//! `+200` that so many milliseconds pass in silence. A request has 57 bytes.

use super::*;

const MS: u64 = 1_000_000;
const OURS: u32 = 0xffff_ff00;
const THEIRS: u32 = 0x7fff_fff0;

struct Stage {
    connection: Connection,
    head: Head,
    at: Conditions,
    silence: (u32, u64),
    active_at: u64,
}

impl Stage {
    fn new(rules: Rules, answer_length: u32) -> Self {
        Self {
            // The next connection of the slot has the first number `OURS`.
            connection: Connection { send_next: OURS.wrapping_sub(64), ..Connection::default() },
            head: Head::Answer { length: answer_length, is_success: true, closes: false },
            at: Conditions { now: 1 << 40, stops: false, rules },
            silence: (0, 0),
            active_at: 0,
        }
    }

    /// What happens by a line up to `>`.
    fn act(&mut self, line: &str) -> Step {
        let mut step = Step::default();
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        self.at.now += MS;
        let (now, rules) = (self.at.now, self.at.rules);
        match word {
            "open" => self.connection.open(now, rules, &mut step),
            "request" => step = self.connection.start_request(now, now, rules),
            "close" => step = self.connection.close(now),
            "stop" => self.at.stops = true,
            "give-up" => step = self.connection.give_up(),
            "<" => step = self.connection.on_segment(&segment(rest), self.head, &self.at),
            "<<" => step = Connection::on_stray(&segment(rest)),
            time => {
                self.at.now += time.strip_prefix('+').expect("a line begins like this").parse::<u64>().unwrap() * MS;
                if self.active_at != self.connection.active_at {
                    (self.active_at, self.silence) = (self.connection.active_at, (0, 0));
                }
                let (now, timers) = (self.at.now, Timers::new(20_000 * MS));
                if self.connection.is_overdue(now, 0, &timers) {
                    step.events.add(Event::TimedOut);
                } else {
                    step = self.connection.on_silence(now, self.silence, &timers, rules);
                }
                if step.send != Send::Nothing {
                    self.silence = (self.silence.0 + u32::from(step.events.has(Event::Resent)), now);
                }
            }
        }
        step
    }
}

/// A segment of the server, such as `S. 0 ack 1` or `. 1:841 ack 58`.
fn segment(text: &str) -> Segment {
    let words: Vec<&str> = text.split_whitespace().collect();
    let flags = words[0].chars().map(|flag| match flag {
        'F' => flag::FIN,
        'S' => flag::SYN,
        'R' => flag::RST,
        'P' => flag::PSH,
        _ => flag::ACK,
    });
    let number = |text: &str| text.parse::<i64>().unwrap();
    let at = |first: u32, number: i64| first.wrapping_add_signed(i32::try_from(number).unwrap());
    let (from, to) = words[1].split_once(':').unwrap_or((words[1], words[1]));
    Segment {
        flags: flags.sum(),
        sequence: at(THEIRS, number(from)),
        acknowledgement: words.get(3).map_or(0, |ack| at(OURS, number(ack))),
        length: u32::try_from(number(to) - number(from)).unwrap(),
    }
}

/// What is sent, counted, and the state, as a line has it behind `>`.
fn outcome(step: &Step, connection: &Connection, request_length: u32) -> String {
    let ours = |number: u32| i64::from(number.wrapping_sub(OURS).cast_signed());
    let theirs = |number: u32| i64::from(number.wrapping_sub(THEIRS).cast_signed());
    let (sequence, ack) = (ours(step.sequence), theirs(step.acknowledgement));
    let sent = match step.send {
        Send::Nothing => String::new(),
        Send::Syn => format!("S {sequence}"),
        Send::Ack if step.sack.0 == step.sack.1 => format!(". {sequence} ack {ack}"),
        Send::Ack => format!(". {sequence} ack {ack} sack {}:{}", theirs(step.sack.0), theirs(step.sack.1)),
        Send::Request => format!("P. {sequence}:{} ack {ack}", sequence + i64::from(request_length)),
        Send::Fin => format!("F. {sequence} ack {ack}"),
        Send::Reset => format!("R {sequence}"),
    };
    // An answer of one segment begins where it ends.
    let is_told = |event: &Event| *event != Event::Begun || !step.events.has(Event::Answered);
    let events = Event::ALL.into_iter().filter(|event| step.events.has(*event)).filter(is_told);
    let events = events.map(|event| format!("{event:?}"));
    [sent].into_iter().chain(events).chain([format!("= {:?}", connection.state)]).collect::<Vec<_>>().join(" ")
}

const KEPT: Rules = Rules { request_length: 57, closes: false, is_open_load: false, port_mask: 0 };
const EACH: Rules = Rules { closes: true, ..KEPT };
const OPEN: Rules = Rules { is_open_load: true, ..KEPT };

/// Plays a story; its answers have so many bytes.
fn play(rules: Rules, answer_length: u32, story: &str) {
    let mut stage = Stage::new(rules, answer_length);
    for line in story.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (happens, expected) = line.split_once(" > ").unwrap_or_else(|| panic!("a line has a >: {line}"));
        let step = stage.act(happens.trim());
        let outcome = outcome(&step, &stage.connection, rules.request_length);
        let expected = expected.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(outcome.trim(), expected, "in the line\n{line}\nof{story}");
    }
}

#[test]
fn requests_follow_answers_until_the_load_stops() {
    play(
        KEPT,
        840,
        "
        open                > S 0                                    = SynSent
        < S. 0 ack 1        > P. 1:58 ack 1      Opened              = Waiting
        < . 1 ack 58        >                                        = Waiting
        < P. 1:841 ack 58   > P. 58:115 ack 841  Answered            = Waiting
        stop                >                                        = Waiting
        < P. 841:1681 ack 115 > . 115 ack 1681   Answered            = Idle
        close               > F. 115 ack 1681                        = LastAck
        < F. 1681 ack 116   > . 116 ack 1682     Closed              = Closed
        ",
    );
}

#[test]
fn what_is_lost_of_the_handshake_is_sent_again() {
    play(
        KEPT,
        840,
        "
        open                > S 0                                    = SynSent
        +150                >                                        = SynSent
        +60                 > S 0                Resent              = SynSent
        +390                >                                        = SynSent
        +10                 > S 0                Resent              = SynSent
        < S. 0 ack 1        > P. 1:58 ack 1      Opened              = Waiting
        < S. 0 ack 1        > P. 1:58 ack 1      Duplicate           = Waiting
        < . 1 ack 58        >                                        = Waiting
        < S. 0 ack 1        > . 58 ack 1         Duplicate           = Waiting
        ",
    );
}

#[test]
fn a_lost_request_is_sent_again_and_one_that_arrived_is_not() {
    play(
        KEPT,
        840,
        "
        open                > S 0                                    = SynSent
        < S. 0 ack 1        > P. 1:58 ack 1      Opened              = Waiting
        +210                > P. 1:58 ack 1      Resent              = Waiting
        +410                > P. 1:58 ack 1      Resent              = Waiting
        < . 1 ack 58        >                                        = Waiting
        +5000               >                                        = Waiting
        +15000              > TimedOut                               = Waiting
        give-up             > R 58               TimedOut            = Closed
        < P. 1:841 ack 58   > R 58               Stray               = Closed
        ",
    );
}

#[test]
fn what_comes_behind_a_gap_is_told_and_counted_when_the_gap_is_closed() {
    play(
        KEPT,
        5_840,
        "
        open                > S 0                                    = SynSent
        < S. 0 ack 1        > P. 1:58 ack 1      Opened              = Waiting
        < . 1:1461 ack 58   >                    Begun               = Waiting
        < . 2921:4381 ack 58 > . 58 ack 1461 sack 2921:4381  Gap     = Waiting
        < . 4381:5841 ack 58 > . 58 ack 1461 sack 2921:5841  Gap     = Waiting
        < . 4381:5841 ack 58 > . 58 ack 1461 sack 2921:5841  Gap     = Waiting
        < . 1461:2921 ack 58 > P. 58:115 ack 5841  Answered          = Waiting
        ",
    );
    // A second gap is not kept, and what touches the kept range from before is.
    play(
        KEPT,
        9_000,
        "
        open                > S 0                                    = SynSent
        < S. 0 ack 1        > P. 1:58 ack 1      Opened              = Waiting
        < . 2921:4381 ack 58 > . 58 ack 1 sack 2921:4381     Gap     = Waiting
        < . 7301:8761 ack 58 > . 58 ack 1 sack 2921:4381     Gap     = Waiting
        < . 1461:2921 ack 58 > . 58 ack 1 sack 1461:4381     Gap     = Waiting
        < . 1:1461 ack 58   > . 58 ack 4381      Begun               = Waiting
        ",
    );
}

#[test]
fn segments_that_overlap_count_once() {
    play(
        KEPT,
        3_000,
        "
        open                > S 0                                    = SynSent
        < S. 0 ack 1        > P. 1:58 ack 1      Opened              = Waiting
        < . 1:1001 ack 58   >                    Begun               = Waiting
        < . 501:2001 ack 58 > . 58 ack 2001                          = Waiting
        < . 1:1461 ack 58   > . 58 ack 2001      Duplicate           = Waiting
        < P. 1001:3001 ack 58 > P. 58:115 ack 3001  Answered         = Waiting
        < P. 1541:3001 ack 58 > . 115 ack 3001   Duplicate           = Waiting
        ",
    );
    // Bytes before and behind the kept range.
    play(
        KEPT,
        3_000,
        "
        open                > S 0                                    = SynSent
        < S. 0 ack 1        > P. 1:58 ack 1      Opened              = Waiting
        < . 1001:1501 ack 58 > . 58 ack 1 sack 1001:1501     Gap     = Waiting
        < . 1:1461 ack 58   > . 58 ack 1501      Begun               = Waiting
        < P. 1461:3001 ack 58 > P. 58:115 ack 3001  Answered         = Waiting
        ",
    );
}

#[test]
fn data_beyond_the_window_is_not_kept() {
    play(
        KEPT,
        200_000,
        "
        open                > S 0                                    = SynSent
        < S. 0 ack 1        > P. 1:58 ack 1      Opened              = Waiting
        < . 65536:66996 ack 58 > . 58 ack 1      Gap                 = Waiting
        < . 65535:65536 ack 58 > . 58 ack 1 sack 65535:65536  Gap    = Waiting
        ",
    );
}

#[test]
fn more_bytes_than_the_answer_has_end_the_connection() {
    play(
        KEPT,
        840,
        "
        open                > S 0                                    = SynSent
        < S. 0 ack 1        > P. 1:58 ack 1      Opened              = Waiting
        < P. 1:842 ack 58   > R 58               Excess              = Closed
        ",
    );
}

#[test]
fn a_fin_behind_a_gap_waits_for_the_bytes_before_it() {
    play(
        EACH,
        2_920,
        "
        open                > S 0                                    = SynSent
        < S. 0 ack 1        > P. 1:58 ack 1      Opened              = Waiting
        < FP. 1461:2921 ack 58 > . 58 ack 1 sack 1461:2921   Gap     = Waiting
        < . 1:1461 ack 58   > F. 58 ack 2922     Answered            = LastAck
        < . 2922 ack 59     > S 123              Closed              = SynSent
        ",
    );
    // A FIN alone has no range to be kept in: the server sends it again.
    play(
        EACH,
        840,
        "
        open                > S 0                                    = SynSent
        < S. 0 ack 1        > P. 1:58 ack 1      Opened              = Waiting
        < F. 841 ack 58     > . 58 ack 1         Gap                 = Waiting
        < P. 1:841 ack 58   >                    Answered            = AnswerEnded
        +50                 > . 58 ack 841                           = AnswerEnded
        +5000               >                                        = AnswerEnded
        < F. 841 ack 58     > F. 58 ack 842                          = LastAck
        ",
    );
}

#[test]
fn a_fin_with_the_answer_is_answered_until_it_is_acknowledged() {
    play(
        EACH,
        840,
        "
        open                > S 0                                    = SynSent
        < S. 0 ack 1        > P. 1:58 ack 1      Opened              = Waiting
        < FP. 1:841 ack 58  > F. 58 ack 842      Answered            = LastAck
        < FP. 1:841 ack 58  > F. 58 ack 842      Duplicate           = LastAck
        +210                > F. 58 ack 842      Resent              = LastAck
        < . 842 ack 58      >                                        = LastAck
        < . 842 ack 59      > S 123              Closed              = SynSent
        ",
    );
}

#[test]
fn a_server_may_close_early_or_in_the_middle() {
    play(
        KEPT,
        3_000,
        "
        open                > S 0                                    = SynSent
        < S. 0 ack 1        > P. 1:58 ack 1      Opened              = Waiting
        < . 1:1461 ack 58   >                    Begun               = Waiting
        < F. 1461 ack 58    > F. 58 ack 1462     ClosedEarly         = LastAck
        ",
    );
    // nginx ends its connection after an answer; the request that crosses its FIN is never read.
    play(
        KEPT,
        840,
        "
        open                > S 0                                    = SynSent
        < S. 0 ack 1        > P. 1:58 ack 1      Opened              = Waiting
        < P. 1:841 ack 58   > P. 58:115 ack 841  Answered            = Waiting
        < F. 841 ack 58     > R 115              ClosedEarly         = Closed
        < R 841             >                    Stray               = Closed
        ",
    );
}

#[test]
fn a_server_that_closes_an_idle_connection_is_noticed_and_answered() {
    play(
        OPEN,
        840,
        "
        open                > S 0                                    = SynSent
        < S. 0 ack 1        > P. 1:58 ack 1      Opened              = Waiting
        < P. 1:841 ack 58   > . 58 ack 841       Answered            = Idle
        < P. 1:841 ack 58   > . 58 ack 841       Duplicate           = Idle
        request             > P. 58:115 ack 841                      = Waiting
        < P. 841:1681 ack 115 > . 115 ack 1681   Answered            = Idle
        +60000              >                                        = Idle
        < F. 1681 ack 115   >                                        = Idle
        close               > F. 115 ack 1682                        = LastAck
        +210                > F. 115 ack 1682    Resent              = LastAck
        < . 1682 ack 116    >                    Closed              = Closed
        ",
    );
}

#[test]
fn only_a_reset_with_the_next_number_ends_the_connection() {
    play(
        KEPT,
        3_000,
        "
        open                > S 0                                    = SynSent
        < S. 0 ack 1        > P. 1:58 ack 1      Opened              = Waiting
        < . 1:1461 ack 58   >                    Begun               = Waiting
        < R 1462            > . 58 ack 1461                          = Waiting
        < R 66995           > . 58 ack 1461                          = Waiting
        < R 66996           >                                        = Waiting
        < R 1460            >                                        = Waiting
        < R 1461            >                    Reset               = Closed
        ",
    );
    // A refused connection; the reset of an earlier one is no answer to this one.
    play(
        KEPT,
        840,
        "
        open                > S 0                                    = SynSent
        < R. 0 ack 58       >                    Stray               = SynSent
        < R. 0 ack 1        >                    Reset               = Closed
        ",
    );
}

#[test]
fn a_server_that_remembers_an_earlier_connection_is_reset_and_asked_again() {
    play(
        KEPT,
        840,
        "
        open                > S 0                                    = SynSent
        < . 500 ack -900    > R -900             Stray               = SynSent
        +210                > S 0                Resent              = SynSent
        < S. 0 ack 1        > P. 1:58 ack 1      Opened              = Waiting
        ",
    );
}

#[test]
fn a_segment_for_an_earlier_port_is_refused() {
    play(
        KEPT,
        840,
        "
        open                > S 0                                    = SynSent
        << . 500:1500 ack -900 > R -900          Stray               = SynSent
        << R 500            >                    Stray               = SynSent
        ",
    );
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_is_answered_and_nothing_more() {
    play(
        KEPT,
        840,
        "
        open                > S 0                                    = SynSent
        < S. 0 ack 1        > P. 1:58 ack 1      Opened              = Waiting
        < P. 1:841 ack 59   > . 58 ack 1                             = Waiting
        < P. 1:841 ack 58   > P. 58:115 ack 841  Answered            = Waiting
        ",
    );
}

#[test]
fn both_sides_may_close_at_once() {
    play(
        OPEN,
        840,
        "
        open                > S 0                                    = SynSent
        < S. 0 ack 1        > P. 1:58 ack 1      Opened              = Waiting
        < P. 1:841 ack 58   > . 58 ack 841       Answered            = Idle
        close               > F. 58 ack 841                          = LastAck
        < F. 841 ack 58     > . 59 ack 842                           = LastAck
        < . 842 ack 59      >                    Closed              = Closed
        ",
    );
}

#[test]
fn a_delayed_acknowledgement_is_sent_once() {
    play(
        KEPT,
        3_000,
        "
        open                > S 0                                    = SynSent
        < S. 0 ack 1        > P. 1:58 ack 1      Opened              = Waiting
        < . 1:1461 ack 58   >                    Begun               = Waiting
        +30                 >                                        = Waiting
        +20                 > . 58 ack 1461                          = Waiting
        +50                 >                                        = Waiting
        < . 1461:2921 ack 58 > . 58 ack 2921                         = Waiting
        ",
    );
}
