//! Starting an engine: devices are opened in its own thread, because what it owns never leaves it.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use scoutline_abi::served::Network;
use thiserror::Error;

use crate::alarm::Alarm;
use crate::bells::Bells;
use crate::command::Command;
use crate::core::Core;
use crate::extend::{Extension, Threads, UndoLog};
use crate::linux::Sentinel;
use crate::program::put_off::Home;
use crate::settings::EngineSettings;
use crate::several::{Mouth, Several};
use crate::sys::{self, Sleeper};
use crate::thread::Loop;

/// Why an engine could not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// No device is configured.
    #[error(
        "no device is configured: name one with `--device NAME --address A.B.C.D/N` or a [[device]] table"
    )]
    NoDevice,
    /// A device could not be opened.
    #[error("{0}")]
    Device(#[from] scoutline_device::OpenError),
    /// The module graph does not fit together: a fault of this program.
    #[error("module graph: {0}")]
    Graph(String),
    /// The link is too narrow for IPv6.
    #[error(
        "{device}: IPv6 needs an mtu of 1280 at least, and it has {mtu}: raise it, or take out ipv6 and address6"
    )]
    Ip6 {
        /// The device.
        device: String,
        /// What it carries.
        mtu: u32,
    },
    /// The core cannot be used.
    #[error("cannot run on core {cpu}: {source}; choose another with `cpu` in [engine], see `nproc`")]
    Cpu {
        /// The core.
        cpu: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// Real-time priority was required and refused.
    #[error("SCHED_FIFO is refused ({source}): run as root or with CAP_SYS_NICE, or set realtime = \"auto\"")]
    Realtime {
        /// What the system said.
        source: std::io::Error,
    },
    /// Another system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}

/// The networks that the engine's paths serve. The engine changes them when addresses come and go.
pub(crate) type Served = Arc<Mutex<Vec<Network>>>;

/// The entry to an engine.
pub struct Engine;

impl Engine {
    /// Opens the devices and starts the loop in a thread of its own. Returns once it serves. Without `undo` threads of
    /// programs keep their own priority.
    ///
    /// # Errors
    /// Whatever of it failed; then nothing stays behind.
    pub fn start(
        settings: EngineSettings,
        undo: Option<Box<dyn UndoLog>>,
    ) -> Result<EngineHandle, StartError> {
        if settings.devices.is_empty() {
            return Err(StartError::NoDevice);
        }
        let (mouth, ear) = way()?;
        let threads = Threads::new(settings.extension, undo);
        Engine::run(settings, Extension::new(threads, 0), Several::default(), mouth, ear)
    }

    /// The same for several engines, one for each of the settings ([`EngineSettings::parts`]), in their order.
    ///
    /// # Errors
    /// Whatever of it failed; then nothing stays behind.
    pub fn start_several(
        settings: Vec<EngineSettings>,
        undo: Option<Box<dyn UndoLog>>,
    ) -> Result<Vec<EngineHandle>, StartError> {
        let threads = Threads::new(settings.first().and_then(|first| first.extension), undo);
        let ways = settings.iter().map(|_| way()).collect::<Result<Vec<_>, _>>()?;
        let mouths: Vec<Mouth> = ways.iter().map(|(mouth, _)| mouth.clone()).collect();
        let start = |(index, (settings, (mouth, ear)))| {
            let extension = Extension::new(Arc::clone(&threads), index);
            Engine::run(settings, extension, Several::new(index, mouths.clone()), mouth, ear)
        };
        settings.into_iter().zip(ways).enumerate().map(start).collect()
    }

    fn run(
        settings: EngineSettings,
        extension: Extension,
        several: Several,
        mouth: Mouth,
        ear: Ear,
    ) -> Result<EngineHandle, StartError> {
        let served = Served::default();
        let told = Arc::clone(&served);
        let (report, ready) = channel();
        let name =
            if several.is_first() { "scl-engine".into() } else { format!("scl-engine{}", several.index) };
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || match prepare(settings, extension, several, ear, told) {
                Ok((mut engine, notices)) => {
                    let _ = report.send(Ok(notices));
                    engine.run();
                }
                Err(error) => {
                    let _ = report.send(Err(error));
                }
            })
            .map_err(|source| StartError::System { what: "thread", source })?;
        let notices = ready.recv().map_err(|_| StartError::System {
            what: "engine thread",
            source: std::io::Error::other("it ended before it served"),
        })??;
        Ok(EngineHandle { mouth, served, notices, thread: Some(thread) })
    }
}

