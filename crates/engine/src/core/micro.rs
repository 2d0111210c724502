//! What a path costs to make and to end, measured on a whole engine (`scoutline bench micro`).

use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use scoutline_abi::Region;
use scoutline_abi::layout::slot_kind;
use scoutline_base::{DeviceId, Endpoint, PathId, Time};
use scoutline_device::memory::{WireConfig, wire};
use scoutline_device::{DeviceConfig, Driver, tap};
use scoutline_path::{Attributes, Name, Value};
use scoutline_proto::bindings::Sharing;
use scoutline_sched::transmit::Preemption;
use scoutline_wire::ipv4::PROTOCOL_TCP as TCP;

use super::Core;
use super::paths::flow_key;
use crate::clock;
use crate::command::{Command, RegionId};
use crate::settings::{DeviceSettings, EngineSettings, ProgramFacts};
use crate::socket::SocketEnd;
use crate::start::StartError;

const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// Time for one path.
#[derive(Clone, Copy, Debug)]
pub struct PathCost {
    /// Creation: attributes, four stages, establishment, rules, tables, schedule, accounts.
    pub create: Duration,
    /// Destruction: everything given back.
    pub destroy: Duration,
    /// The longest that one of the others took to make, while the tables grew.
    pub longest: Duration,
}

/// Makes and ends `rounds` passive TCP paths beside `neighbours` others, and says what one cost on average.
///
/// # Errors
/// When the engine cannot be put together.
pub fn path_cost(neighbours: u32, rounds: u32) -> Result<PathCost, StartError> {
    let settings = EngineSettings {
        devices: vec![DeviceSettings {
            device: DeviceConfig { id: DeviceId(0), driver: Driver::Tap(tap::Config::new("unused")) },
            address: OURS,
            prefix: 8,
            gateway: None,
            ip6: None,
            rate: None,
            preemption: Preemption::default(),
        }],
        max_paths: neighbours + 1000,
        ..EngineSettings::default()
    };
    let (device, _other_end) = wire(1, WireConfig::default());
    let mut core = Core::with_devices(settings, vec![Box::new(device)], Time::ZERO)?;
    let listener = listening(&mut core)?;
    let parent = listener.listen_paths.borrow()[0];
    let (mut made, mut longest) = (Vec::new(), Duration::ZERO);
    for number in 0..neighbours {
        let start = clock::now();
        made.push(passive(&mut core, parent, number));
        longest = longest.max(clock::now().since(start));
    }
    let (mut create, mut destroy) = (Duration::ZERO, Duration::ZERO);
    for round in 0..rounds.div_ceil(BATCH) {
        let start = clock::now();
        let batch = create_batch(&mut core, parent, neighbours + round % 8 * BATCH);
        let between = clock::now();
        destroy_batch(&mut core, batch);
        create += between.since(start);
        destroy += clock::now().since(between);
    }
    let count = rounds.div_ceil(BATCH) * BATCH;
    Ok(PathCost { create: create / count, destroy: destroy / count, longest })
}

fn listening(core: &mut Core) -> Result<Rc<SocketEnd>, StartError> {
    let (region, _fd) = Region::create().map_err(|error| StartError::System {
        what: "region",
        source: std::io::Error::other(error.to_string()),
    })?;
    let id = RegionId(0);
    let region = Arc::new(region);
    let program = ProgramFacts { name: "micro".into(), ..ProgramFacts::default() };
    core.obey(Command::AddRegion { id, region, program, pid: 0, key: None, bells: Vec::new() }, Time::ZERO);
    let fault = || StartError::Graph("the listen path could not be made".into());
    let program = core.programs.get(&id).cloned().ok_or_else(fault)?;
    let end = SocketEnd::open(&program, slot_kind::STREAM).ok_or_else(fault)?;
    let local = Endpoint::new(Ipv4Addr::UNSPECIFIED, 80);
    core.bind(&end, local, Sharing::default(), Time::ZERO)
        .and_then(|_| core.listen(&end, 128, Time::ZERO))
        .map_err(|_| fault())?;
    Ok(end)
}

/// Paths are made in batches, so that reading the clock does not count.
const BATCH: u32 = 64;

#[inline(never)] // it has to have a name where instructions are counted
fn create_batch(core: &mut Core, parent: PathId, first: u32) -> Vec<PathId> {
    (first..first + BATCH).map(|number| passive(core, parent, number)).collect()
}

#[inline(never)] // as above
fn destroy_batch(core: &mut Core, batch: Vec<PathId>) {
    for id in batch {
        core.destroy(id);
    }
}

/// A path as a SYN makes it, but for the handshake.
fn passive(core: &mut Core, parent: PathId, number: u32) -> PathId {
    let local = Endpoint::new(OURS, 80);
    let remote =
        Endpoint::new(Ipv4Addr::from_bits(0x0a01_0000 + number / 20_000), 1024 + (number % 20_000) as u16);
    let attributes = Attributes::new()
        .with(Name::Protocol, Value::Number(u64::from(TCP)))
        .with(Name::Local, Value::Address(local))
        .with(Name::Remote, Value::Address(remote))
        .with(Name::Parent, Value::Path(parent))
        .with(Name::Other(scoutline_proto::tcp::module::PASSIVE), Value::Number(1));
    let stands = core.policy.class(0).settings.stands();
    let id = core.make_path(0, "SOCKET", attributes, (0, stands)).expect("within the budget");
    core.bind_flow(id, flow_key(0, TCP, local, remote));
    id
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_measures_something() {
        let cost = super::path_cost(100, 128).unwrap();
        assert!(!cost.create.is_zero() && !cost.destroy.is_zero());
    }
}
