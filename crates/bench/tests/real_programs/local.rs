//! Programs on paths of one machine among themselves: an nginx that asks another and redis, curl, and datagrams.

use std::fs;

use crate::fixture::{Arm, Fixture, SOON, assert_same, script, twins, wait_for_line, wait_until, write_file};
use crate::nginx::{self, Side};

twins!(nginx_asks_nginx_and_redis, datagrams_come_back);

/// Client and server side at once: curl here asks an nginx here, which asks another here.
pub(crate) fn nginx_asks_nginx_and_redis(arm: Arm) {
    let fixture = Fixture::new(arm);
    let files = fixture.file("files");
    fs::create_dir_all(&files).unwrap();
    write_file(&files.join("large"), 64);
    let (ours, directory) = (fixture.address().to_string(), fixture.file("").display().to_string());
    let redis =
        ["--port", "6379", "--bind", &ours, "--dir", &directory, "--save", "", "--protected-mode", "no"];
    let mut redis = fixture.start("redis-server", &redis);
    wait_for_line(&mut redis, "Ready to accept connections");
    let server = format!(
        "listen 80; location /files/ {{ proxy_pass http://{ours}:8080/; }}
        location /loopback/ {{ proxy_pass http://127.0.0.1:8080/; }} }}
        server {{ listen 8080; root {};",
        files.display()
    );
    let _nginx = nginx::start_with(&fixture, Side::UnderTest, &server, 80);
    let fetched = fixture.file("fetched");
    let to = fetched.display().to_string();
    for way in ["files", "loopback"] {
        let url = format!("http://{ours}/{way}/large");
        fixture.run("curl", &["-sS", "--fail", "--max-time", "15", "-o", &to, &url], SOON);
        assert_same(&files.join("large"), &fetched);
        // From another host through the same proxy.
        fixture.run_peer("curl", &["-sS", "--fail", "--max-time", "15", "-o", &to, &url], SOON);
        assert_same(&files.join("large"), &fetched);
    }
    let asked = ["-h", &ours, "-n", "2000", "-c", "20", "-t", "ping,set,get", "--csv"];
    let text = fixture.run("redis-benchmark", &asked, SOON);
    assert!(text.contains("\"GET\""), "{text}");
    if arm == Arm::Paths {
        let stat = fixture.ask("stat");
        let sent = stat["devices"]["local"]["tx-bytes"].as_u64().unwrap_or(0);
        assert!(sent > 4 * (64 << 20), "{}", stat["devices"]);
    }
}

/// The script checks what it gets; its twin shows that it is right.
pub(crate) fn datagrams_come_back(arm: Arm) {
    let fixture = Fixture::new(arm);
    let (program, ours, peer) = (script("local.py"), fixture.address().to_string(), fixture.peer_address());
    let mut far = fixture.start_peer("python3", &[&script("echo.py"), &peer.to_string(), "7"]);
    wait_for_line(&mut far, "ready");
    let mut echo = fixture.start("python3", &[&script("echo.py"), "0.0.0.0", "7"]);
    wait_for_line(&mut echo, "ready");
    let text = fixture.run("python3", &[&program, &ours, &peer.to_string(), "7"], SOON);
    assert!(text.trim_end().ends_with("done"), "{text}");
    echo.kill();
    far.kill();
}

/// What listens on the kernel's loopback is still reached by programs on paths, and what is not listened at is refused.
#[test]
fn loopback_is_the_kernels_but_for_listeners_on_paths() {
    let fixture = Fixture::new(Arm::Paths);
    let text = fixture.run("python3", &[&script("loopback.py"), &fixture.address().to_string()], SOON);
    assert!(text.trim_end().ends_with("done"), "{text}");
}

/// Several addresses of a device and a route, from the file and changed while the daemon runs.
#[test]
fn several_addresses_and_routes() {
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    fixture.run_peer("ip", &["addr", "add", "10.99.0.2/24", "dev", "eth0"], SOON);
    fixture.run_peer("ip", &["addr", "add", "10.98.0.1/32", "dev", "lo"], SOON);
    let (ours, peer) = (fixture.address().to_string(), fixture.peer_address().to_string());
    let file = |others: &str, routes: &str| {
        format!("[[device]]\nname = \"eth0\"\naddress = [\"{ours}/24\"{others}]\n{routes}")
    };
    let route = format!("[[route]]\nto = \"10.98.0.0/24\"\nvia = \"{peer}\"\n");
    fixture.start_daemon_from(&file(", \"10.99.0.1/24\"", &route));
    let files = fixture.file("files");
    fs::create_dir_all(&files).unwrap();
    fs::write(files.join("name"), "it").unwrap();
    let server = format!("listen 80; root {};", files.display());
    let _nginx = nginx::start_with(&fixture, Side::UnderTest, &server, 80);
    let fetch = |address: &str| {
        let url = format!("http://{address}/name");
        fixture.run_peer("curl", &["-sS", "--fail", "--max-time", "10", &url], SOON)
    };
    assert_eq!((fetch(&ours).trim(), fetch("10.99.0.1").trim()), ("it", "it"));
    // At each address one, so that answers come from where was asked.
    let mut echoes = ["10.99.0.2", "10.98.0.1"]
        .map(|address| fixture.start_peer("python3", &[&script("echo.py"), address, "7"]));
    for echo in &mut echoes {
        wait_for_line(echo, "ready");
    }
    let ask = |address: &str| fixture.run("python3", &[&script("ask.py"), address, "7"], SOON);
    assert_eq!(ask("10.99.0.2").trim(), "10.99.0.1", "from the address on that network");
    assert_eq!(ask("10.98.0.1").trim(), ours, "by the route");
    // Another route and another address, live.
    let refuse = "[[route]]\nto = \"10.98.0.0/24\"\ntype = \"unreachable\"\n";
    fixture.rewrite(&file(", \"10.99.0.7/24\"", refuse));
    let control = fixture.paths().unwrap().1.control().display().to_string();
    let tool = crate::fixture::scoutline().display().to_string();
    let text = fixture.run_peer(&tool, &["reload", "--control", &control], SOON);
    assert!(text.contains("route") && text.contains("address"), "{text}");
    assert_eq!(fetch("10.99.0.7").trim(), "it");
    assert!(ask("10.98.0.1").contains("No route to host"));
    let stat = fixture.ask("stat");
    let routes = stat["routes"].as_array().unwrap();
    assert!(routes.iter().any(|route| route["type"] == "unreachable"), "{routes:?}");
    wait_until("the old address is gone", SOON, || {
        let url = "http://10.99.0.1/name";
        let mut curl = fixture.start_peer("curl", &["-sS", "--fail", "--max-time", "1", url]);
        curl.finish(std::time::Instant::now() + SOON).is_err()
    });
}

/// A neighbour that makes and reads tagged frames itself: the network with the tag answers it, and no other.
#[test]
fn a_network_with_a_tag() {
    let mut fixture = Fixture::without_daemon(Arm::Paths);
    let ours = fixture.address();
    fixture.start_daemon_from(&format!(
        "[[device]]\nname = \"eth0\"\naddress = \"{ours}/24\"\n[[device]]\nname = \"office\"\nparent = \"eth0\"\n\
         vlan = 7\nvlan_priority = 5\naddress = \"10.78.0.1/24\"\n"
    ));
    let text =
        fixture.run_peer("python3", &[&script("vlan.py"), "eth0", "7", "10.78.0.2", "10.78.0.1"], SOON);
    assert!(text.trim_end().ends_with("done"), "{text}");
    let stat = fixture.ask("stat");
    assert!(stat["devices"]["office"]["tx-packets"].as_u64() >= Some(3), "{}", stat["devices"]);
}
