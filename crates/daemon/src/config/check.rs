//! What the keys mean together. The first fault found is reported.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::RangeInclusive;

use scoutline_abi::layout::ENGINE_COUNT;
use toml::Spanned;

use super::error::Fault;
use super::{
    Class, Config, DEFAULT_CLASS, Device, Driver, Ip6Mode, Network, Network6, Rate, Size, request, route,
    scheduling,
};

/// Highest priority of a path.
pub(super) const MAX_PRIORITY: u8 = 63;
/// Classes, the last one included.
const MAX_CLASSES: usize = 64;
/// The header of a region holds so many networks.
const MAX_DEVICES: usize = scoutline_abi::layout::SERVED_COUNT;
/// Length of a socket's name in `sockaddr_un`, its final zero not counted.
const MAX_SOCKET_LEN: usize = 107;

/// Below, a frame takes a fifth of a second; above, no link is.
const RATES: RangeInclusive<Rate> = Rate(64_000)..=Rate(800_000_000_000);
/// What a class or a policy may hold: with less than the smallest buffer nothing could ever be in it.
pub(super) const MEMORY: RangeInclusive<Size> = Size(4 << 10)..=Size(1 << 40);
/// What the machine's link with itself is called where devices are.
pub(super) const OWN_LINK: &str = "local";
/// Greatest weight.
const MAX_WEIGHT: u32 = scoutline_sched::Weight::HIGHEST as u32;

pub(super) type Checked = Result<(), Fault>;

pub(super) fn check(config: &Config) -> Checked {
    check_devices(&config.device)?;
    check_forwards(config)?;
    route::check_routes(config)?;
    check_engine(config)?;
    check_cores(config)?;
    check_classes(&config.class, &config.device)?;
    check_permissions(config)?;
    let socket = config.control.socket.get_ref();
    if !socket.is_absolute() {
        return fault(&config.control.socket, "the control socket must be an absolute path".into());
    }
    if crate::attach_path(socket).as_os_str().len() > MAX_SOCKET_LEN {
        let message =
            format!("the path of the control socket is too long; at most {} bytes", MAX_SOCKET_LEN - 7);
        return fault(&config.control.socket, message);
    }
    Ok(())
}

pub(super) fn fault<T>(place: &Spanned<T>, message: String) -> Checked {
    Err(Fault { at: place.span(), message })
}

pub(super) fn within<T: PartialOrd + Display>(
    name: &str,
    value: &Spanned<T>,
    allowed: RangeInclusive<T>,
) -> Checked {
    if allowed.contains(value.get_ref()) {
        return Ok(());
    }
    let message = format!(
        "{name} = {} is out of range; it must be {} to {}",
        value.get_ref(),
        allowed.start(),
        allowed.end()
    );
    fault(value, message)
}

/// One engine on a core, and several only where they can share what there is.
fn check_cores(config: &Config) -> Checked {
    let Some(cores) = &config.engine.cpu else { return Ok(()) };
    let list = &cores.get_ref().0;
    if list.is_empty() || list.len() > ENGINE_COUNT {
        return fault(cores, format!("cpu lists {} cores; it must be 1 to {ENGINE_COUNT}", list.len()));
    }
    if let Some(core) =
        list.iter().enumerate().find(|(at, core)| list[..*at].contains(core)).map(|(_, core)| core)
    {
        return fault(cores, format!("core {core} is there twice; each engine needs one of its own"));
    }
    if list.len() == 1 {
        return Ok(());
    }
    for device in &config.device {
        let name = device.name.get_ref();
        if !matches!(device.driver, Driver::Packet | Driver::Xdp | Driver::Auto) {
            let message = format!(
                "`{name}`: several engines share a device only with driver = \"packet\" or \"xdp\"; choose one of \
                 them, or one core"
            );
            return fault(&device.name, message);
        }
        if device.ip6_mode() == Ip6Mode::Auto {
            let message = format!(
                "`{name}`: several engines need IPv6 addresses that stay; give address6 and ipv6 = \"static\", or \
                 one core"
            );
            return fault(&device.name, message);
        }
    }
    Ok(())
}

