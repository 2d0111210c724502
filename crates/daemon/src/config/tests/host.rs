//! Addresses, routes, and networks on another device.

use super::{DEVICE, error, parse};

#[test]
fn several_addresses_and_none() {
    let config = parse(
        r#"
        [[device]]
        name = "eth1"
        address = ["10.0.0.1/24", "10.0.9.1/24", "10.0.0.7/32"]
        gateway = "10.0.9.254"
        [[device]]
        name = "eth2"
        ipv6 = "auto"
        "#,
    )
    .unwrap();
    let settings = config.settings();
    assert_eq!(settings.devices[0].address.to_string(), "10.0.0.1");
    assert!(settings.devices[1].address.is_unspecified());
    let others: Vec<String> = settings
        .host
        .others
        .iter()
        .map(|(device, address, len)| format!("{} {address}/{len}", device.0))
        .collect();
    assert_eq!(others, ["0 10.0.9.1/24", "0 10.0.0.7/32"]);
    let of = |rest: &str| {
        let text = format!("[[device]]\nname = \"eth1\"\n{rest}");
        parse(&text).expect_err(rest)
    };
    let faults = [
        ("", "`eth1` has no address"),
        ("address = []", "`eth1` has no address"),
        ("ipv6 = \"auto\"\ngateway = \"10.0.0.1\"", "a gateway without an address"),
        ("address = [\"10.0.0.1/24\", \"10.0.0.1/24\"]", "10.0.0.1 is there twice"),
        (
            "address = [\"10.0.0.1/32\"]",
            "10.0.0.1 alone is no network: the length of its prefix is missing; write \"10.0.0.1/24\"",
        ),
        ("address = [\"10.0.0.1/24\", \"10.9.0.0/24\"]", "10.9.0.0/24 names a network"),
        ("address = [\"10.0.0.1/24\", 7]", "a network such as"),
    ];
    for (rest, fault) in faults {
        let error = of(rest);
        assert!(error.contains(fault), "{rest}: {error}");
    }
    let overlap = error("[[device]]\nname = \"eth2\"\naddress = [\"10.7.0.1/24\", \"10.0.0.9/8\"]");
    assert!(overlap.contains("overlap"), "{overlap}");
}

