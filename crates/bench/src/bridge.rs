//! A bad line between two hosts: the deterministic wire of `memory` between two real interfaces.
//!
//! ```text
//!   client host ══ client │ packet → wire → packet │ server ══ server host
//!                         │ packet ← wire ← packet │
//!                         └── a host of its own ───┘
//! ```
//! One thread inside the bridge's host takes frames with one `packet` partner, puts them on the wire,
//! and sends what arrives there with the other partner. The wire's time is the real clock, so what it
//! loses, doubles, delays and reorders follows from its seed and from when the frames come.
//!
//! The interfaces of both hosts have their checksum and segmentation offloads off (`Testbed::over`): the
//! kernel then cuts and completes before the frame leaves the host, as a plain network card has it, so
//! that a loss hits one packet of MTU size, and checksums are true on the line and are verified at its
//! end. (The wire could cut as well, but a veth pair hands partial checksums across, and a received
//! message does not say whether its field is complete.)

use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use scoutline_base::{DeviceId, Time};
use scoutline_device::memory::{self, MemoryPartner, WhenFull, WireConfig, WireCounters};
use scoutline_device::packet::{self, PacketPartner};
use scoutline_device::{DeviceCounters, Partner as _};
use scoutline_path::Burst;

use crate::sys;
use crate::testbed::Host;

/// The interface towards the client host.
pub(crate) const CLIENT: &str = "client";
/// The interface towards the server host.
pub(crate) const SERVER: &str = "server";

/// Messages per turn and side.
const BATCH: usize = 64;
/// A wire is never late because somebody computes; above the programs and engines of the hosts, then.
const REALTIME: i32 = 60;
/// How long to wait before asking an interface again that had no room.
const RETRY: Duration = Duration::from_millis(1);

/// How bad a line is, and the seed of its chances.
#[derive(Clone, Debug)]
pub struct Line {
    /// What the wire does, in each direction.
    pub wire: WireConfig,
    /// Of its generators.
    pub seed: u64,
}

/// A bridge that runs until it is dropped. Its host goes with it.
#[derive(Debug)]
pub struct Bridge {
    /// Dropping it ends the thread.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
    state: Arc<Mutex<State>>,
    _host: Host,
}

/// What a bridge has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// The wire from the client host to the server host.
    pub to_server: WireCounters,
    /// The wire from the server host to the client host.
    pub to_client: WireCounters,
    /// The interface towards the client host.
    pub client: DeviceCounters,
    /// The interface towards the server host.
    pub server: DeviceCounters,
    /// Frames above the wire's MTU, which it does not take.
    pub too_large: u64,
}

impl Passed {
    /// What never reached the line or left it, though the wire did not take it: a ring that was full, a frame above
    /// the MTU, a refusal. Zero on a bridge that works.
    pub fn mishaps(&self) -> u64 {
        let of_interface = |counters: &DeviceCounters| {
            counters.rx_ring_drops
                + counters.rx_malformed
                + counters.tx_too_large
                + counters.tx_malformed
                + counters.tx_refused
        };
        self.too_large + of_interface(&self.client) + of_interface(&self.server)
    }
}

#[derive(Debug, Default)]
struct State {
    passed: Passed,
    failure: Option<String>,
}

impl Bridge {
    /// Starts passing frames between the interfaces `client` and `server` of `host`, which must be up.
    pub(crate) fn start(host: Host, line: Line) -> Result<Bridge> {
        let namespace = host.namespace()?;
        let (stopped, stop) = std::io::pipe().context("cannot make a pipe")?;
        let (ready, opened) = mpsc::sync_channel(1);
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        let work = move || {
            sys::set_timer_slack(1);
            // Where that is refused, the line is as good as the machine is idle.
            let _ = sys::set_realtime(REALTIME);
            let result = sys::enter_namespace(namespace.as_fd())
                .context("cannot enter the bridge's namespace")
                .and_then(|()| Crossing::open(&line))
                .and_then(|crossing| crossing.run(&stopped, &shared, &ready));
            if let Err(error) = result {
                shared.lock().unwrap_or_else(PoisonError::into_inner).failure = Some(format!("{error:#}"));
            }
        };
        let thread = thread::Builder::new().name("bridge".into()).spawn(work)?;
        let bridge = Bridge { stop: Some(stop), thread: Some(thread), state, _host: host };
        if opened.recv().is_err() {
            bridge.passed()?;
            bail!("the bridge ended before it began");
        }
        Ok(bridge)
    }

