//! `scoutline up`: start order, signals, the end.
//!
//! Sockets first (a second daemon is refused before it touches a device), then the engine with its devices, then
//! `ready`. The end goes the other way round.

use std::io::Write as _;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};
use rustix::thread::CpuSet;
use scoutline_device::{SegmentLimit, Steering, Suited};
use scoutline_engine::{Engine, StartError, UndoLog};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::attach::Owners;
use crate::claim::{Claim, Claimed};
use crate::classes::Classes;
use crate::config::{Config, ConfigError, Device, Driver};
use crate::engine::EngineLink;
use crate::engines::Engines;
use crate::guard::{Guard, Undo};
use crate::plane::{Ended, Plane, PlaneSettings, Told};
use crate::sockets::SocketError;

/// Why the daemon did not start, or ended badly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// The configuration cannot be used on this machine.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A socket cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Another daemon has an interface.
    #[error(transparent)]
    Claimed(#[from] Claimed),
    /// The engine did not start: a device or a privilege is missing.
    #[error(transparent)]
    Engine(StartError),
    /// A system call of the control plane failed.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The engine ended while programs were served.
    #[error("the engine has ended by itself; this is a defect: please report it with the lines above")]
    EngineGone,
}

/// Runs the daemon until SIGTERM, SIGINT or `scoutline stop`. SIGHUP has it read its configuration file again; it
/// stops one that has no file. Prints one line that begins with `ready` once programs can attach.
///
/// # Errors
/// It does not start, or the engine ends by itself.
pub fn run(config: &Config) -> Result<(), DaemonError> {
    // Until the engine has let go of the devices, and they are as they were.
    let mut claims = Vec::new();
    let mut guard = None;
    let start = || {
        claims = claim_interfaces(config)?;
        let config = &with_drivers_chosen(config);
        guard = Guard::start().map_err(|error| log::warn!("{error}")).ok();
        let mut undo = None;
        if let Some(guard) = &mut guard {
            lengthen_segments(config, guard);
            end_steering(config, guard);
            undo = guard.log().map_err(|error| log::warn!("threads keep their own priority: {error}")).ok();
        }
        start_engines(config, undo).map_err(DaemonError::Engine)
    };
    run_with(config, start, || announce(config), Engines::stop)
}

/// Looks whether this machine has what a configuration names: its group, its interfaces, its cores. Nothing is changed.
///
/// # Errors
/// What [`run`] would say of the first thing that is not there.
pub fn check(config: &Config) -> Result<(), DaemonError> {
    config.control.group_id()?;
    let ordinary = |device: &&Device| {
        device.vlan.is_none() && matches!(device.driver, Driver::Packet | Driver::Xdp | Driver::Auto)
    };
    for device in config.device.iter().filter(ordinary) {
        scoutline_device::choose(device.name.get_ref()).map_err(|error| DaemonError::Engine(error.into()))?;
    }
    for &cpu in config.cores() {
        let refused = |source| DaemonError::Engine(StartError::Cpu { cpu, source });
        // A thread of its own, that nobody else stays there.
        let tried = std::thread::spawn(move || pin(cpu)).join();
        tried.unwrap_or(Err(Errno::INVAL)).map_err(|error| refused(error.into()))?;
    }
    Ok(())
}

fn pin(cpu: usize) -> Result<(), Errno> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(Errno::INVAL);
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
}

/// One engine, or one on each core that was asked for.
fn start_engines(config: &Config, undo: Option<Box<dyn UndoLog>>) -> Result<Engines, StartError> {
    let (settings, cores) = (config.settings(), config.cores());
    if cores.len() < 2 {
        return Ok(Engines::new(vec![Engine::start(settings, undo)?]));
    }
    Engine::start_several(settings.parts(cores), undo).map(Engines::new)
}

/// Makes sure that no other daemon serves the interfaces. Those that are not there the engine tells of.
fn claim_interfaces(config: &Config) -> Result<Vec<Claim>, Claimed> {
    let ordinary = |device: &&Device| {
        device.parent.is_none() && matches!(device.driver, Driver::Packet | Driver::Xdp | Driver::Auto)
    };
    config.device.iter().filter(ordinary).map(|device| Claim::of(device.name.get_ref())).collect()
}

/// Settles what `driver = "auto"` means, and says why.
fn with_drivers_chosen(config: &Config) -> Config {
    let mut chosen = config.clone();
    for device in chosen.device.iter_mut().filter(|device| device.driver == Driver::Auto) {
        let name = device.name.get_ref();
        let is_parent = |other: &Device| other.parent.as_ref().is_some_and(|parent| parent.get_ref() == name);
        device.driver = if config.device.iter().any(is_parent) {
            log::info!("{name}: driver \"packet\", because networks with tags are on it");
            Driver::Packet
        } else {
            match scoutline_device::choose(name) {
                Ok((Suited::Packet, why)) => {
                    log::info!("{why}");
                    Driver::Packet
                }
                Ok((Suited::Xdp, why)) => {
                    log::info!("{why}");
                    Driver::Xdp
                }
                // What is wrong with the interface is said when it is opened.
                Err(_) => Driver::Packet,
            }
        };
    }
    chosen
}

