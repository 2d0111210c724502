//! A forwarding host in the middle: two wires, and its own engine that honours classes for others.

use std::net::{Ipv4Addr, Ipv6Addr};

use scoutline_abi::layout::slot_flag;
use scoutline_base::Address;
use scoutline_path::DropReason;
use scoutline_proto::ip6::Host6Config;
use scoutline_sched::Level;
use scoutline_sched::transmit::BitRate;

use super::floods::datagram_to;
use super::*;
use crate::settings::{ClassSettings, Forward};

const RATE: u64 = 100_000_000;
const BACKGROUND: u64 = 873;
const RINGS: u32 = 1 << 20;
/// The server's addresses, on the far side.
const FAR: Address = Address::from_v4(Ipv4Addr::new(10, 1, 0, 2));
const FAR6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2);
/// The client's, and the router's on both sides.
const CLIENT6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const ROUTER6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1)];

/// An address in a network of 64 bits, with the router there.
fn ip6(address: Ipv6Addr, gateway: Option<Ipv6Addr>) -> Host6Config {
    Host6Config { addresses: vec![(address, 64)], gateway, autoconfigure: false }
}

struct Chain {
    client: Host,
    router: Core,
    server: Host,
    now: Time,
}

impl Chain {
    /// The router's link to the server has the rate; everything else is fast.
    fn new(seed: u64, config: WireConfig, change: impl FnOnce(&mut EngineSettings)) -> Chain {
        Chain::with_hosts(seed, config, change, |_, _| {})
    }

    /// All three speak IPv6 too, and have their addresses.
    fn with_ip6(seed: u64, config: WireConfig) -> Chain {
        let router = |settings: &mut EngineSettings| {
            for (device, address) in settings.devices.iter_mut().zip(ROUTER6) {
                device.ip6 = Some(ip6(address, None));
            }
        };
        let mut chain = Chain::with_hosts(seed, config, router, |settings, is_client| {
            let (ours, gateway) = if is_client { (CLIENT6, ROUTER6[0]) } else { (FAR6, ROUTER6[1]) };
            settings.devices[0].ip6 = Some(ip6(ours, Some(gateway)));
        });
        chain.run(Duration::from_secs(3), |_| {});
        assert!(chain.server.core.nets[0].interface().is_ours(FAR6.into()));
        chain
    }

    fn with_hosts(
        seed: u64,
        config: WireConfig,
        change: impl FnOnce(&mut EngineSettings),
        change_host: impl Fn(&mut EngineSettings, bool),
    ) -> Chain {
        let (a, near) = wire(seed, config.clone());
        let (far, b) = wire(seed + 1, config);
        let mut settings = EngineSettings {
            devices: vec![device_settings(0, [10, 0, 0, 1]), device_settings(1, [10, 1, 0, 1])],
            forwards: [(0, 1), (1, 0)]
                .map(|(from, to)| Forward { from: DeviceId(from), to: DeviceId(to) })
                .to_vec(),
            max_paths: 100,
            spin: Duration::ZERO,
            ..EngineSettings::default()
        };
        change(&mut settings);
        let devices: Vec<Box<dyn Partner>> =
            vec![Box::new(Polled(near)), Box::new(Polled(far.with_id(DeviceId(1))))];
        let gateway = |address: [u8; 4], is_client| {
            let change_host = &change_host;
            move |settings: &mut EngineSettings| {
                settings.devices[0].gateway = Some(address.into());
                change_host(settings, is_client);
            }
        };
        Chain {
            client: Host::with([10, 0, 0, 2], a, RINGS, gateway([10, 0, 0, 1], true)),
            router: Core::with_devices(settings, devices, Time::ZERO).unwrap(),
            server: Host::with([10, 1, 0, 2], b, RINGS, gateway([10, 1, 0, 1], false)),
            now: Time::from_millis(1),
        }
    }

    fn run(&mut self, time: Duration, mut each: impl FnMut(&mut Chain)) {
        let until = self.now + time;
        while self.now < until {
            each(self);
            let limit = self.now + Duration::from_micros(100);
            self.client.settle(self.now);
            settle(&mut self.router, self.now);
            self.server.settle(self.now);
            settle(&mut self.router, self.now);
            self.client.settle(self.now);
            let next =
                [&self.client.core, &self.router, &self.server.core].map(|core| core.next_timeout(self.now));
            let next = next.into_iter().flatten().min().unwrap_or(limit).min(limit);
            self.now = next.max(self.now + Duration::from_micros(5));
        }
    }

