//! Rows of the real iperf 2.1.8, with the numbers behind them.

use fathom_interop::iperf2::{ConnectionFacts, FlowCounts, FlowGroup, TcpState, TransitTimes};
use fathom_model::units::Bytes;

use super::*;
use crate::iperf2::units::NumberFormat;

fn style(side: ReportSide) -> DisplayStyle {
    DisplayStyle {
        side,
        release: TextRelease::V21,
        format: NumberFormat::default(),
        is_enhanced: false,
        is_csv: false,
        is_sum_only: false,
    }
}

fn flow(id: u32, protocol: TransportProtocol, role: FlowRole) -> FlowInfo {
    FlowInfo {
        id,
        group: FlowGroup { id: 1, n_flows: 1 },
        role,
        protocol,
        mode: TestMode::Forward,
        is_back: false,
        local: "127.0.0.1:60194".parse().unwrap(),
        remote: "127.0.0.1:6200".parse().unwrap(),
        has_trip_times: false,
        length: 131_072,
        tos: 0,
        peer_version: (0, 0),
        facts: None,
        began: Nanos::ZERO,
    }
}

fn outcome(secs: f64, counts: FlowCounts) -> FlowOutcome {
    FlowOutcome { span: Nanos::from_secs_f64(secs), counts }
}

#[test]
fn a_flow_is_shown_with_its_addresses_and_what_the_kernel_knew() {
    let mut text = TextReport::new(style(ReportSide::Client));
    let facts = ConnectionFacts {
        cwnd: Bytes(327_410),
        mss: Bytes(32_741),
        rtt: Nanos::from_micros(32),
        connect_time: Some(Nanos::from_micros(80)),
    };
    let mut flow = flow(1, TransportProtocol::Tcp, FlowRole::Sender);
    flow.facts = Some(facts);
    assert_eq!(
        text.flow(&flow),
        ["[  1] local 127.0.0.1 port 60194 connected with 127.0.0.1 port 6200 (icwnd/mss/irtt=319/32741/32)"]
    );
    let mut old = TextReport::new(DisplayStyle { release: TextRelease::V20, ..style(ReportSide::Client) });
    assert_eq!(old.flow(&flow), ["[  3] local 127.0.0.1 port 60194 connected with 127.0.0.1 port 6200"]);
}

#[test]
fn a_row_has_the_columns_of_the_real_one() {
    let mut text = TextReport::new(style(ReportSide::Client));
    let tcp = flow(1, TransportProtocol::Tcp, FlowRole::Sender);
    let counts = FlowCounts { bytes: 26_345_532, ..FlowCounts::default() };
    assert_eq!(
        text.end(&tcp, &outcome(2.0197, counts)),
        ["[ ID] Interval       Transfer     Bandwidth", "[  1] 0.0000-2.0197 sec  25.1 MBytes   104 Mbits/sec"]
    );
    let mut old = TextReport::new(DisplayStyle { release: TextRelease::V20, ..style(ReportSide::Client) });
    assert_eq!(old.end(&tcp, &outcome(2.0197, counts))[1], "[  3]  0.0- 2.0 sec  25.1 MBytes   104 Mbits/sec");
}

#[test]
fn the_rows_of_datagrams_have_loss_and_jitter() {
    let mut text = TextReport::new(style(ReportSide::Client));
    let udp = flow(1, TransportProtocol::Udp, FlowRole::Sender);
    let counts = FlowCounts { bytes: 182 * 1470, datagrams: 182, ..FlowCounts::default() };
    let lines = text.end(&udp, &outcome(2.0189, counts));
    assert_eq!(lines[1..], ["[  1] 0.0000-2.0189 sec   261 KBytes  1.06 Mbits/sec", "[  1] Sent 182 datagrams"]);
    let report = ServerReport {
        bytes: 181 * 1470,
        span: Nanos::from_micros(2_018_900),
        lost: 1,
        datagrams: 182,
        jitter: Nanos::from_micros(2),
        ..ServerReport::default()
    };
    assert_eq!(
        text.server_report(&udp, &report),
        [
            "[  1] Server Report:",
            "[ ID] Interval       Transfer     Bandwidth        Jitter   Lost/Total Datagrams",
            "[  1] 0.0000-2.0189 sec   260 KBytes  1.05 Mbits/sec   0.002 ms 1/182 (0.55%)",
        ]
    );
    let mut old = TextReport::new(DisplayStyle { release: TextRelease::V20, ..style(ReportSide::Client) });
    assert_eq!(
        old.server_report(&udp, &report),
        ["[  3] Server Report:", "[  3]  0.0- 2.0 sec   260 KBytes  1.05 Mbits/sec   0.002 ms    1/  182 (0.55%)"]
    );
}

