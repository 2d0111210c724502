use std::path::Path;

use super::{AnyNetwork, Config, Driver, Size};

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("s.toml")).map_err(|error| error.to_string())
}

const DEVICE: &str = "[[device]]\nname = \"eth1\"\naddress = \"10.0.0.1/24\"\n";

/// The error of a configuration that has a sound device before `rest` (which begins at line 4).
fn error(rest: &str) -> String {
    let error = parse(&format!("{DEVICE}{rest}")).expect_err(rest);
    assert!(!error.contains('\n'), "one line: {error}");
    error
}

#[test]
fn a_device_is_enough() {
    let config = parse(DEVICE).unwrap();
    assert_eq!(config.device[0].driver, Driver::Packet);
    assert_eq!(config.engine.receive_buffer.get_ref(), &Size(256 << 10));
    assert_eq!(config.control.socket.get_ref().to_str(), Some(super::DEFAULT_CONTROL));
    assert!(config.class.is_empty());
}

#[test]
fn everything_can_be_said() {
    let config = parse(
        r#"
        [[device]]
        name = "eth1"
        driver = "packet"
        mode = "dedicated"
        address = "10.0.0.1/24"
        gateway = "10.0.0.254"
        packet = { ring_frames = 240, offload = true, qdisc_bypass = false }
        [engine]
        cpu = 1
        realtime = "on"
        realtime_priority = 45
        spin_us = 0
        receive_buffer = 65536
        send_buffer = "1MiB"
        max_paths = 1000
        max_buffer_memory = "1GiB"
        time_wait_s = 1
        queue_packets = 64
        measure = true
        [tcp]
        congestion = "bbr"
        ecn = "offer"
        pacing = true
        fast_open = "both"
        [linux]
        priority = 1
        quantum_us = 1000
        interval_us = 100
        [system]
        priority = 4
        [control]
        socket = "/tmp/c.sock"
        group = "root"
        mode = "0600"
        [[class]]
        name = "preferred"
        priority = 2
        listen_priority = 5
        source = ["10.0.0.7/32", "10.1.0.0/16", "10.0.0.9"]
        destination = ["10.0.0.1"]
        local_port = [80, "8000-8100"]
        remote_port = ["1024-65535"]
        dscp = [46, "CS1", "LE", "AF41"]
        interface = ["eth1"]
        program = ["nginx"]
        user = ["root", 33]
        cgroup = ["/system.slice/nginx.service"]
        queue_packets = 32
        memory = "64MiB"
        connections = 100
        mark = "AF41"
        extend = false
        [[class]]
        name = "shop"
        tls_name = ["shop.example.org", "*.example.net"]
        [[class]]
        name = "api"
        url = ["/api/", "/admin"]
        host = ["*.example.org", "10.0.0.1"]
        header = ["X-Tier: gold", "Authorization"]
        cookie = ["session", "tier=gold"]
        [[class]]
        name = "backup"
        idle = true
        [[permission]]
        program = ["nginx"]
        user = ["root"]
        cgroup = ["/system.slice"]
        priority = 5
        deadline_us = 500
        weight = 300
        class = ["shop", "default"]
        extend = true
        "#,
    )
    .unwrap();
    let class = &config.class[0];
    assert_eq!(class.local_port[1].0, 8000..=8100);
    assert_eq!(class.source[2], AnyNetwork { address: [10, 0, 0, 9].into(), prefix: 32 });
    assert!(config.class[3].matches_everything() && !config.class[1].matches_everything());
    assert_eq!(config.tcp.fast_open, super::tcp::FastOpen::Both);
    assert_eq!(config.control.mode.0, 0o600);
    assert_eq!(config.control.group_id().unwrap(), Some(0));
}

#[test]
fn unknown_keys_are_named_with_line_and_suggestion() {
    assert_eq!(error("[engine]\nspin_su = 3\n"), "s.toml:5: unknown key `spin_su`; did you mean `spin_us`?");
    assert_eq!(error("[engin]\n"), "s.toml:4: unknown key `engin`; did you mean `engine`?");
    let far = error("[[class]]\nname = \"a\"\ncolour = 1\n");
    assert!(
        far.starts_with("s.toml:6: unknown key `colour`; known keys here: name, priority, idle"),
        "{far}"
    );
    let driver =
        parse("[[device]]\nname = \"a\"\naddress = \"10.0.0.1/8\"\ndriver = \"paket\"\n").unwrap_err();
    assert_eq!(driver, "s.toml:4: driver: unknown value `paket`; did you mean `packet`?");
}

