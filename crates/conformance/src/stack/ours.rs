//! Our stack in virtual time: a whole engine over a deterministic wire, and a model program that uses its region as the
//! shim does.
//!
//! ```text
//!  runner ── frames ──► memory wire ──► engine (Driven) ◄── region ── model program ◄── calls ── runner
//! ```

mod call;
mod descriptor;
mod epoll;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use scoutline_abi::Region;
use scoutline_base::{DeviceId, Time, V4_PREFIX_LEN};
use scoutline_device::Partner;
use scoutline_device::memory::{MemoryPartner, WireConfig, wire};
use scoutline_engine::{
    DeviceSettings, Driven, EngineSettings, Host6Config, HostSettings, Metrics, Pacing, RegionId, Route,
    RouteSettings, TcpSettings, Way,
};
use scoutline_path::{Burst, Checksum, Facts, Message};
use scoutline_ring::Block;
use scoutline_sim::model;

use super::{Answer, Op, Setting, Stack};
use crate::packet;

/// Virtual time does not begin at zero: what is subtracted from it must not become negative.
const START: Time = Time::from_millis(1_000);
/// Steps that change nothing before a script is said to hang.
const MOST_STEPS: usize = 2_000_000;

/// Our stack.
pub struct Ours {
    engine: Driven,
    wire: MemoryPartner,
    link_address: [u8; 6],
    now: Time,
    captured: VecDeque<(i64, Vec<u8>)>,
    program: Program,
    /// The call under way: it, the descriptor it makes, and when it gives up.
    pending: Option<(Op, i32, Option<Time>)>,
    answer: Option<(i64, Answer)>,
    /// Turns taken so far.
    steps: usize,
}

/// The model program.
struct Program {
    region: Arc<Region>,
    fds: HashMap<i32, descriptor::Fd>,
    epolls: HashMap<i32, epoll::Epoll>,
}

impl Ours {
    /// An engine with one device and one program.
    ///
    /// # Panics
    /// When the engine's own set-up fails, which is a fault of this program.
    pub fn new(setting: &Setting) -> Ours {
        let config = WireConfig {
            delay: Duration::ZERO,
            mtu: if setting.takes_merged { u32::from(u16::MAX) } else { setting.mtu },
            queue_limit: 100_000,
            ..WireConfig::default()
        };
        let (ours, script) = wire(setting.seed, config);
        let link_address = ours.facts().link_address;
        let end = model::End::new("wire0", ours).with_mtu(setting.mtu);
        let settings = EngineSettings {
            devices: vec![DeviceSettings {
                ip6: setting.ip6.map(|(address, prefix_len, gateway)| Host6Config {
                    addresses: if setting.autoconfigure { Vec::new() } else { vec![(address, prefix_len)] },
                    gateway: (!setting.autoconfigure).then_some(gateway),
                    autoconfigure: setting.autoconfigure,
                }),
                ..model::device(0, setting.ip4.0, setting.ip4.1, Some(setting.ip4.2))
            }],
            receive_buffer: setting.receive_buffer,
            send_buffer: setting.send_buffer,
            buffers_grow: false,
            // Scripts tell when segments leave, of a sender without pacing.
            tcp: TcpSettings { pacing: Pacing::Never, ..setting.tcp },
            max_paths: 1000,
            spin: Duration::ZERO,
            extension: None,
            host: HostSettings { others: Vec::new(), routes: routes(setting) },
            seed: Some(setting.seed),
            ..EngineSettings::default()
        };
        let mut engine = Driven::new(settings, vec![Box::new(end)], START).expect("an engine");
        let region = model::attach(&mut engine, RegionId(1), "script", START);
        let mut ours = Ours {
            engine,
            wire: script,
            link_address,
            now: START,
            captured: VecDeque::new(),
            program: Program { region, fds: HashMap::new(), epolls: HashMap::new() },
            pending: None,
            answer: None,
            steps: 0,
        };
        ours.settle();
        ours
    }

    /// Does what there is to do now: the engine, the call under way, and what they make of each other.
    fn settle(&mut self) {
        loop {
            self.engine.settle(self.now);
            self.capture();
            if !self.attempt() {
                return;
            }
        }
    }

    fn capture(&mut self) {
        let mut burst = Burst::new();
        while self.wire.pull(&mut burst, 64, self.now).expect("a wire of memory") > 0 {
            let at = micros(self.now);
            self.captured.extend(burst.drain(..).map(|message| (at, message.bytes().to_vec())));
        }
    }