fn check_devices(devices: &[Device]) -> Checked {
    if devices.is_empty() {
        let message =
            "there is no [[device]]; name one: [[device]] name = \"eth1\", address = \"10.0.0.1/24\"";
        return Err(Fault { at: 0..0, message: message.into() });
    }
    if let Some(device) = devices.get(MAX_DEVICES) {
        return fault(&device.name, format!("too many devices; at most {MAX_DEVICES}"));
    }
    for (index, device) in devices.iter().enumerate() {
        let name = device.name.get_ref();
        let is_on_it = |other: &Device| other.parent.as_ref().is_some_and(|parent| parent.get_ref() == name);
        check_device(device, devices.iter().any(is_on_it))?;
        check_vlan(device, devices)?;
        for other in &devices[..index] {
            if other.name.get_ref() == name {
                return fault(
                    &device.name,
                    format!("device `{name}` is there twice; each needs a name of its own"),
                );
            }
            check_overlap(device, other)?;
        }
    }
    Ok(())
}

/// A network on another device.
fn check_vlan(device: &Device, devices: &[Device]) -> Checked {
    let name = device.name.get_ref();
    let (parent, vlan) = match (&device.parent, &device.vlan) {
        (Some(parent), Some(vlan)) => (parent, vlan),
        (Some(parent), None) => {
            return fault(parent, format!("`{name}` has a parent and no number; give vlan = 1 to 4094"));
        }
        (None, Some(vlan)) => {
            let message = format!("`{name}` has vlan and no device that it is on; give parent = \"eth1\"");
            return fault(vlan, message);
        }
        (None, None) => {
            return match &device.vlan_priority {
                Some(priority) => fault(priority, format!("`{name}` has vlan_priority and no vlan")),
                None => Ok(()),
            };
        }
    };
    within("vlan", vlan, 1..=4094)?;
    if let Some(priority) = &device.vlan_priority {
        within("vlan_priority", priority, 0..=7)?;
    }
    let on = devices.iter().find(|other| other.name.get_ref() == parent.get_ref());
    let Some(on) =
        on.filter(|on| on.vlan.is_none() && matches!(on.driver, Driver::Packet | Driver::Tap | Driver::Auto))
    else {
        let message = format!(
            "parent = \"{}\" must be the name of another [[device]] with driver \"packet\" or \"tap\" and without vlan",
            parent.get_ref()
        );
        return fault(parent, message);
    };
    let own = [
        device.packet.is_some(),
        device.xdp.is_some(),
        device.tap.is_some(),
        device.pcap.is_some(),
        device.mtu.is_some(),
    ];
    if device.driver != Driver::Packet || own.contains(&true) {
        let message =
            format!("`{name}` is driven by `{}`; take out driver, its table and mtu", on.name.get_ref());
        return fault(&device.name, message);
    }
    let same = |other: &&Device| {
        let pair =
            |one: &Device| Some((one.parent.as_ref()?.get_ref().clone(), *one.vlan.as_ref()?.get_ref()));
        other.name.get_ref() != name && pair(other) == pair(device)
    };
    match devices.iter().find(same) {
        Some(other) => {
            let message =
                format!("`{name}` and `{}` are the same network of the same device", other.name.get_ref());
            fault(vlan, message)
        }
        None => Ok(()),
    }
}

fn check_overlap(device: &Device, other: &Device) -> Checked {
    for ours in device.networks() {
        let overlaps = |theirs: &&Network| ours.contains(theirs.address) || theirs.contains(ours.address);
        if let Some(theirs) = other.networks().iter().find(overlaps)
            && let Some(place) = &device.address
        {
            let (name, other) = (device.name.get_ref(), other.name.get_ref());
            let message = format!(
                "the networks {ours} of `{name}` and {theirs} of `{other}` overlap; each device needs its own"
            );
            return fault(place, message);
        }
    }
    Ok(())
}