#[test]
fn each_wrong_value_is_one_line_with_the_remedy() {
    let cases = [
        (
            "[engine]\nreceive_buffer = \"300KiB\"",
            "s.toml:5: receive_buffer = \"300KiB\" must be a power of two, such as \"512KiB\"",
        ),
        ("[engine]\nsend_buffer = \"lots\"", "`lots` is no size; write it like"),
        ("[engine]\nspin_us = 20000", "s.toml:5: spin_us = 20000 is out of range; it must be 0 to 10000"),
        (
            "[engine]\nforward_pause_us = 1001",
            "s.toml:5: forward_pause_us = 1001 is out of range; it must be 0 to 1000",
        ),
        ("[engine]\ncpu = -1", "s.toml:5: cpu = -1 is wrong; it must be the number of a core such as 0"),
        ("[[class]]\nname = \"a\"\nsource = []", "s.toml:6: source: `[]` holds for everything; say what"),
        ("[[permission]]\nuser = []\npriority = 1", "s.toml:5: user: `[]` holds for everything; say what"),
        (
            "[[class]]\nname = \"a\"\nmemory = 0",
            "s.toml:6: memory = 0 is out of range; it must be 4KiB to 1024GiB",
        ),
        (
            "[scheduler]\nedf_memory = 9",
            "s.toml:5: edf_memory = 9 is out of range; it must be 4KiB to 1024GiB",
        ),
        ("[engine]\ncpu = []", "s.toml:5: cpu lists 0 cores; it must be 1 to 4"),
        ("[engine]\ncpu = [1, 0, 1]", "s.toml:5: core 1 is there twice; each engine needs one of its own"),
        ("[engine]\nrealtime = \"maybe\"", "known values: auto, on, off"),
        ("[engine]\nrealtime_priority = 0", "must be 1 to 99"),
        ("[engine]\nspin_us = 1\nspin_us = 2", "duplicate key"),
        (
            "[[class]]\nname = \"a\"\npriority = 64",
            "s.toml:6: priority = 64 is out of range; it must be 0 to 63",
        ),
        (
            "[[permission]]\ndeadline_us = 99",
            "s.toml:5: deadline_us = 99 is out of range; it must be 100 to 60000000",
        ),
        ("[[permission]]\nweight = 0", "s.toml:5: weight = 0 is out of range; it must be 1 to 10000"),
        ("[[class]]\npriority = 1", "s.toml:4: [[class]] without `name`; give it one"),
        (
            "[[class]]\nname = \"a\"\nidle = true\npriority = 1",
            "class `a` is idle and has a priority; remove one",
        ),
        (
            "[[class]]\nname = \"a\"\nsource = [\"10.0.0.1/33\"]",
            "s.toml:6: source: `10.0.0.1/33`: the length of the prefix",
        ),
        ("[[class]]\nname = \"a\"\nsource = [\"ten\"]", "`ten` is no IPv4 network"),
        ("[[class]]\nname = \"a\"\nlocal_port = [0]", "local_port: 0 is out of range; it must be 1 to 65535"),
        ("[[class]]\nname = \"a\"\nlocal_port = [\"90-80\"]", "write \"80-90\""),
        ("[[class]]\nname = \"a\"\nlocal_port = [\"http\"]", "`http` is no port or range of ports"),
        ("[[class]]\nname = \"a\"\nprogram = [\"/usr/sbin/nginx\"]", "give the last part of its path"),
        (
            "[[class]]\nname = \"a\"\nsource = [\"1.2.3.4\"]\n[[class]]\nname = \"a\"",
            "s.toml:8: class `a` is there twice",
        ),
        (
            "[[class]]\nname = \"a\"\n[[class]]\nname = \"b\"",
            "s.toml:7: class `b` is never reached: `a` before it takes everything",
        ),
        ("[[class]]\nname = \"default\"\nlocal_port = [1]", "takes what no other takes"),
        ("[[class]]\nname = \"a\"\ndestination = [\"us\"]", "s.toml:6: destination: `us` is no IPv4 network"),
        (
            "[[class]]\nname = \"a\"\ndscp = [\"AF44\"]",
            "s.toml:6: dscp: `AF44` is no DSCP; write 0 to 63 or a name",
        ),
        ("[[class]]\nname = \"a\"\ndscp = [64]", "s.toml:6: dscp: 64 is out of range; it must be 0 to 63"),
        ("[[class]]\nname = \"a\"\nmark = \"high\"", "s.toml:6: mark: `high` is no DSCP"),
        (
            "[[class]]\nname = \"a\"\ninterface = [\"eth9\"]",
            "s.toml:6: interface `eth9` is none of the devices; there is eth1",
        ),
        (
            "[[class]]\nname = \"a\"\nuser = [\"nosuchuser\"]",
            "s.toml:6: user: `nosuchuser`: there is no such user",
        ),
        ("[[class]]\nname = \"a\"\nuser = [-1]", "s.toml:6: user: -1 is out of range; it must be 0"),
        (
            "[[class]]\nname = \"a\"\ncgroup = [\"nginx\"]",
            "s.toml:6: cgroup `nginx`: give its path below the root",
        ),
        ("[[class]]\nname = \"a\"\ncgroup = [\"/\"]", "s.toml:6: cgroup `/`: give its path below the root"),
        (
            "[[class]]\nname = \"a\"\nurl = [\"/a\", \"api/\"]",
            "s.toml:6: url `api/`: give the beginning of a path, with its slash",
        ),
        ("[[class]]\nname = \"a\"\nhost = [\"a:80\"]", "s.toml:6: host `a:80`: give a host without port"),
        (
            "[[class]]\nname = \"a\"\ntls_name = [\"*.\"]",
            "s.toml:6: tls_name `*.`: give a host name without port",
        ),
        (
            "[[class]]\nname = \"a\"\nheader = [\"X Tier: a\"]",
            "s.toml:6: header `X Tier: a`: give a name such as",
        ),
        ("[[class]]\nname = \"a\"\ncookie = [\"=1\"]", "s.toml:6: cookie `=1`: give a name such as"),
        (
            "[[class]]\nname = \"a\"\nurl = [\"/\"]\ntls_name = [\"a\"]",
            "s.toml:5: class `a` has tls_name and asks for HTTP",
        ),
        (
            "[[class]]\nname = \"a\"\nurl = [\"/\"]\nconnections = 1",
            "remove connections, or give it to the class",
        ),
        (
            "[[class]]\nname = \"a\"\nurl = [\"/\"]\nlisten_priority = 1",
            "remove listen_priority, or give it to the class",
        ),
        ("[[class]]\nname = \"default\"\nurl = [\"/\"]", "takes what no other takes"),
        (
            "[[class]]\nname = \"a\"\nconnections = 0",
            "s.toml:6: connections = 0 is out of range; it must be 1 to 4000000",
        ),
        (
            "[[class]]\nname = \"a\"\nextend = \"no\"",
            "s.toml:6: extend = \"no\" is wrong; it must be true or false",
        ),
        (
            "[[class]]\nname = \"a\"\nrequests = \"both\"",
            "s.toml:6: class `a` says whose requests it is about and asks for none",
        ),
        (
            "[[class]]\nname = \"a\"\nurl = [\"/\"]\nrequests = \"out\"",
            "s.toml:7: requests: unknown value `out`; known values: incoming, outgoing, both",
        ),
        ("[[class]]\nname = \"a\"\nconections = 1", "unknown key `conections`; did you mean `connections`?"),
        (
            "[[permission]]\nprogram = [\"a\"]\npriority = 64",
            "s.toml:6: priority = 64 is out of range; it must be 0 to 63",
        ),
        (
            "[[permission]]\ndeadline_us = 99",
            "s.toml:5: deadline_us = 99 is out of range; it must be 100 to 60000000",
        ),
        ("[[permission]]\nweight = 0", "s.toml:5: weight = 0 is out of range; it must be 1 to 10000"),
        (
            "[[permission]]\nprogram = [\"/bin/a\"]\npriority = 1",
            "s.toml:5: program `/bin/a`: give the last part",
        ),
        (
            "[[permission]]\ncgroup = [\"a\"]\npriority = 1",
            "s.toml:5: cgroup `a`: give its path below the root",
        ),
        (
            "[[permission]]\nclass = [\"prefered\"]\n[[class]]\nname = \"preferred\"\nidle = true",
            "s.toml:5: there is no class `prefered`; did you mean `preferred`?",
        ),
        ("[[permission]]\nclass = [\"x\"]", "s.toml:5: there is no class `x`; there are: default"),
        (
            "[[permission]]\nprogram = [\"a\"]",
            "s.toml:5: a permission that permits nothing: give it priority",
        ),
        ("[control]\nmode = \"rw\"", "`rw` is no mode; write it in octal"),
        ("[control]\nsocket = \"here\"", "must be an absolute path"),
        ("[[device]]\nname = \"eth1\"\naddress = \"10.9.0.1/24\"", "s.toml:5: device `eth1` is there twice"),
        (
            "[[device]]\nname = \"eth2\"\naddress = \"10.0.0.9/8\"",
            "s.toml:6: the networks 10.0.0.9/8 of `eth2` and 10.0.0.1/24 of `eth1` overlap",
        ),
        (
            "[[device]]\nname = \"eth2\"\naddress = \"10.7.0.0/24\"",
            "names a network, not an address in it; write for instance \"10.7.0.1/24\"",
        ),
        (
            "[[device]]\nname = \"eth2\"\naddress = \"10.7.0.1/24\"\ngateway = \"10.8.0.1\"",
            "the gateway 10.8.0.1 must be another address of the network",
        ),
        ("[[device]]\nname = \"eth2\"\naddress = \"127.0.0.1/8\"", "cannot be the address of a device"),
        ("[[device]]\nname = \"a/b\"\naddress = \"10.7.0.1/24\"", "is no name of an interface"),
        (
            "[[device]]\nname = \"p\"\ndriver = \"pcap\"\naddress = \"10.7.0.1/24\"",
            "needs [device.pcap] with input or output",
        ),
        (
            "[[device]]\nname = \"p\"\nmode = \"shared\"\naddress = \"10.7.0.1/24\"",
            "unknown value `shared`; known values: dedicated",
        ),
        ("[[device]]\nname = \"p\"", "`p` has no address"),
        ("[device.tap]", "`eth1` has [device.tap] but another driver"),
        ("mtu = 1400", "`ip link set eth1 mtu N`"),
        ("what", "s.toml:4:"),
    ];
    for (text, expected) in cases {
        let error = error(text);
        assert!(error.contains(expected), "{text}\n gave: {error}\n  not: {expected}");
    }
    assert!(parse("").unwrap_err().contains("there is no [[device]]; name one"));
}

