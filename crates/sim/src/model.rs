//! What stands around a real engine when its driver holds the clock: the end of a wire in memory, and a program that
//! uses its region as the shim does. For the simulation here and for packet scripts (`crates/conformance`).

mod end;
mod socket;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use scoutline_abi::Region;
use scoutline_abi::layout::call_state;
use scoutline_base::{DeviceId, Time};
use scoutline_device::{DeviceConfig, Driver, tap};
use scoutline_engine::{Command, DeviceSettings, Driven, ProgramFacts, RegionId};
use scoutline_sched::transmit::Preemption;

pub use end::End;
pub use socket::{More, Socket};

/// A device of which only the addresses matter: the partner behind it is given to [`Driven::new`].
pub fn device(id: u16, address: Ipv4Addr, prefix: u8, gateway: Option<Ipv4Addr>) -> DeviceSettings {
    let driver = Driver::Tap(tap::Config::new("unused"));
    DeviceSettings {
        device: DeviceConfig { id: DeviceId(id), driver },
        address,
        prefix,
        gateway,
        ip6: None,
        rate: None,
        preemption: Preemption::default(),
    }
}

/// Attaches a program with one process, record 0.
///
/// # Panics
/// When the kernel gives no memory.
pub fn attach(engine: &mut Driven, id: RegionId, name: &str, now: Time) -> Arc<Region> {
    let (region, _fd) = Region::create().expect("a region");
    let region = Arc::new(region);
    let program = ProgramFacts { name: name.into(), ..ProgramFacts::default() };
    engine.obey(
        Command::AddRegion { id, region: Arc::clone(&region), program, pid: 1, key: None, bells: Vec::new() },
        now,
    );
    region.process(0).expect("a region has process records").alive.store(1, Release);
    region
}

/// Asks the engine, which answers at once. Below 0: an errno.
///
/// # Panics
/// When the engine does not answer.
pub fn call(region: &Region, engine: &mut Driven, now: Time, op: u32, slot: u32, arguments: [u64; 4]) -> i32 {
    let call = region.call(0).expect("a region has calls");
    call.op.store(op, Relaxed);
    call.slot.store(slot, Relaxed);
    call.process.store(1, Relaxed);
    call.set.store(0, Relaxed);
    for (cell, value) in call.arguments.iter().zip(arguments) {
        cell.store(value, Relaxed);
    }
    call.state.store(call_state::POSTED, Release);
    region.header().calls_pending[0].0[0].fetch_or(1, SeqCst);
    engine.settle(now);
    assert_eq!(call.state.load(Acquire), call_state::DONE, "the engine answers calls at once");
    call.result.load(Relaxed)
}
