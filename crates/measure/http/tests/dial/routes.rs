//! The destinations of connections and the requests on them.

use std::{net::TcpListener, os::unix::net::UnixListener, sync::Arc};

use fathom_http::target::{ConnectEndpoints, LookupResult, NextAddress, Resolver, TargetConfig, destinations};
use fathom_model::{Settings, units::Nanos};

fn prepare(options: &[(&str, &str)]) -> Arc<TargetConfig> {
    let settings = options.iter().fold(Settings::default(), |settings, (name, value)| settings.with(name, *value));
    Arc::new(TargetConfig::prepare((&settings, &fathom_sys::policy::Policy::anything()), None, None).unwrap())
}

fn place(resolver: &mut Resolver, route: usize, now: Nanos) -> ConnectEndpoints {
    match resolver.next(route, 0, now) {
        NextAddress::Ready(place) => place,
        NextAddress::LookupPending => panic!("an address is known"),
    }
}

fn shown(place: &ConnectEndpoints) -> (String, Option<String>) {
    (place.address.address().unwrap().to_string(), place.source.map(|source| source.to_string()))
}

#[test]
fn urls_of_one_server_share_a_route_and_keep_their_weights() {
    let config = prepare(&[("url", "3 http://127.0.0.1:1/a\nhttp://127.0.0.1:2/\n2 http://127.0.0.1:1/b?c\n")]);
    let routes: Vec<_> =
        config.upstreams.iter().map(|route| (route.name.as_str(), route.weight, route.requests.len())).collect();
    assert_eq!(routes, [("http://127.0.0.1:1", 5, 2), ("http://127.0.0.1:2", 1, 1)]);
    let mut order = config.upstreams[0].request_order.clone();
    let mut n = [0; 2];
    for _ in 0..500 {
        n[order.next_index()] += 1;
    }
    assert_eq!(n, [300, 200]);
    let request = |idx: usize| String::from_utf8(config.upstreams[0].requests[idx].bytes.clone()).unwrap();
    assert!(request(0).starts_with("GET /a HTTP/1.1\r\nHost: 127.0.0.1:1\r\n"));
    assert!(request(1).starts_with("GET /b?c HTTP/1.1\r\n"));
    assert!(
        config
            .upstreams
            .iter()
            .all(|route| route.is_plain() && route.request_order.is_single() == (route.requests.len() == 1))
    );
}

#[test]
fn connections_go_from_each_source_in_turn() {
    let config = prepare(&[("url", "http://127.0.0.1:9/"), ("source", "127.0.0.8/30,127.0.0.20")]);
    let mut resolver = config.resolver(0, 1).unwrap();
    let sources = [(); 4].map(|()| shown(&place(&mut resolver, 0, Nanos(0))).1.unwrap());
    assert_eq!(sources, ["127.0.0.9", "127.0.0.10", "127.0.0.20", "127.0.0.9"]);
}

#[test]
fn an_address_of_the_role_is_used_for_servers_that_it_can_reach() {
    let [loopback, own] = ["127.0.0.2", "192.0.2.1"].map(|text| text.parse().unwrap());
    let source = |target: &str, own| {
        let settings = Settings::default().with("url", format!("http://{target}/"));
        let config = Arc::new(
            TargetConfig::prepare((&settings, &fathom_sys::policy::Policy::anything()), None, Some(own)).unwrap(),
        );
        place(&mut config.resolver(0, 1).unwrap(), 0, Nanos(0)).source
    };
    assert_eq!(source("192.0.2.9", own), Some(own));
    assert_eq!(source("127.0.0.1", own), None);
    assert_eq!(source("192.0.2.9", loopback), None);
    assert_eq!(source("[2001:db8::1]", own), None);
}

#[test]
fn connections_go_where_they_are_sent_whatever_the_url_says() {
    let config = prepare(&[("url", "http://a.invalid/x"), ("connect-to", "127.0.0.1:8080")]);
    let mut resolver = config.resolver(0, 1).unwrap();
    assert_eq!(shown(&place(&mut resolver, 0, Nanos(0))), ("127.0.0.1:8080".to_owned(), None));
    assert!(config.upstreams[0].requests[0].bytes.starts_with(b"GET /x HTTP/1.1\r\nHost: a.invalid\r\n"));
    let config = prepare(&[("url", "http://a.invalid/x"), ("proxy", "http://me:pw@127.0.0.1:3128")]);
    let mut resolver = config.resolver(0, 1).unwrap();
    assert_eq!(shown(&place(&mut resolver, 0, Nanos(0))).0, "127.0.0.1:3128");
    let request = String::from_utf8(config.upstreams[0].requests[0].bytes.clone()).unwrap();
    assert!(request.starts_with("GET http://a.invalid/x HTTP/1.1\r\nHost: a.invalid\r\n"), "{request}");
    assert!(request.contains("\r\nProxy-Authorization: Basic bWU6cHc=\r\n"), "{request}");
}