#[test]
fn a_file_that_is_not_there_has_its_remedy() {
    let error = Config::load(Path::new("/nonexistent/s.toml")).unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent/s.toml: cannot read the configuration: No such file"), "{error}");
    assert!(error.contains("--config"), "{error}");
}

#[test]
fn what_is_no_file_of_ours_is_not_read_without_a_bound() {
    let path = std::env::temp_dir().join(format!("scoutline-long-{}.toml", std::process::id()));
    std::fs::write(&path, vec![b'#'; super::MAX_FILE as usize]).unwrap();
    let error = Config::load(&path).unwrap_err().to_string();
    assert!(error.contains("there is no [[device]]"), "it is read: {error}");
    std::fs::write(&path, vec![b'#'; super::MAX_FILE as usize + 1]).unwrap();
    let error = Config::load(&path).unwrap_err().to_string();
    assert!(error.contains("longer than 1 MiB, which no configuration is"), "{error}");
    std::fs::remove_file(&path).unwrap();
    for (place, says) in [
        ("/dev/zero", "longer than 1 MiB"),
        ("/dev/urandom", "longer than 1 MiB"),
        ("/tmp", "a directory; name a file in it"),
    ] {
        let error = Config::load(Path::new(place)).unwrap_err().to_string();
        assert!(error.starts_with(place) && error.contains(says), "{error}");
    }
}