fn check_device(device: &Device, is_parent: bool) -> Checked {
    let name = device.name.get_ref();
    if name == OWN_LINK {
        let message =
            format!("`{OWN_LINK}` is what programs of this machine are to each other; choose another name");
        return fault(&device.name, message);
    }
    if name.is_empty() || name.len() > 15 || name.contains(['/', ' ', '\t', '\n']) {
        return fault(
            &device.name,
            format!("`{name}` is no name of an interface; see `ip link` for those that exist"),
        );
    }
    check_ip4(device, is_parent)?;
    check_ip6(device)?;
    if let Some(mtu) = &device.mtu {
        let least = if device.ip6_mode() == Ip6Mode::Off { 576 } else { 1280 };
        within("mtu", mtu, least..=65_535)?;
    }
    if let Some(rate) = &device.rate {
        within("rate", rate, RATES)?;
    }
    if matches!(device.driver, Driver::Packet | Driver::Xdp | Driver::Auto) && device.mtu.is_some() {
        let message =
            format!("an ordinary interface has its own mtu; set it with `ip link set {name} mtu N` instead");
        return fault(&device.name, message);
    }
    let tables = [
        (device.packet.is_some(), Driver::Packet, "packet"),
        (device.xdp.is_some(), Driver::Xdp, "xdp"),
        (device.tap.is_some(), Driver::Tap, "tap"),
        (device.pcap.is_some(), Driver::Pcap, "pcap"),
    ];
    let fits = |driver: Driver| match device.driver {
        Driver::Auto => matches!(driver, Driver::Packet | Driver::Xdp),
        own => driver == own,
    };
    if let Some((_, _, table)) = tables.iter().find(|(there, driver, _)| *there && !fits(*driver)) {
        let message = format!(
            "`{name}` has [device.{table}] but another driver; remove it or set driver = \"{table}\""
        );
        return fault(&device.name, message);
    }
    if let Some(frames) = device.packet.as_ref().and_then(|knobs| knobs.ring_frames.as_ref()) {
        within("ring_frames", frames, 8..=16_384)?;
    }
    if let Some(frames) = device.xdp.as_ref().and_then(|knobs| knobs.ring_frames.as_ref()) {
        within("ring_frames", frames, 64..=65_536)?;
    }
    let has_file = device.pcap.as_ref().is_some_and(|files| files.input.is_some() || files.output.is_some());
    if device.driver == Driver::Pcap && !has_file {
        let message = format!("`{name}`: driver = \"pcap\" needs [device.pcap] with input or output");
        return fault(&device.name, message);
    }
    Ok(())
}

fn check_ip4(device: &Device, is_parent: bool) -> Checked {
    let networks = device.networks();
    let Some(place) = device.address.as_ref().filter(|_| !networks.is_empty()) else {
        if let Some(gateway) = &device.gateway {
            return fault(gateway, "a gateway without an address; give address = \"10.0.0.1/24\"".to_owned());
        }
        if device.ip6_mode() != Ip6Mode::Off || is_parent {
            return Ok(());
        }
        let message = format!(
            "`{}` has no address; give address = \"10.0.0.1/24\", or address6 or ipv6 = \"auto\"",
            device.name.get_ref()
        );
        return fault(&device.name, message);
    };
    for (index, network) in networks.iter().enumerate() {
        check_address(*network, place, index == 0)?;
        if networks[..index].iter().any(|other| other.address == network.address) {
            return fault(place, format!("{} is there twice; remove one", network.address));
        }
    }
    if let Some(gateway) = &device.gateway {
        let router = *gateway.get_ref();
        let ours = networks.iter().any(|network| network.address == router);
        if ours || !networks.iter().any(|network| network.contains(router)) {
            let networks: Vec<String> = networks.iter().map(ToString::to_string).collect();
            let networks = networks.join(", ");
            let message = format!("the gateway {router} must be another address of the network {networks}");
            return fault(gateway, message);
        }
    }
    Ok(())
}