#[test]
fn enhanced_rows_have_the_columns_of_their_release() {
    let tcp = Some(TcpState {
        retransmits: 1,
        cwnd: Bytes(916_748),
        rtt: Nanos::from_micros(3714),
        rttvar: Nanos::from_micros(3638),
        mss: Bytes(32_741),
        in_flight: 2,
        ..TcpState::default()
    });
    let counts = FlowCounts { bytes: 13_107_200, calls: 100, tcp, ..FlowCounts::default() };
    let row = |release| {
        let style = DisplayStyle { release, is_enhanced: true, ..style(ReportSide::Client) };
        let mut text = TextReport::new(style);
        text.end(&flow(1, TransportProtocol::Tcp, FlowRole::Sender), &outcome(1.0, counts)).pop().unwrap()
    };
    assert_eq!(
        row(TextRelease::V21),
        "[  1] 0.0000-1.0000 sec  12.5 MBytes   105 Mbits/sec  100/0          1      895K/3714(3638) us  3529"
    );
    assert_eq!(
        row(TextRelease::V22),
        "[  1] 0.0000-1.0000 sec  12.5 MBytes   105 Mbits/sec  100/0         1       63K(2)/895K(28)/3714(3638) us  3529"
    );
}

#[test]
fn times_of_bursts_and_datagrams_are_those_of_the_real_one() {
    let mut text = TextReport::new(style(ReportSide::Server));
    let mut tcp = flow(1, TransportProtocol::Tcp, FlowRole::Receiver);
    tcp.has_trip_times = true;
    let times = TransitTimes {
        n: 99,
        min: Nanos::from_micros(101),
        max: Nanos::from_micros(4143),
        // The mean is shown as 0.294 ms.
        sum: Nanos(293_996) * 99,
        squares_us: 680.0 * 680.0 * 98.0,
    };
    let counts = FlowCounts {
        bytes: 99 * 131_072,
        calls: 102,
        read_bins: [3, 0, 0, 0, 0, 0, 0, 99],
        transit: Some(times),
        ..FlowCounts::default()
    };
    assert_eq!(
        text.end(&tcp, &outcome(1.0, counts))[1],
        "[  1] 0.0000-1.0000 sec  12.4 MBytes   104 Mbits/sec  0.294/0.101/4.143/0.680 ms (99/131072) 3.73 KByte 44137  \
         102=3:0:0:0:0:0:0:99"
    );
}

#[test]
fn parallel_flows_are_summed_once_all_have_reported() {
    let mut text = TextReport::new(style(ReportSide::Client));
    let flows = [1, 2].map(|id| {
        let mut flow = flow(id, TransportProtocol::Tcp, FlowRole::Sender);
        flow.group.n_flows = 2;
        flow
    });
    for flow in &flows {
        text.flow(flow);
    }
    let counts = FlowCounts { bytes: 13_107_200, ..FlowCounts::default() };
    let interval = FlowInterval { start: Nanos::ZERO, end: Nanos::from_secs(1), counts, is_last: false };
    assert_eq!(text.interval(&flows[0], &interval).len(), 2, "a header and a row");
    let lines = text.interval(&flows[1], &interval);
    assert_eq!(lines[1], "[SUM] 0.0000-1.0000 sec  25.0 MBytes   210 Mbits/sec");
    assert_eq!(text.end(&flows[0], &outcome(1.5, counts)).len(), 1);
    let last = text.end(&flows[1], &outcome(1.5, counts));
    assert_eq!(last.last().unwrap(), "[SUM] 0.0000-1.5000 sec  25.0 MBytes   140 Mbits/sec");
}

#[test]
fn values_are_separated_by_commas_with_the_client_first() {
    let mut text = TextReport::new(DisplayStyle { is_csv: true, ..style(ReportSide::Server) });
    let counts = FlowCounts { bytes: 13_238_332, ..FlowCounts::default() };
    let lines = text.end(&flow(1, TransportProtocol::Tcp, FlowRole::Receiver), &outcome(1.0, counts));
    let (time, rest) = lines[0].split_once(',').unwrap();
    assert_eq!((time.len(), rest), (14, "127.0.0.1,6200,127.0.0.1,60194,1,0.0-1.0,13238332,105906656"));
}

#[test]
fn what_runs_against_the_test_has_an_asterisk() {
    let mut reverse = flow(1, TransportProtocol::Tcp, FlowRole::Receiver);
    (reverse.mode, reverse.is_back) = (TestMode::Reverse, true);
    let mut text = TextReport::new(style(ReportSide::Client));
    assert!(text.flow(&reverse)[0].starts_with("[  1] local") && text.row_id(&reverse) == "[ *1] ");
    let mut back = flow(12, TransportProtocol::Tcp, FlowRole::Sender);
    (back.mode, back.is_back) = (TestMode::Dual, true);
    let mut text = TextReport::new(style(ReportSide::Server));
    assert_eq!(text.row_id(&back), "[*12] ");
    assert!(text.flow(&back)[0].ends_with("port 6200 (reverse)"));
}

#[test]
fn the_version_of_a_peer_is_read_from_two_words() {
    assert_eq!(peer_version((0x0002_0001, 0x0008_0003)), " (peer 2.1.8)");
    assert_eq!(peer_version((0x0002_0002, 0x0001_0000)), " (peer 2.2.1-dev)");
    assert_eq!(peer_version((0, 0)), "");
}