#[test]
fn quick_start_is_checked_too() {
    let config = Config::quick("eth1", "10.0.0.1/24".parse().unwrap(), None).unwrap();
    assert_eq!(config.device[0].name.get_ref(), "eth1");
    let error = Config::quick("eth1", "10.0.0.0/24".parse().unwrap(), None).unwrap_err().to_string();
    assert!(error.contains("10.0.0.1/24"), "{error}");
}

#[test]
fn sizes_read_and_print() {
    for (text, bytes) in [("7", 7), ("1k", 1024), ("2MiB", 2 << 20), ("3 GB", 3_000_000_000)] {
        assert_eq!(text.parse(), Ok(Size(bytes)));
    }
    assert!("99999999999GiB".parse::<Size>().is_err());
    assert_eq!(Size(256 << 10).to_string(), "256KiB");
}

#[test]
fn the_engine_is_told_the_same() {
    use scoutline_sched::Level;

    let config = parse(
        "[[device]]\nname = \"eth1\"\naddress = \"10.0.0.1/24\"\n[engine]\nrealtime = \"on\"\ncpu = 0\n\
         [[class]]\nname = \"a\"\npriority = 2\nlisten_priority = 5\nsource = [\"10.0.0.7/24\"]\n\
         [[class]]\nname = \"b\"\nidle = true\nlocal_port = [80]\n",
    )
    .unwrap();
    let settings = config.settings();
    assert_eq!(
        (settings.cpu, settings.realtime_priority, settings.realtime_required),
        (Some(0), Some(50), true)
    );
    assert_eq!(config.cores(), [0]);
    let classes: Vec<(&str, Level, Level)> =
        settings.classes.iter().map(|class| (class.name.as_str(), class.level, class.listen_level)).collect();
    assert_eq!(
        classes,
        [
            ("a", Level::Priority(2), Level::Priority(5)),
            ("b", Level::Idle, Level::Idle),
            ("default", Level::Priority(0), Level::Priority(0)),
        ]
    );
    assert_eq!(settings.classes[0].sources, [([10, 0, 0, 0].into(), 24)], "host bits are cut");
    assert!(settings.classes[0].extend && settings.classes[0].mark.is_none());

    // Without a core of its own, real-time priority could starve whatever runs there.
    let settings = parse(DEVICE).unwrap().settings();
    assert_eq!(settings.realtime_priority, None);
    let all = parse(&format!("{DEVICE}[[class]]\nname = \"all\"\n")).unwrap().settings();
    assert_eq!(all.classes.len(), 2, "there is always a last class, even if nothing is left for it");
}