/// One IPv4 address. Only a further one may be a host's alone, without a network.
fn check_address<T>(network: Network, place: &Spanned<T>, first: bool) -> Checked {
    let address = network.address;
    if address.is_unspecified() || address.is_loopback() || address.is_multicast() || address.is_broadcast() {
        return fault(place, format!("{address} cannot be the address of a device"));
    }
    if first && network.prefix == 32 {
        let message = format!(
            "{address} alone is no network: the length of its prefix is missing; write \"{address}/24\", say"
        );
        return fault(place, message);
    }
    let longest = if first { 31 } else { 32 };
    within("the prefix of the address", &Spanned::new(place.span(), network.prefix), 1..=longest)?;
    if network.prefix < 31 && (address == network.base() || address == network.broadcast()) {
        let message = format!(
            "{network} names a network, not an address in it; write for instance \"{}/{}\"",
            std::net::Ipv4Addr::from_bits(network.base().to_bits() + 1),
            network.prefix
        );
        return fault(place, message);
    }
    Ok(())
}

fn check_ip6(device: &Device) -> Checked {
    let mode = device.ip6_mode();
    if mode == Ip6Mode::Off
        && let Some(network) = device.address6.first()
    {
        return fault(network, "address6 with ipv6 = \"off\"; take out one of them".to_owned());
    }
    for (index, network) in device.address6.iter().enumerate() {
        let address = network.get_ref().address;
        let unusable = address.is_unspecified()
            || address.is_loopback()
            || address.is_multicast()
            || address.to_ipv4_mapped().is_some();
        if unusable {
            return fault(network, format!("{address} cannot be the address of a device"));
        }
        if address.is_unicast_link_local() {
            let message = format!("{address}: a link-local address is made by itself; take it out");
            return fault(network, message);
        }
        within(
            "the prefix of the address",
            &Spanned::new(network.span(), network.get_ref().prefix),
            1..=128,
        )?;
        if device.address6[..index].iter().any(|other| other.get_ref().address == address) {
            return fault(network, format!("{address} is there twice; remove one"));
        }
    }
    let Some(gateway) = &device.gateway6 else { return Ok(()) };
    let address = *gateway.get_ref();
    if mode == Ip6Mode::Off {
        return fault(gateway, "gateway6 without IPv6; set ipv6 = \"static\" or give address6".to_owned());
    }
    let near = |network: &Spanned<Network6>| {
        let Network6 { address: ours, prefix } = *network.get_ref();
        let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
        ours != address && (ours.to_bits() ^ address.to_bits()) & mask == 0
    };
    if !address.is_unicast_link_local() && !device.address6.iter().any(near) {
        let message =
            format!("the gateway {address} must be another address of a network of address6, or link-local");
        return fault(gateway, message);
    }
    Ok(())
}

fn check_forwards(config: &Config) -> Checked {
    let names: Vec<&str> = config.device.iter().map(|device| device.name.get_ref().as_str()).collect();
    for (index, forward) in config.forward.iter().enumerate() {
        let (from, to) = (forward.from.get_ref(), forward.to.get_ref());
        for (key, name) in [("from", &forward.from), ("to", &forward.to)] {
            if !names.contains(&name.get_ref().as_str()) {
                let message = format!(
                    "[[forward]] {key} = \"{}\" is none of the devices; there {} {}",
                    name.get_ref(),
                    if names.len() == 1 { "is" } else { "are" },
                    names.join(", ")
                );
                return fault(name, message);
            }
        }
        if from == to {
            let message = format!("[[forward]] from `{from}` to itself; name two devices");
            return fault(&forward.to, message);
        }
        if config.forward[..index]
            .iter()
            .any(|other| other.from.get_ref() == from && other.to.get_ref() == to)
        {
            return fault(
                &forward.from,
                format!("[[forward]] from `{from}` to `{to}` is there twice; remove one"),
            );
        }
    }
    Ok(())
}