    /// What it has done so far.
    ///
    /// # Errors
    /// It no longer runs, and why.
    pub fn passed(&self) -> Result<Passed> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &state.failure {
            None => Ok(state.passed),
            Some(failure) => Err(anyhow!("the bridge has failed: {failure}")),
        }
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        drop(self.stop.take()); // end of file: the thread wakes and ends
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic there has said so already
        }
    }
}

/// Both sides, on the bridge's thread.
struct Crossing {
    sides: [Side; 2],
}

/// An interface and the end of the wire behind it.
struct Side {
    interface: PacketPartner,
    wire: MemoryPartner,
    /// Off the wire, and the interface has had no room yet.
    leaving: Burst,
}

impl Crossing {
    fn open(line: &Line) -> Result<Crossing> {
        if line.wire.when_full != WhenFull::Drop {
            bail!("a bridge cannot hold back what its wire refuses; let the wire drop");
        }
        let (client, server) = memory::wire(line.seed, line.wire.clone());
        let side = |name: &str, wire| -> Result<Side> {
            let (interface, notices) = packet::open(DeviceId(0), &packet::Config::new(name))?;
            // What else the bridge's kernel might say would be one more packet on the line.
            if let Some(notice) = notices.first() {
                bail!("{notice}");
            }
            Ok(Side { interface, wire, leaving: Burst::new() })
        };
        Ok(Crossing { sides: [side(CLIENT, client)?, side(SERVER, server)?] })
    }

    /// Passes frames until the other end of `stopped` is closed.
    fn run(mut self, stopped: &PipeReader, state: &Mutex<State>, ready: &SyncSender<()>) -> Result<()> {
        let _ = ready.send(());
        loop {
            let now = Time::from_nanos(sys::monotonic_ns());
            for side in &mut self.sides {
                side.turn(now)?;
            }
            let wait = self.idle_for(Time::from_nanos(sys::monotonic_ns()));
            if wait != Some(Duration::ZERO) {
                state.lock().unwrap_or_else(PoisonError::into_inner).passed = self.passed();
            }
            if self.sleep(stopped, wait)? {
                return Ok(());
            }
        }
    }

    /// How long nothing happens unless a frame comes; `None` when nothing will ever.
    fn idle_for(&self, now: Time) -> Option<Duration> {
        let of_side = |side: &Side| {
            if side.interface.has_input() {
                return Some(Duration::ZERO);
            }
            let retry = (!side.leaving.is_empty()).then_some(RETRY);
            let arrival = side.wire.next_event().map(|at| at.since(now));
            retry.or(arrival)
        };
        self.sides.iter().filter_map(of_side).min()
    }

    /// Sleeps until a frame comes, or that long. True when it is time to end.
    fn sleep(&self, stopped: &PipeReader, wait: Option<Duration>) -> Result<bool> {
        let [client, server] = &self.sides;
        // Level-triggered is right here: the wire has copied what the rings lent, so nothing is out.
        let fd = |side: &Side| side.interface.poll_fd().expect("a packet partner has one");
        let woken = sys::poll_input([fd(client), fd(server), stopped.as_raw_fd()], wait)?;
        Ok(woken[2])
    }

    fn passed(&self) -> Passed {
        let [client, server] = &self.sides;
        Passed {
            to_server: server.wire.wire_counters(),
            to_client: client.wire.wire_counters(),
            client: client.interface.counters(),
            server: server.interface.counters(),
            too_large: client.wire.counters().tx_too_large + server.wire.counters().tx_too_large,
        }
    }
}

impl Side {
    /// Host to wire, and wire to host.
    fn turn(&mut self, now: Time) -> Result<()> {
        let mut coming = Burst::new();
        self.interface.pull(&mut coming, BATCH, now)?;
        self.wire.advance(now);
        self.wire.push(&mut coming)?; // a wire that drops when it is full takes all
        if self.leaving.is_empty() {
            self.wire.pull(&mut self.leaving, BATCH, now)?;
        }
        if !self.leaving.is_empty() {
            self.interface.push(&mut self.leaving)?;
        }
        Ok(())
    }
}