#[test]
fn the_engine_is_told_all_of_a_class() {
    let two = "[[device]]\nname = \"eth1\"\naddress = \"10.0.0.1/24\"\n\
               [[device]]\nname = \"eth2\"\naddress = \"10.1.0.1/24\"\n\
               [[class]]\nname = \"a\"\ndestination = [\"10.1.0.9/24\"]\ndscp = [\"EF\", 0]\ninterface = [\"eth2\"]\n\
               user = [\"root\", 33]\ncgroup = [\"/web\"]\nconnections = 5\nmark = \"LE\"\nextend = false\n";
    let class = &parse(two).unwrap().settings().classes[0];
    assert_eq!(class.destinations, [([10, 1, 0, 0].into(), 24)]);
    assert_eq!((&class.dscps[..], &class.users[..]), (&[46, 0][..], &[0, 33][..]));
    assert_eq!(class.interfaces, [scoutline_base::DeviceId(1)]);
    assert_eq!((class.connections, class.mark, class.extend), (Some(5), Some(1), false));
    assert_eq!(class.cgroups, ["/web"]);

    use scoutline_proto::request::matcher::{Conditions, CookieCondition, HeaderCondition, HeaderValue};
    let asks = "[[class]]\nname = \"a\"\nhost = [\"a\"]\nurl = [\"/b\"]\nheader = [\"C\", \"d:  e f\"]\n\
                cookie = [\"g\", \"h=i=j\"]\n";
    let header = |name: &str, value| HeaderCondition { name: name.into(), value };
    let cookie = |name: &str, value: Option<&str>| CookieCondition {
        name: name.into(),
        value: value.map(str::to_owned),
    };
    let expected = Conditions {
        hosts: vec!["a".into()],
        paths: vec!["/b".into()],
        headers: vec![header("C", HeaderValue::Any), header("d", HeaderValue::Exact("e f".into()))],
        cookies: vec![cookie("g", None), cookie("h", Some("i=j"))],
        ..Conditions::default()
    };
    assert_eq!(parse(&format!("{DEVICE}{asks}")).unwrap().settings().classes[0].request, expected);
}