fn check_engine(config: &Config) -> Checked {
    let engine = &config.engine;
    within("realtime_priority", &engine.realtime_priority, 1..=99)?;
    within("spin_us", &engine.spin_us, 0..=10_000)?;
    within("forward_pause_us", &engine.forward_pause_us, 0..=1_000)?;
    for (name, size) in [
        ("receive_buffer", &engine.receive_buffer),
        ("send_buffer", &engine.send_buffer),
        ("receive_buffer_max", &engine.receive_buffer_max),
        ("send_buffer_max", &engine.send_buffer_max),
    ] {
        within(name, size, Size(4 << 10)..=Size(64 << 20))?;
        let bytes = size.get_ref().0;
        if !bytes.is_power_of_two() {
            let message = format!(
                "{name} = \"{}\" must be a power of two, such as \"{}\"",
                size.get_ref(),
                Size(bytes.next_power_of_two())
            );
            return fault(size, message);
        }
    }
    within("max_paths", &engine.max_paths, 16..=4_000_000)?;
    within("max_buffer_memory", &engine.max_buffer_memory, Size(1 << 20)..=*MEMORY.end())?;
    within("time_wait_s", &engine.time_wait_s, 0..=600)?;
    within("queue_packets", &engine.queue_packets, 1..=65_536)?;
    within("base", &config.extension.base, 0..=98)?;
    within("range", &config.extension.range, 1..=MAX_PRIORITY)?;
    let most = config.extension.base.get_ref().saturating_add(*config.extension.range.get_ref());
    if most >= *config.engine.realtime_priority.get_ref() {
        let message = format!(
            "base + range is {most}, and must be below the engine's realtime_priority ({}): a thread above the engine \
             would keep it from the packets that the thread waits for",
            config.engine.realtime_priority.get_ref()
        );
        return fault(&config.extension.range, message);
    }
    scheduling::check_scheduler(&config.scheduler)?;
    scheduling::check_linux(&config.linux)?;
    within("quantum_us", &config.linux.quantum_us, 10..=1_000_000)?;
    within("interval_us", &config.linux.interval_us, 0..=1_000_000)?;
    within("priority", &config.system.priority, 0..=MAX_PRIORITY)
}

/// Checks classes on an engine with these devices.
pub(super) fn check_classes(classes: &[Class], devices: &[Device]) -> Checked {
    if let Some(class) = classes.get(MAX_CLASSES - 1) {
        return fault(&class.name, format!("too many classes; at most {}", MAX_CLASSES - 1));
    }
    let mut names = BTreeSet::new();
    let mut takes_all: Option<&str> = None;
    for class in classes {
        let name = class.name.get_ref().as_str();
        if name.is_empty() || name.chars().any(char::is_control) {
            return fault(&class.name, "a class needs a name that can be printed".into());
        }
        if !names.insert(name) {
            return fault(
                &class.name,
                format!("class `{name}` is there twice; each needs a name of its own"),
            );
        }
        if let Some(all) = takes_all.filter(|_| name == DEFAULT_CLASS) {
            let message = format!(
                "nothing is left for class `{DEFAULT_CLASS}`: `{all}` before it takes everything; change `{all}`, or \
                 give it conditions"
            );
            return fault(&class.name, message);
        }
        if let Some(all) = takes_all {
            let message = format!(
                "class `{name}` is never reached: `{all}` before it takes everything; put `{name}` before `{all}`"
            );
            return fault(&class.name, message);
        }
        if class.matches_everything() {
            takes_all = Some(name);
        } else if name == DEFAULT_CLASS {
            let message = format!(
                "class `{DEFAULT_CLASS}` takes what no other takes; remove its conditions or rename it"
            );
            return fault(&class.name, message);
        }
        scheduling::check_class(class)?;
        check_limits(class)?;
        if let Some(program) =
            class.program.iter().find(|program| program.is_empty() || program.contains('/'))
        {
            let message = format!("program `{program}`: give the last part of its path, such as \"nginx\"");
            return fault(&class.name, message);
        }
        check_cgroups(&class.cgroup)?;
        check_interfaces(class, devices)?;
        request::check(class)?;
    }
    Ok(())
}