/// An engine's end of the way to it.
struct Ear {
    commands: Receiver<Command>,
    doorbell: OwnedFd,
}

/// A way to an engine that is to be.
fn way() -> Result<(Mouth, Ear), StartError> {
    let doorbell = sys::eventfd().map_err(|source| StartError::System { what: "eventfd", source })?;
    let theirs = doorbell.try_clone().map_err(|source| StartError::System { what: "dup", source })?;
    let (commands, received) = channel();
    Ok((Mouth::new(commands, doorbell), Ear { commands: received, doorbell: theirs }))
}

/// Bits for a key of a region.
pub fn random_key() -> u64 {
    u64::from_le_bytes(sys::random_bytes())
}

/// In the engine's thread: everything that the loop needs.
fn prepare(
    settings: EngineSettings,
    extension: Extension,
    several: Several,
    Ear { commands, doorbell }: Ear,
    served: Served,
) -> Result<(Loop, Vec<String>), StartError> {
    let system = |what| move |source| StartError::System { what, source };
    let mut notices = Vec::new();
    let cpu = settings.cpu;
    let mut sentinel = None;
    sys::exact_timers();
    if let Some(cpu) = cpu {
        sys::pin(cpu).map_err(|source| StartError::Cpu { cpu, source })?;
        let bell = doorbell.try_clone().map_err(system("dup"))?;
        match Sentinel::start(cpu, bell) {
            Ok(started) => sentinel = Some(started),
            Err(error) => notices.push(format!(
                "no SCHED_IDLE thread ({error}): the engine cannot tell when Linux is idle and shares core {cpu} as \
                 an ordinary thread"
            )),
        }
    }
    let (required, priority) = (settings.realtime_required, settings.realtime_priority);
    let mut core = Core::open(settings, extension, several, &mut notices)?;
    core.share_served(served);
    let sleeper = Sleeper::new().map_err(system("epoll_create1"))?;
    let alarm = Alarm::new().map_err(system("timerfd_create"))?;
    let mut bells = Bells::new(doorbell).map_err(system("epoll_ctl"))?;
    for bell in core.bell_fds() {
        bells.watch(bell).map_err(system("epoll_ctl"))?;
    }
    sleeper.watch(bells.fd(), false).map_err(system("epoll_ctl"))?;
    for fd in core.device_fds() {
        sleeper.watch(fd, true).map_err(system("epoll_ctl"))?;
    }
    match priority.map(|priority| (priority, sys::set_realtime(priority))) {
        Some((_, Err(source))) if required => return Err(StartError::Realtime { source }),
        Some((_, Err(source))) => notices.push(format!(
            "SCHED_FIFO is refused ({source}): the engine runs as an ordinary thread, and programs may delay it"
        )),
        Some((priority, Ok(()))) if sentinel.is_some() => {
            core.put_off.home.set(cpu.map(|core| Home { core, priority }));
        }
        _ => {}
    }
    Ok((Loop::new(core, commands, bells, (sleeper, alarm), sentinel), notices))
}

/// A running engine, as the control thread holds it.
pub struct EngineHandle {
    mouth: Mouth,
    served: Served,
    notices: Vec<String>,
    thread: Option<JoinHandle<()>>,
}

impl EngineHandle {
    /// Gives the engine a command. Lost when the engine has ended.
    pub fn send(&self, command: Command) {
        self.mouth.send(command);
    }

    /// What its paths serve.
    pub fn served(&self) -> Vec<Network> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is degraded on this machine, a line each.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// True while the loop runs; false after a crash.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Stops the engine: connections are reset, devices closed.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.send(Command::Stop);
            // A panic of the thread has been printed where it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        self.end();
    }
}