#[test]
fn rates_and_background() {
    use scoutline_engine::Forward;
    use scoutline_sched::Weight;
    use scoutline_sched::transmit::{BitRate, Preemption};
    let config = parse(
        "[[device]]\nname = \"a\"\naddress = \"10.0.0.1/24\"\nrate = \"1.5Gbit/s\"\n\
         background = { preemption_us = 0 }\n\
         [[device]]\nname = \"b\"\naddress = \"10.0.1.1/24\"\nrate = 64000\nbackground = { preemption_us = \"auto\" }\n\
         [[forward]]\nfrom = \"b\"\nto = \"a\"\n\
         [[class]]\nname = \"slow\"\nlocal_port = [80]\nweight = 7\nrate = \"10Mbit/s\"\n",
    )
    .unwrap();
    let settings = config.settings();
    assert_eq!(settings.devices[0].rate, Some(BitRate::new(1_500_000_000)));
    assert_eq!(settings.devices[0].preemption, Preemption::Fixed(std::time::Duration::ZERO));
    assert_eq!(settings.devices[1].rate, Some(BitRate::new(64_000)));
    assert_eq!(settings.devices[1].preemption, Preemption::Auto);
    let [Forward { from, to }] = settings.forwards[..] else { panic!("one forward") };
    assert_eq!((from.0, to.0), (1, 0));
    assert_eq!(settings.classes[0].weight, Weight::new(7));
    assert_eq!(settings.classes[0].rate, Some(BitRate::new(10_000_000)));
    assert_eq!(settings.classes[1].weight, Weight::default());
}

#[test]
fn what_is_wrong_with_rates_and_forwards_is_said_with_a_remedy() {
    for (rest, words) in [
        ("rate = \"100MB\"\n", &["100MB", "100Mbit/s"][..]),
        ("rate = \"1.Gbit/s\"\n", &["1.Gbit/s", "100Mbit/s"]),
        ("rate = \"1kbit/s\"\n", &["rate = 1kbit/s", "64kbit/s to 800Gbit/s"]),
        ("background = { preemption_us = \"soon\" }\n", &["soon", "auto", "microseconds"]),
        ("[[forward]]\nfrom = \"eth1\"\nto = \"eth9\"\n", &["to = \"eth9\"", "there is eth1"]),
        ("[[forward]]\nfrom = \"eth1\"\nto = \"eth1\"\n", &["to itself", "two devices"]),
        ("[[class]]\nname = \"a\"\nweight = 0\n", &["weight = 0", "1 to 10000"]),
        ("[[class]]\nname = \"a\"\nrate = 5\n", &["rate = 5bit/s", "64kbit/s"]),
    ] {
        let error = error(rest);
        for word in words {
            assert!(error.contains(word), "`{word}` in: {error}");
        }
    }
}

#[test]
fn every_policy_can_be_said() {
    use scoutline_engine::{Asks, JobAsks};
    use scoutline_sched::schedule::{Linux, Shares};
    use scoutline_sched::{Level, Weight};
    let config = parse(&format!(
        "{DEVICE}
        [scheduler]
        priority_share = 50
        edf_share = 30
        wfq_share = 15
        bert_share = 5
        [linux]
        share = 50
        [[class]]
        name = \"edf\"
        policy = \"edf\"
        deadline_us = 2000
        budget_us = 100
        local_port = [1]
        [[class]]
        name = \"wfq\"
        policy = \"wfq\"
        weight = 300
        listen_priority = 2
        local_port = [2]
        [[class]]
        name = \"bert\"
        policy = \"bert\"
        cpu_percent = 2.5
        important = true
        deadline_us = 5000
        budget_us = 250
        local_port = [3]
        [[class]]
        name = \"plain\"
        policy = \"priority\"
        priority = 3
        "
    ))
    .unwrap();
    let settings = config.settings();
    assert_eq!(settings.shares, Shares { fixed: 50, edf: 30, wfq: 15, bert: 5 });
    assert_eq!(settings.linux, Linux::Percent(50));
    let asks: Vec<Asks> = settings.classes.iter().map(|class| class.asks).collect();
    let job = Some(JobAsks { within_us: 5000, budget_us: 250 });
    let expected = [
        Asks::Deadline { within_us: 2000, budget_us: 100 },
        Asks::Weight(Weight::new(300)),
        Asks::Rate { rate: Weight::new(250), important: true, job },
        Asks::Level,
        Asks::Level,
    ];
    assert_eq!(asks, expected);
    assert_eq!(settings.classes[0].listen_asks, expected[0]);
    let (listens, at) = (settings.classes[1].listen_asks, settings.classes[1].listen_level);
    assert_eq!((listens, at), (Asks::Level, Level::Priority(2)));
    let weight = parse(&format!("{DEVICE}[linux]\nweight = 20\n")).unwrap();
    assert_eq!(weight.settings().linux, Linux::Weight(Weight::new(20)));
    assert_eq!(parse(DEVICE).unwrap().settings().linux, Linux::Priority);
}

