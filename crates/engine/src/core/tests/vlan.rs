//! Networks on one device, told apart by tags.

use scoutline_device::vlan;
use scoutline_path::DropReason;

use super::*;

/// 10.7.0.1 and 10.8.0.1 as calls have them.
const SEVEN: u64 = 0xffff_0a07_0001;
const EIGHT: u64 = 0xffff_0a08_0001;

/// A network with this number and address on the first device.
fn network(id: u16, number: u16, address: [u8; 4]) -> DeviceSettings {
    let options = vlan::Config {
        name: format!("eth1.{number}"),
        parent: DeviceId(0),
        vlan: number,
        priority: 3,
        by_kernel: true,
    };
    let device = DeviceConfig { id: DeviceId(id), driver: Driver::Vlan(options) };
    DeviceSettings { device, ..device_settings(id, address) }
}

/// A host whose device has an untagged network and these.
fn host(last: u8, numbers: &[u16], device: MemoryPartner) -> Host {
    let mut settings = EngineSettings {
        devices: vec![device_settings(0, [10, 0, 0, last])],
        receive_buffer: RINGS,
        send_buffer: RINGS,
        max_paths: 1000,
        spin: Duration::ZERO,
        ..EngineSettings::default()
    };
    let shared = vlan::share(Box::new(Polled(device)));
    let mut devices: Vec<Box<dyn Partner>> = vec![Box::new(shared.clone())];
    for (index, &number) in numbers.iter().enumerate() {
        let settings_of = network(index as u16 + 1, number, [10, number as u8, 0, last]);
        let Driver::Vlan(options) = &settings_of.device.driver else { unreachable!() };
        devices.push(Box::new(vlan::open(options, &shared)));
        settings.devices.push(settings_of);
    }
    let core = Core::with_devices(settings, devices, Time::ZERO).unwrap();
    Host::around(core, ProgramFacts { name: "model".into(), ..ProgramFacts::default() })
}

fn pair(config: WireConfig) -> Pair {
    let (a, b) = wire(3, config);
    Pair { client: host(2, &[7], a), server: host(1, &[7, 8], b), now: Time::from_millis(1) }
}

#[test]
fn each_network_has_its_own_connections() {
    for whole in [false, true] {
        let mut pair = pair(WireConfig { whole, ..WireConfig::default() });
        let listener = pair.listen(80);
        let now = pair.now;
        for address in [SERVER, SEVEN] {
            let client = pair.client.open(slot_kind::STREAM, now);
            assert_eq!(pair.client.call(call_op::CONNECT, client, [address, 80, 0, 0], now), 0);
            let bytes = pattern(300_000, address);
            let (mut accepted, mut written, mut read) = (None, 0, Vec::new());
            pair.until("carried", |pair| {
                accepted = accepted.or_else(|| pair.server.accept(listener));
                written += pair.client.write(client, &bytes[written..]);
                read.extend(accepted.map(|slot| pair.server.read(slot, usize::MAX)).unwrap_or_default());
                read.len() == bytes.len()
            });
            assert!(read == bytes);
        }
    }
}

#[test]
fn a_network_that_is_not_ours_is_not_taken() {
    let mut pair = pair(WireConfig::default());
    pair.listen(80);
    let now = pair.now;
    // The client knows no way to the network 8; one that it takes for its untagged one does not reach it.
    let client = pair.client.open(slot_kind::STREAM, now);
    assert_eq!(pair.client.call(call_op::CONNECT, client, [EIGHT, 80, 0, 0], now), -libc::ENETUNREACH);
    let before = pair.server.core.unowned.drops(DropReason::NotForUs);
    let drops = |pair: &Pair, reason| pair.server.core.unowned.drops(reason);
    let frame = |tags: &[u16]| {
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, 9]);
        for tag in tags {
            frame.extend([0x81, 0]);
            frame.extend(tag.to_be_bytes());
        }
        frame.extend([8, 6]);
        frame.resize(80, 0);
        let len = frame.len() as u32;
        scoutline_path::Message::received(
            scoutline_ring::Block::from_bytes(frame.into()),
            0..len,
            scoutline_path::Facts::default(),
        )
    };
    let give = |pair: &mut Pair, tags: &[u16]| pair.server.core.classify(0, frame(tags), now);
    give(&mut pair, &[9]);
    assert_eq!(drops(&pair, DropReason::NotForUs), before + 1);
    // Tags within tags, however many.
    give(&mut pair, &[7, 8]);
    give(&mut pair, &[0, 0, 0]);
    assert_eq!(drops(&pair, DropReason::UnknownProtocol), 2);
    // Without a number it is the device's own.
    give(&mut pair, &[0xe000]);
    assert_eq!(drops(&pair, DropReason::NotForUs), before + 1);
}