    fn established(&mut self, port: u64) -> (u32, u32) {
        self.established_at(FAR, port)
    }

    fn established_at(&mut self, far: Address, port: u64) -> (u32, u32) {
        let now = self.now;
        let open = |host: &mut Host| {
            let slot = host.open(slot_kind::STREAM, now);
            if !far.is_v4() {
                host.slot(slot).flags.store(slot_flag::INET6, Ordering::Release);
            }
            slot
        };
        let arguments = |address: Address| {
            let [high, low] = address.words();
            [low, port, 0, high]
        };
        let listener = open(&mut self.server);
        assert_eq!(self.server.call(call_op::BIND, listener, arguments(far), now), 0);
        assert_eq!(self.server.call(call_op::LISTEN, listener, [16, 0, 0, 0], now), 0);
        let client = open(&mut self.client);
        assert_eq!(self.client.call(call_op::CONNECT, client, arguments(far), now), 0);
        let mut accepted = None;
        for _ in 0..100 {
            self.run(Duration::from_millis(10), |chain| {
                accepted = accepted.or_else(|| chain.server.accept(listener));
            });
            if let Some(server) = accepted {
                return (client, server);
            }
        }
        panic!("no connection through the router");
    }
}

fn background(settings: &mut EngineSettings) {
    // Both directions: acknowledgments of background are background too.
    let ports = vec![BACKGROUND as u16..=BACKGROUND as u16];
    let class = |name: &str| ClassSettings { level: Level::Idle, ..ClassSettings::new(name) };
    settings.classes = vec![
        ClassSettings { local_ports: ports.clone(), ..class("backup") },
        ClassSettings { remote_ports: ports, ..class("backup answers") },
    ];
    settings.devices[1].rate = Some(BitRate::new(RATE));
}

fn transfer(config: WireConfig, len: usize) {
    let chain = Chain::new(21, config, |_| {});
    transfer_to(FAR, chain, len);
}

fn transfer_to(far: Address, mut chain: Chain, len: usize) {
    let (client, server) = chain.established_at(far, 80);
    let (up, down) = (pattern(len, 1), pattern(len, 2));
    let (mut sent_up, mut sent_down, mut got_up, mut got_down) = (0, 0, Vec::new(), Vec::new());
    for _ in 0..10_000 {
        chain.run(Duration::from_millis(10), |chain| {
            sent_up += chain.client.write(client, &up[sent_up..]);
            sent_down += chain.server.write(server, &down[sent_down..]);
            got_up.extend(chain.server.read(server, usize::MAX));
            got_down.extend(chain.client.read(client, usize::MAX));
        });
        if got_up.len() == len && got_down.len() == len {
            break;
        }
    }
    assert!(got_up == up && got_down == down, "{} and {} of {len} bytes", got_up.len(), got_down.len());
    let forwarders: Vec<String> = chain
        .router
        .forwarders
        .values()
        .map(|id| {
            let path = chain.router.paths.get(*id).unwrap();
            path.stages().iter().map(|stage| stage.module()).collect::<Vec<_>>().join("-")
        })
        .collect();
    assert_eq!(forwarders, ["ETH-FORWARD-ETH", "ETH-FORWARD-ETH"], "one path for each direction");
}

#[test]
fn streams_pass_both_ways() {
    transfer(WireConfig::default(), 1_000_000);
    transfer(hard_wire(), 100_000);
}

/// Super-segments that come whole leave whole.
#[test]
fn super_segments_stay_whole() {
    transfer(WireConfig { whole: true, ..WireConfig::default() }, 2_000_000);
}