#[test]
fn keys_of_another_policy_are_refused_with_the_remedy() {
    let class = "[[class]]\nname = \"a\"\n";
    for (keys, expected) in [
        (
            "policy = \"wfq\"\npriority = 3",
            "s.toml:7: class `a`: priority goes with policy = \"priority\", and the class has policy \"wfq\"; remove \
             priority or change the policy",
        ),
        (
            "policy = \"wfq\"\ndeadline_us = 3000",
            "s.toml:7: class `a`: deadline_us goes with policy = \"edf\" or policy = \"bert\", and the class has \
             policy \"wfq\"; remove deadline_us or change the policy",
        ),
        (
            "policy = \"edf\"\ndeadline_us = 3000\ncpu_percent = 3",
            "s.toml:8: class `a`: cpu_percent goes with policy = \"bert\", and the class has policy \"edf\"; remove \
             cpu_percent or change the policy",
        ),
        (
            "policy = \"edf\"",
            "s.toml:6: class `a` has policy \"edf\" and no deadline; add deadline_us, such as deadline_us = 2000",
        ),
        (
            "policy = \"bert\"",
            "s.toml:6: class `a` has policy \"bert\" and no share; add cpu_percent, such as cpu_percent = 5",
        ),
        (
            "policy = \"bert\"\ncpu_percent = 5\nbudget_us = 5",
            "s.toml:6: class `a`: real-time work in bert has deadline_us and budget_us; add the other one",
        ),
        (
            "policy = \"edf\"\nidle = true\ndeadline_us = 3000",
            "s.toml:6: class `a` is idle and has policy \"edf\"; idle is below all of them: remove one",
        ),
        (
            "policy = \"edf\"\ndeadline_us = 3000\nbudget_us = 3001",
            "s.toml:8: budget_us = 3001 is out of range; it must be 1 to 3000",
        ),
        (
            "policy = \"edf\"\ndeadline_us = 50",
            "s.toml:7: deadline_us = 50 is out of range; it must be 100 to 60000000",
        ),
        (
            "policy = \"bert\"\ncpu_percent = 100.5",
            "s.toml:7: cpu_percent = 100.5 is out of range; it must be 0.01 to 100",
        ),
        ("policy = \"wfq\"\nweight = 0", "s.toml:7: weight = 0 is out of range; it must be 1 to 10000"),
        ("policy = \"wfg\"", "s.toml:6: policy: unknown value `wfg`; did you mean `wfq`?"),
    ] {
        assert_eq!(error(&format!("{class}{keys}\n")), expected, "{keys}");
    }
    assert_eq!(
        error("[linux]\nweight = 3\nshare = 50\n"),
        "s.toml:5: Linux has a weight and a share; with a weight it is one among the paths of wfq, with a share it is \
         beside all paths: remove one of them"
    );
    assert_eq!(
        error("[scheduler]\nedf_share = 0\n"),
        "s.toml:5: edf_share = 0 is out of range; it must be 1 to 10000"
    );
}

#[test]
fn ip6_is_off_unless_it_is_asked_for() {
    let of = |rest: &str| parse(&format!("{DEVICE}{rest}")).unwrap().settings().devices[0].ip6.clone();
    assert_eq!(of(""), None);
    let ours = "2001:db8::1".parse().unwrap();
    let given = of("address6 = [\"2001:db8::1/64\"]\ngateway6 = \"fe80::9\"\n").unwrap();
    assert_eq!((&given.addresses[..], given.autoconfigure), (&[(ours, 64)][..], false));
    assert_eq!(given.gateway, Some("fe80::9".parse().unwrap()));
    let asked = of("ipv6 = \"auto\"\n").unwrap();
    assert!(asked.autoconfigure && asked.addresses.is_empty());
    assert_eq!(of("ipv6 = \"static\"\n").map(|host| host.autoconfigure), Some(false));
    let class = "[[class]]\nname = \"a\"\nsource = [\"2001:db8::77/32\", \"10.0.0.9/8\"]\n";
    let settings = parse(&format!("{DEVICE}{class}")).unwrap().settings();
    let networks = [("2001:db8::".parse().unwrap(), 32), ([10, 0, 0, 0].into(), 8)];
    assert_eq!(settings.classes[0].sources, networks, "host bits are cut");
}