#[test]
fn who_may_be_sent_to_is_asked_of_the_place_that_packets_go_to() {
    let of = |options: &[(&str, &str)]| {
        let settings = options.iter().fold(Settings::default(), |settings, (name, value)| settings.with(name, *value));
        let names = destinations(&settings).unwrap();
        names.iter().map(|name| format!("{} {}", name.host, name.port.unwrap())).collect::<Vec<_>>()
    };
    let urls = ("url", "http://a/x\n2 https://b/y\nhttp://a/z");
    assert_eq!(of(&[urls]), ["a 80", "b 443"]);
    assert_eq!(of(&[urls, ("connect-to", "[::1]:8")]), ["::1 8"]);
    assert_eq!(of(&[urls, ("proxy", "http://me:pw@p")]), ["p 80"]);
    assert!(of(&[urls, ("unix", "/x")]).is_empty() && of(&[]).is_empty());
}

#[test]
fn a_unix_socket_is_connected_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server");
    let listener = UnixListener::bind(&path).unwrap();
    let config = prepare(&[("url", "http://a.invalid/"), ("unix", path.to_str().unwrap())]);
    let place = place(&mut config.resolver(0, 1).unwrap(), 0, Nanos(0));
    fathom_sys::socket::connect_begin(&place.open_socket().unwrap(), &place.address).unwrap();
    listener.accept().unwrap();
}

/// The next result, once the waker has fired.
fn answer(resolver: &mut Resolver, waker: &fathom_sys::socket::Socket, now: Nanos) -> LookupResult {
    loop {
        waker.set_nonblocking(false).unwrap();
        if let Some(answer) = resolver.next_lookup(now) {
            return answer;
        }
        fathom_sys::socket::recv(waker, &mut [0], fathom_sys::socket::Wait::Block).unwrap();
    }
}

#[test]
fn a_name_is_looked_up_for_each_connection_if_that_is_wanted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let url = format!("http://localhost:{port}/");
    let config = prepare(&[("url", &url), ("dns", "connection"), ("ip", "4")]);
    let mut resolver = config.resolver(0, 1).unwrap();
    let waker = resolver.take_waker().unwrap();
    for token in [7, 8] {
        assert!(matches!(resolver.next(0, token, Nanos(0)), NextAddress::LookupPending));
        match answer(&mut resolver, &waker, Nanos(0)) {
            LookupResult::Connection { token: of, endpoints: place, took } => {
                assert_eq!((of, shown(&place.unwrap()).0), (token, format!("127.0.0.1:{port}")));
                assert!(took > Nanos::ZERO);
            }
            other @ LookupResult::Route { .. } => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_address_that_has_become_old_is_used_until_the_new_one_is_there() {
    let config = prepare(&[("url", "http://localhost:9/"), ("dns", "30s"), ("ip", "4")]);
    let mut resolver = config.resolver(0, 1).unwrap();
    let waker = resolver.take_waker().unwrap();
    let at = Nanos::from_secs;
    for second in [0, 29, 30, 31] {
        assert_eq!(shown(&place(&mut resolver, 0, at(second))).0, "127.0.0.1:9");
    }
    assert!(matches!(answer(&mut resolver, &waker, at(32)), LookupResult::Route { outcome: Ok(()), .. }));
    place(&mut resolver, 0, at(61));
    assert!(resolver.next_lookup(at(61)).is_none(), "the new one is good for another 30 s");
    place(&mut resolver, 0, at(62));
    assert!(matches!(answer(&mut resolver, &waker, at(63)), LookupResult::Route { outcome: Ok(()), .. }));
}

#[test]
fn an_address_needs_no_lookup_whatever_is_wanted() {
    let config = prepare(&[("url", "http://127.0.0.1:9/"), ("dns", "connection")]);
    let mut resolver = config.resolver(0, 1).unwrap();
    assert!(resolver.take_waker().is_none());
    place(&mut resolver, 0, Nanos(0));
}
