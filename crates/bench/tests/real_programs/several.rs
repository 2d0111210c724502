//! Two engines in one daemon: the programs of other tests, the spread over both, and what crosses between them.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::fixture::{Arm, Fixture, SOON, finish, script, wait_for_line, wait_until, with_several_engines};
use crate::{background, bind, extension, iperf, local, many, python, redis, shares, syn_flood, web};

/// Tests of others, with two engines.
macro_rules! again {
    ($($module:ident::$name:ident),* $(,)?) => {
        $(#[test] fn $name() { with_several_engines(|| $module::$name(Arm::Paths)); })*
    };
}

again!(
    web::nginx_serves_wrk,
    web::nginx_stands_between,
    web::nginx_reloads_under_load,
    web::apache_serves,
    web::curl_downloads_and_uploads,
    iperf::iperf3_as_server,
    iperf::iperf3_as_client,
    redis::redis_serves,
    bind::named_answers,
    python::datagrams_of_every_size_echo,
    python::asyncio_client_asks,
    local::nginx_asks_nginx_and_redis,
    local::datagrams_come_back,
    many::a_process_has_nineteen_thousand_connections,
);

/// The same of those that are about the daemon.
macro_rules! again_with_a_daemon {
    ($($module:ident::$name:ident),* $(,)?) => {
        $(#[test] fn $name() { with_several_engines($module::$name); })*
    };
}

again_with_a_daemon!(
    extension::a_thread_is_raised_while_it_serves_an_important_connection,
    extension::an_event_driven_thread_stays_raised_from_accepting_to_answering,
    extension::threads_get_back_what_they_had_when_the_daemon_is_killed,
    shares::threads_of_weighted_classes_are_in_groups_of_that_weight,
    background::a_background_program_stays_so_in_an_important_class_and_with_extended_paths,
    background::foreground_displaces_what_background_holds,
    syn_flood::a_flood_of_syns_leaves_connections_and_options,
);

/// Hosts, and a daemon with an engine on each of cores 0 and 1.
pub(crate) fn fixture() -> Fixture {
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    with_several_engines(|| fixture.start_daemon());
    fixture
}

/// A counter of both engines.
fn of_both(fixture: &Fixture, counter: &str) -> [u64; 2] {
    let stat = fixture.ask("stat");
    [0, 1].map(|engine| stat["engines"][engine][counter].as_u64().unwrap_or_else(|| panic!("{stat}")))
}

/// Connections of many ports of a peer are served by both, and one program accepts them all; what is closed with the
/// listening socket is reset in both.
#[test]
fn connections_are_spread_and_accepted_by_one() {
    let fixture = fixture();
    let listen = format!("{}:7000", fixture.address());
    let mut server = fixture.start("python3", &[&script("several.py"), "accept", &listen]);
    wait_for_line(&mut server, "ready");
    let before = of_both(&fixture, "paths-made");
    let text = fixture.run_peer("python3", &[&script("several.py"), "connect", &listen], SOON);
    assert!(text.contains("echoed 64"), "{text}");
    let after = of_both(&fixture, "paths-made");
    let [one, other] = [0, 1].map(|engine| after[engine] - before[engine]);
    assert!(one + other == 64 && one >= 8 && other >= 8, "{one} and {other}");
    // Nobody accepts any more: what waits in the queue ends with the listening socket.
    let text = fixture.run_peer("python3", &[&script("several.py"), "wait_for_reset", &listen], SOON);
    assert!(text.contains("reset 32"), "{text}");
    finish(&mut server, SOON);
    let gone = || {
        let paths = fixture.paths_now();
        !paths.iter().any(|path| path["state"] == "LISTEN" || path["state"] == "ESTABLISHED")
    };
    wait_until("both engines let go", SOON, gone);
}

/// A connection from a port that the rule gives to the other engine, a listener at a port of connections' own, and UDP
/// sockets of both engines that talk to each other by the machine's own addresses.
#[test]
fn what_belongs_to_the_other_engine_crosses() {
    let fixture = fixture();
    let address = fixture.address().to_string();
    let peer = SocketAddrV4::new(fixture.peer_address(), 7001);
    let mut echo = fixture.start_peer("python3", &[&script("several.py"), "accept", &peer.to_string()]);
    wait_for_line(&mut echo, "ready");
    for port in [900, 901, 902, 903] {
        let own = SocketAddrV4::new(fixture.address(), port).to_string();
        let text = fixture.run("python3", &[&script("several.py"), "bound", &own, &peer.to_string()], SOON);
        assert!(text.contains("echoed"), "from port {port}: {text}");
    }
    for port in [40_000, 40_001] {
        let listen = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port).to_string();
        let mut server = fixture.start("python3", &[&script("several.py"), "accept", &listen]);
        wait_for_line(&mut server, "ready");
        let to = SocketAddrV4::new(fixture.address(), port).to_string();
        let text = fixture.run_peer("python3", &[&script("several.py"), "connect", &to], SOON);
        assert!(text.contains("echoed 64"), "to port {port}: {text}");
        let text = fixture.run("python3", &[&script("several.py"), "connect", &to], SOON);
        assert!(text.contains("echoed 64"), "from this machine to port {port}: {text}");
    }
    let text = fixture.run("python3", &[&script("several.py"), "datagrams", &address], SOON);
    assert!(text.contains("echoed"), "{text}");
    let crossed = of_both(&fixture, "handed-over");
    assert!(crossed.iter().all(|&crossed| crossed > 0), "{crossed:?}");
}

/// A server that is killed takes nothing with it: connections of both engines end, and all memory returns.
#[test]
fn a_killed_server_is_forgotten_by_both() {
    let fixture = fixture();
    let listen = format!("{}:7002", fixture.address());
    let mut server = fixture.start("python3", &[&script("several.py"), "accept", &listen]);
    wait_for_line(&mut server, "ready");
    let mut client = fixture.start_peer("python3", &[&script("several.py"), "hold", &listen]);
    wait_for_line(&mut client, "held 64");
    server.kill();
    let text = finish(&mut client, SOON);
    assert!(text.contains("ended 64"), "{text}");
    let gone = || fixture.ask("stat")["engine"]["ring-bytes"] == 0;
    wait_until("its memory returns", SOON, gone);
}