#[test]
fn what_is_wrong_with_ip6_is_said_with_a_remedy() {
    let cases = [
        ("address6 = [\"10.0.0.1/24\"]", "is no IPv6 network"),
        ("address6 = [\"2001:db8::1/129\"]", "the length of the prefix must be 0 to 128"),
        ("address6 = [\"2001:db8::1/0\"]", "the prefix of the address"),
        ("address6 = [\"ff02::1/64\"]", "cannot be the address of a device"),
        ("address6 = [\"::ffff:10.0.0.1/112\"]", "cannot be the address of a device"),
        ("address6 = [\"fe80::1/64\"]", "is made by itself; take it out"),
        ("address6 = [\"2001:db8::1/64\", \"2001:db8::1/64\"]", "is there twice"),
        ("ipv6 = \"off\"\naddress6 = [\"2001:db8::1/64\"]", "take out one of them"),
        ("ipv6 = \"yes\"", "known values: off, static, auto"),
        ("gateway6 = \"fe80::1\"", "gateway6 without IPv6"),
        (
            "address6 = [\"2001:db8::1/64\"]\ngateway6 = \"2001:db9::1\"",
            "must be another address of a network",
        ),
        (
            "address6 = [\"2001:db8::1/64\"]\ngateway6 = \"2001:db8::1\"",
            "must be another address of a network",
        ),
        ("driver = \"tap\"\nipv6 = \"auto\"\nmtu = 1000", "mtu = 1000 is out of range; it must be 1280"),
    ];
    for (text, expected) in cases {
        let error = parse(&format!("{DEVICE}{text}\n")).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

mod host;

/// Several engines have each their part, and only the first does what is done for an interface once.
#[test]
fn several_engines_divide_what_there_is() {
    use std::sync::Arc;

    use scoutline_device::Driver;
    use scoutline_sched::transmit::BitRate;

    let config = parse(
        "[[device]]\nname = \"eth1\"\naddress = \"10.0.0.1/24\"\nrate = \"100Mbit/s\"\n[engine]\ncpu = [2, 0]\n\
         max_paths = 1001\n[[class]]\nname = \"a\"\nconnections = 5\nmemory = \"3MiB\"\nrate = \"10Mbit/s\"\n",
    )
    .unwrap();
    assert_eq!(config.cores(), [2, 0]);
    let parts = config.settings().parts(config.cores());
    let spread = |part: &scoutline_engine::EngineSettings| match &part.devices[0].device.driver {
        Driver::Packet(options) => options.spread.clone().expect("it is shared"),
        other => panic!("{other:?}"),
    };
    for (part, cpu) in parts.iter().zip([2, 0]) {
        assert_eq!((part.cpu, part.max_paths), (Some(cpu), 501));
        assert_eq!(part.devices[0].rate.map(BitRate::get), Some(50_000_000));
        let class = &part.classes[0];
        assert_eq!((class.connections, class.memory), (Some(3), Some(3 << 19)));
        assert_eq!(class.rate.map(BitRate::get), Some(5_000_000));
    }
    assert_ne!(spread(&parts[0]), spread(&parts[1]), "each is the one or the other engine's");
    assert_eq!(spread(&parts[0]).of_engine(1), spread(&parts[1]), "of one group");
    assert!(Arc::ptr_eq(&parts[0].link_use[0], &parts[1].link_use[0]), "one link");
    let config = parse(
        "[[device]]\nname = \"eth1\"\naddress = \"10.0.0.1/24\"\ndriver = \"xdp\"\n[engine]\ncpu = [0, 1]\n",
    );
    let config = config.unwrap();
    let spreads = config.settings().parts(config.cores()).into_iter().map(|part| {
        match part.devices.into_iter().next().map(|device| device.device.driver) {
            Some(Driver::Xdp(options)) => options.spread.expect("it is shared"),
            other => panic!("{other:?}"),
        }
    });
    let spreads: Vec<_> = spreads.collect();
    assert_ne!(spreads[0], spreads[1]);
    assert_eq!(spreads[0].of_engine(1), spreads[1], "of one interface");
    let refused = |more: &str, says: &str| {
        let text =
            format!("[[device]]\nname = \"eth1\"\naddress = \"10.0.0.1/24\"\n{more}[engine]\ncpu = [0, 1]\n");
        let error = parse(&text).unwrap_err();
        assert!(error.contains(says), "{error}");
    };
    refused("driver = \"tap\"\n", "several engines share a device only with driver = \"packet\" or \"xdp\"");
    refused("ipv6 = \"auto\"\n", "several engines need IPv6 addresses that stay");
}