/// Has the interfaces that are ours alone take super-segments as long as we can make use of.
fn lengthen_segments(config: &Config, guard: &mut Guard) {
    for (name, wanted) in config.long_segments() {
        let mut lengthen = || {
            let Some(limit) = SegmentLimit::named(name)? else { return Ok(()) };
            let wanted = wanted.min(limit.most);
            if limit.now >= wanted {
                return Ok(());
            }
            let undo = Undo::SegmentLimit { interface: limit.interface, len: limit.now };
            guard.note(undo.clone())?;
            SegmentLimit::set(limit.interface, wanted).or_else(|error| guard.take_back(undo).and(Err(error)))
        };
        // That there is no such interface, say, the engine tells better.
        if let Err(error) = lengthen() {
            log::debug!("{name} keeps its limit of super-segments: {error}");
        }
    }
}

/// Has the interfaces that are ours alone hand their packets to no other core than the one that was interrupted.
fn end_steering(config: &Config, guard: &mut Guard) {
    for name in config.unsteered() {
        let mut end = || {
            for Steering { interface, queue, cores } in
                Steering::named(name)?.into_iter().filter(Steering::is_on)
            {
                let undo = Undo::Steering { interface, queue: queue.clone(), cores };
                guard.note(undo.clone())?;
                Steering::set(interface, &queue, Steering::NONE)
                    .or_else(|error| guard.take_back(undo).and(Err(error)))?;
            }
            Ok::<(), std::io::Error>(())
        };
        if let Err(error) = end() {
            log::debug!("{name} keeps its receive steering: {error}");
        }
    }
}

/// Runs the daemon with an engine that `start` makes and `finish` stops. `ready` is called once programs can
/// attach.
fn run_with<E: EngineLink>(
    config: &Config,
    start: impl FnOnce() -> Result<E, DaemonError>,
    ready: impl FnOnce(),
    finish: impl FnOnce(E),
) -> Result<(), DaemonError> {
    let group = config.control.group_id()?;
    let owners = Owners { uid: rustix::process::geteuid().as_raw(), group };
    let settings = PlaneSettings {
        control: config.control.socket.get_ref().clone(),
        mode: config.control.mode.0,
        owners,
    };
    raise_descriptor_limit();
    let classes = Classes::new(config);
    let (told, _signals) = watch_signals(classes.has_file())
        .map_err(|source| DaemonError::System { action: "watch signals", source })?;
    let mut plane = Plane::bind(&settings, classes)?;
    let engine = start()?;
    for notice in engine.notices() {
        log::warn!("{notice}");
    }
    ready();
    let ended = plane.serve(&engine, &told);
    drop(plane); // nobody attaches any more
    log::info!("stopping");
    finish(engine);
    match ended {
        Ok(Ended::Asked) => Ok(()),
        Ok(Ended::EngineGone) => Err(DaemonError::EngineGone),
        Err(source) => Err(DaemonError::System { action: "wait for events", source }),
    }
}

/// Prints the one line that says that programs can attach.
fn announce(config: &Config) {
    let devices: Vec<String> = config
        .device
        .iter()
        .map(|device| {
            let networks = device.networks().iter().map(|network| format!(" {network}"));
            let more = device.address6.iter().map(|network| format!(" {}", network.get_ref()));
            format!("{}{}", device.name.get_ref(), networks.chain(more).collect::<String>())
        })
        .collect();
    let mut out = std::io::stdout().lock();
    // Who started us may have closed its end.
    let _ =
        writeln!(out, "ready: {} control {}", devices.join(", "), config.control.socket.get_ref().display());
    let _ = out.flush();
}

/// Takes back the signal handlers when it goes; keeps the ends open that they write to.
struct Signals(Vec<SigId>, Vec<UnixStream>);

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.0.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

/// Streams that become readable when signals come. `reloads`: there is a file to read again.
fn watch_signals(reloads: bool) -> std::io::Result<(Told, Signals)> {
    let (stop, write_stop) = UnixStream::pair()?;
    let (reload, write_reload) = UnixStream::pair()?;
    let mut signals = Signals(Vec::new(), Vec::new());
    let hang_up = if reloads { &write_reload } else { &write_stop };
    for (signal, write) in [(SIGTERM, &write_stop), (SIGINT, &write_stop), (SIGHUP, hang_up)] {
        signals.0.push(signal_hook::low_level::pipe::register(signal, write.try_clone()?)?);
    }
    // An end that nobody writes to must not look like the end of a file.
    signals.1.push(write_reload);
    Ok((Told { stop, reload }, signals))
}

/// Each poll set and each process takes a descriptor.
fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, wanted) {
        log::warn!("cannot raise the limit of descriptors: {error}");
    }
}