#[test]
fn routes() {
    let config = parse(&format!(
        r#"{DEVICE}address6 = ["2001:db8::1/64"]
        [[route]]
        to = "192.168.0.0/16"
        via = "10.0.0.9"
        [[route]]
        to = "192.168.0.0/16"
        device = "eth1"
        metric = 5
        mtu = 1400
        advmss = 1200
        initcwnd = 30
        initrwnd = 20
        [[route]]
        to = "2001:db8:7::/48"
        via = "fe80::7"
        device = "eth1"
        [[route]]
        to = "172.16.0.0/12"
        type = "unreachable"
        [local]
        loopback = true
        "#
    ))
    .unwrap();
    let settings = config.settings();
    assert!(settings.own_link.is_some_and(|own| own.loopback));
    let told: Vec<String> = settings
        .host
        .routes
        .iter()
        .map(|one| format!("{:?} {:?}", one.device.map(|id| id.0), one.route))
        .collect();
    for (index, part) in [(0, "Via(10.0.0.9)"), (1, "metric: 5"), (2, "Via(fe80::7)"), (3, "None")] {
        assert!(told[index].contains(part), "{part} in {}", told[index]);
    }
    assert_eq!(settings.host.routes[0].route.prefix_len, 112);
    let said = ["mtu: Some(1400)", "advmss: Some(1200)", "initcwnd: Some(30)", "initrwnd: Some(20)"];
    assert!(said.iter().all(|part| told[1].contains(part) && !told[0].contains(part)), "{told:?}");
    let faults = [
        ("to = \"192.168.0.0/16\"", "needs via = \"…\" (a router), or device"),
        (
            "to = \"192.168.0.1/16\"\nvia = \"10.0.0.9\"",
            "names a host, not a network; write \"192.168.0.0/16\"",
        ),
        (
            "to = \"192.168.0.0/16\"\nvia = \"10.0.0.1\"",
            "the router 10.0.0.1 must be another address of a network",
        ),
        ("to = \"192.168.0.0/16\"\nvia = \"10.7.0.1\"\ndevice = \"eth1\"", "of a network of `eth1`"),
        ("to = \"192.168.0.0/16\"\ndevice = \"eth7\"", "none of the devices: eth1"),
        ("to = \"192.168.0.0/16\"\nvia = \"fe80::1\"", "different families"),
        ("to = \"2001:db8::/32\"\nvia = \"fe80::1\"", "say which with device"),
        ("to = \"2001:db8::/32\"\ndevice = \"eth1\"", "has no address of the family"),
        ("to = \"224.0.0.0/8\"\ndevice = \"eth1\"", "not the address of another host"),
        ("to = \"10.9.0.0/16\"\ntype = \"blackhole\"\nvia = \"10.0.0.9\"", "take out via"),
        ("to = \"10.9.0.0/16\"\ntype = \"nowhere\"", "unknown value `nowhere`"),
        ("to = \"10.9.0.0/16\"\ntype = \"prohibit\"\nmtu = 1400", "leads nowhere has no mtu; take it out"),
        (
            "to = \"10.9.0.0/16\"\nvia = \"10.0.0.9\"\nmtu = 67",
            "mtu = 67 is out of range; it must be 68 to 65535",
        ),
        (
            "to = \"2001:db8::/32\"\nvia = \"fe80::1\"\ndevice = \"eth1\"\nmtu = 1279",
            "mtu = 1279 is out of range; it must be 1280 to 65535",
        ),
        ("to = \"10.9.0.0/16\"\nvia = \"10.0.0.9\"\nadvmss = 70000", "it must be 88 to 65495"),
        ("to = \"10.9.0.0/16\"\nvia = \"10.0.0.9\"\ninitcwnd = 0", "it must be 1 to 65535"),
        (
            "to = \"10.9.0.0/16\"\nvia = \"10.0.0.9\"\n[[route]]\nto = \"10.9.0.0/16\"\nvia = \"10.0.0.8\"",
            "there are two routes to 10.9.0.0/16 with metric 0",
        ),
    ];
    for (rest, fault) in faults {
        let error = error(&format!("[[route]]\n{rest}\n"));
        assert!(error.contains(fault), "{rest}: {error}");
    }
}

#[test]
fn networks_on_another_device() {
    let text = r#"
        [[device]]
        name = "eth1"
        [[device]]
        name = "office"
        parent = "eth1"
        vlan = 7
        vlan_priority = 5
        address = "10.7.0.1/24"
        [[device]]
        name = "eth1.8"
        parent = "eth1"
        vlan = 8
        ipv6 = "auto"
    "#;
    let settings = parse(text).unwrap().settings();
    let drivers = format!("{:?}", settings.devices.iter().map(|one| &one.device.driver).collect::<Vec<_>>());
    for part in ["vlan: 7, priority: 5, by_kernel: true", "vlan: 8, priority: 0", "groups: true"] {
        assert!(drivers.contains(part), "{part} in {drivers}");
    }
    let faults = [
        ("vlan = 7", "`office` has vlan and no device that it is on"),
        ("parent = \"eth1\"", "`office` has a parent and no number"),
        ("vlan_priority = 1", "`office` has vlan_priority and no vlan"),
        ("parent = \"eth1\"\nvlan = 4095", "vlan = 4095 is out of range; it must be 1 to 4094"),
        ("parent = \"eth1\"\nvlan = 7\nvlan_priority = 8", "it must be 0 to 7"),
        ("parent = \"eth9\"\nvlan = 7", "must be the name of another [[device]]"),
        ("parent = \"office\"\nvlan = 7", "must be the name of another [[device]]"),
        ("parent = \"eth1\"\nvlan = 7\ndriver = \"tap\"", "is driven by `eth1`"),
        (
            "parent = \"eth1\"\nvlan = 7\n[[device]]\nname = \"b\"\naddress = \"10.8.0.1/24\"\nparent = \"eth1\"\nvlan = 7",
            "are the same network of the same device",
        ),
    ];
    for (rest, fault) in faults {
        let error = error(&format!("[[device]]\nname = \"office\"\naddress = \"10.7.0.1/24\"\n{rest}"));
        assert!(error.contains(fault), "{rest}: {error}");
    }
}