/// A dense while of short packets gives the engine a rest, unless there is anything else.
#[test]
fn dense_short_packets_are_looked_for_now_and_then() {
    const WHILE: Duration = Duration::from_micros(50);
    let mut chain = Chain::new(51, WireConfig::default(), |_| {});
    let (client, server) = chain.established(80);
    let link = chain.router.nets[0].device.facts().link_address;
    let bring = |chain: &mut Chain, count: usize| {
        for _ in 0..count {
            chain.router.classify(0, datagram_to(link, [10, 1, 0, 2], 53), chain.now);
        }
        settle(&mut chain.router, chain.now);
    };
    let rests = |chain: &mut Chain| {
        chain.now += WHILE;
        chain.router.moderation.pause(chain.now).is_some()
    };
    rests(&mut chain);
    bring(&mut chain, 20);
    assert!(rests(&mut chain));
    bring(&mut chain, 7);
    assert!(!rests(&mut chain), "few");
    bring(&mut chain, 200);
    assert_eq!(chain.client.write(client, &[7; 1000]), 1000);
    chain.run(WHILE * 2, |_| {});
    assert_eq!(chain.server.read(server, usize::MAX).len(), 1000);
    assert!(!rests(&mut chain), "a long one among them");
    bring(&mut chain, 20);
    assert!(rests(&mut chain));
}

/// IPv6 goes by the same paths.
#[test]
fn streams_pass_over_ip6() {
    transfer_to(FAR6.into(), Chain::with_ip6(31, WireConfig::default()), 1_000_000);
    transfer_to(FAR6.into(), Chain::with_ip6(32, hard_wire()), 100_000);
    let whole = WireConfig { whole: true, ..WireConfig::default() };
    transfer_to(FAR6.into(), Chain::with_ip6(33, whole), 2_000_000);
}

/// Two levels for others' traffic, on a link whose rate only the router knows.
#[test]
fn background_yields_at_a_router() {
    for whole in [false, true] {
        let config = WireConfig { whole, delay: Duration::from_micros(50), ..WireConfig::default() };
        let mut chain = Chain::new(22, config, background);
        let (low, low_end) = chain.established(BACKGROUND);
        let (high, high_end) = chain.established(80);
        let mut received = [0u64; 2];
        let mut measure = |chain: &mut Chain, busy: bool, time: Duration| {
            received = [0; 2];
            chain.run(time, |chain| {
                chain.client.write(low, &vec![1; 60_000]);
                if busy {
                    chain.client.write(high, &vec![2; 60_000]);
                }
                received[0] += chain.server.read(low_end, usize::MAX).len() as u64;
                received[1] += chain.server.read(high_end, usize::MAX).len() as u64;
            });
            received.map(|bytes| bytes as f64 / 1448.0 * 1514.0 * 8.0 / RATE as f64 / time.as_secs_f64())
        };
        let time = Duration::from_millis(400);
        measure(&mut chain, true, time);
        let [low, high] = measure(&mut chain, true, time);
        assert!(high >= 0.95 && low <= 0.01, "whole {whole}: foreground {high}, background {low}");
        // The background connection has lost packets and waits for its timer; then it has the link.
        measure(&mut chain, false, Duration::from_secs(4));
        let [low, _] = measure(&mut chain, false, time);
        assert!(low >= 0.9, "whole {whole}: background beside silence {low}");
    }
}

/// Whatever waits in a forwarding path when the classes change goes on in the class that it is in now.
#[test]
fn classes_of_forwarded_traffic_change_live() {
    let mut chain = Chain::new(23, WireConfig::default(), |_| {});
    let (client, server) = chain.established(BACKGROUND);
    let class_of = |chain: &Chain| {
        let mut names: Vec<String> = chain
            .router
            .forwarders
            .values()
            .map(|id| {
                chain
                    .router
                    .policy
                    .class(chain.router.paths.get(*id).unwrap().class().into())
                    .settings
                    .name
                    .clone()
            })
            .collect();
        names.sort();
        names
    };
    assert_eq!(class_of(&chain), ["default", "default"]);
    let mut settings =
        EngineSettings { devices: vec![device_settings(0, [1; 4]); 2], ..EngineSettings::default() };
    background(&mut settings);
    let (done, answer) = std::sync::mpsc::channel();
    let now = chain.now;
    chain.router.obey(Command::SetClasses(settings.classes, done), now);
    let mut received = 0;
    chain.client.write(client, &vec![5; 50_000]);
    chain.run(Duration::from_millis(500), |chain| received += chain.server.read(server, usize::MAX).len());
    assert!(answer.try_recv().is_ok());
    assert_eq!(received, 50_000);
    assert_eq!(class_of(&chain), ["backup", "backup answers"]);
    let drops: u32 = chain.router.paths.iter().map(|path| path.account.drops(DropReason::QueueFull)).sum();
    assert_eq!(drops, 0);
}