/// What a class may have.
fn check_limits(class: &Class) -> Checked {
    if let Some(queue) = &class.queue_packets {
        within("queue_packets", queue, 1..=65_536)?;
    }
    if let Some(memory) = &class.memory {
        within("memory", memory, MEMORY)?;
    }
    if let Some(limit) = &class.connections {
        within("connections", limit, 1..=4_000_000)?;
    }
    if let Some(weight) = &class.weight {
        within("weight", weight, 1..=MAX_WEIGHT)?;
    }
    if let Some(rate) = &class.rate {
        within("rate", rate, RATES)?;
    }
    Ok(())
}

fn check_permissions(config: &Config) -> Checked {
    for permission in &config.permission {
        if let Some(priority) = &permission.priority {
            within("priority", priority, 0..=MAX_PRIORITY)?;
        }
        if let Some(deadline) = &permission.deadline_us {
            within("deadline_us", deadline, scheduling::DEADLINES_US)?;
        }
        if let Some(weight) = &permission.weight {
            within("weight", weight, 1..=MAX_WEIGHT)?;
        }
        for program in &permission.program {
            let name = program.get_ref();
            if name.is_empty() || name.contains('/') {
                let message = format!("program `{name}`: give the last part of its path, such as \"nginx\"");
                return fault(program, message);
            }
        }
        check_cgroups(&permission.cgroup)?;
        let names = config.class.iter().map(|class| class.name.get_ref().as_str());
        let names: Vec<&str> = names.filter(|&name| name != DEFAULT_CLASS).chain([DEFAULT_CLASS]).collect();
        for class in &permission.class {
            let name = class.get_ref().as_str();
            if !names.contains(&name) {
                return fault(class, super::unknown("class", name, &names));
            }
        }
        let places =
            permission.priority.is_some() || permission.deadline_us.is_some() || permission.weight.is_some();
        if !places && permission.class.is_empty() && permission.extend.is_none() {
            let at = permission.program.first().or(permission.cgroup.first()).map_or(0..0, Spanned::span);
            let message =
                "a permission that permits nothing: give it priority, deadline_us, weight, class or extend";
            return Err(Fault { at, message: message.into() });
        }
    }
    Ok(())
}

fn check_cgroups(groups: &[Spanned<String>]) -> Checked {
    for group in groups {
        let path = group.get_ref();
        if !path.starts_with('/') || path.trim_end_matches('/').is_empty() {
            let message = format!(
                "cgroup `{path}`: give its path below the root, such as \"/system.slice/nginx.service\"; \
                 /proc/PID/cgroup shows that of a process"
            );
            return fault(group, message);
        }
    }
    Ok(())
}

fn check_interfaces(class: &Class, devices: &[Device]) -> Checked {
    let names: Vec<&str> = devices.iter().map(|device| device.name.get_ref().as_str()).collect();
    let unknown = |name: &&Spanned<String>| {
        let name = name.get_ref().as_str();
        !names.contains(&name) && name != OWN_LINK
    };
    let Some(unknown) = class.interface.iter().find(unknown) else { return Ok(()) };
    let message = format!(
        "interface `{}` is none of the devices; there {} {}",
        unknown.get_ref(),
        if names.len() == 1 { "is" } else { "are" },
        names.join(", ")
    );
    fault(unknown, message)
}