    /// Tries the call under way; true if that may have made work for the engine.
    fn attempt(&mut self) -> bool {
        let Some((op, new_fd, deadline)) = &mut self.pending else { return false };
        let (op, new_fd) = (op.clone(), *new_fd);
        let overdue = deadline.is_some_and(|deadline| deadline <= self.now);
        let tried = call::attempt(&mut self.program, &mut self.engine, self.now, &op, new_fd, overdue);
        match tried {
            call::Tried::Done(answer) => {
                self.answer = Some((micros(self.now), answer));
                self.pending = None;
                true
            }
            call::Tried::Blocks { again, patience } => {
                if let Some((op, _, deadline)) = &mut self.pending {
                    *op = again;
                    *deadline = deadline.or(patience.map(|patience| self.now + patience));
                }
                false
            }
        }
    }

    /// A call waits for something.
    pub fn is_waiting(&self) -> bool {
        self.pending.is_some()
    }

    /// What another thread's call is answered while one waits; it must not wait itself.
    pub fn answer_meanwhile(&mut self, op: &Op, new_fd: i32) -> Answer {
        let tried = call::attempt(&mut self.program, &mut self.engine, self.now, op, new_fd, true);
        self.settle();
        match tried {
            call::Tried::Done(answer) => answer,
            call::Tried::Blocks { .. } => Answer::error(libc::EAGAIN),
        }
    }

    fn has_news(&self) -> bool {
        !self.captured.is_empty() || self.answer.is_some()
    }
}

/// Microseconds since the beginning.
fn micros(time: Time) -> i64 {
    time.since(START).as_micros() as i64
}

/// The route to the peer, where the script says something of it.
fn routes(setting: &Setting) -> Vec<RouteSettings> {
    let mut metrics = Metrics::default();
    for (name, value) in &setting.route {
        let metric = match name.as_str() {
            "mtu" => &mut metrics.mtu,
            "advmss" => &mut metrics.advmss,
            "initcwnd" => &mut metrics.initcwnd,
            "initrwnd" => &mut metrics.initrwnd,
            _ => panic!("no metric of a route: {name}"),
        };
        *metric = Some(*value);
    }
    let route = Route {
        network: packet::REMOTE.into(),
        prefix_len: V4_PREFIX_LEN + packet::REMOTE_PREFIX,
        way: Way::Via(setting.ip4.2.into()),
        metric: 0,
        metrics,
    };
    let route = RouteSettings { device: Some(DeviceId(0)), route };
    if setting.route.is_empty() { Vec::new() } else { vec![route] }
}

impl Stack for Ours {
    fn now(&self) -> i64 {
        micros(self.now)
    }

    fn link_address(&self) -> [u8; 6] {
        self.link_address
    }

    fn inject(&mut self, frame: &[u8]) {
        // Whoever sends is no host of ours: its checksums are complete.
        let facts = Facts { checksum: Checksum::Complete, ..Facts::default() };
        let len = frame.len() as u32;
        let mut burst = vec![Message::received(Block::from_bytes(frame.into()), 0..len, facts)];
        self.wire.advance(self.now);
        self.wire.push(&mut burst).expect("a wire of memory");
        self.settle();
    }

    fn start(&mut self, op: Op, new_fd: i32) {
        assert!(self.pending.is_none(), "one call at a time");
        self.answer = None;
        self.pending = Some((op, new_fd, None));
        self.settle();
    }

    fn answer(&mut self) -> Option<(i64, Answer)> {
        self.answer.take()
    }

    fn captured(&mut self) -> Option<(i64, Vec<u8>)> {
        self.captured.pop_front()
    }

    fn advance(&mut self, until: i64) {
        let until = START + Duration::from_micros(until.max(0) as u64);
        while self.now < until && !self.has_news() {
            self.steps += 1;
            assert!(self.steps < MOST_STEPS, "the engine is never done: at {} us", micros(self.now));
            let deadline = self.pending.as_ref().and_then(|(_, _, deadline)| *deadline);
            let next = self.engine.next_timeout(self.now).into_iter().chain(deadline).min();
            let next = next.map_or(until, |next| next.max(self.now + Duration::from_micros(10)));
            self.now = next.min(until);
            self.settle();
        }
    }

    fn tolerance(&self, after: i64) -> i64 {
        // Timers count milliseconds, the wheel rounds long ones up.
        2_000 + after / 500
    }

    fn is_exact(&self) -> bool {
        true
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.engine.stop(self.now);
    }
}
