//! Running a script: time, packets in and out, calls, and what must be equal.
//!
//! Scripts count sequence numbers from zero in both directions. The peer's real ones begin at a place drawn from the
//! seed (every fourth script close to the wrap), ours are learnt from the SYN that leaves. Payload is not written in
//! scripts: each byte follows from its position in its stream ([`crate::packet::pattern`]), is sent so, and is
//! compared where it arrives.

mod arrive;
mod calls;
mod expect;
mod flow;
mod names;
mod options;
mod six;

use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;

use scoutline_engine::{FastOpen, FastOpenKeys, TcpSettings};

use crate::packet::{Content, GATEWAY, GATEWAY6, LOCAL, LOCAL6, PREFIX6, Reassembly, Seen, arp_frame, take};
use crate::script::{Event, Packet, Place, Script, What};
use crate::stack::{Answer, Setting, Stack};
use flow::Flow;

/// Ports of a script's connection when it names none.
const LOCAL_PORT: u16 = 8080;
const REMOTE_PORT: u16 = 40001;
/// Receive buffer for packetdrill's scripts, whose set-up makes the kernel offer a window scale of 8.
const FOREIGN_BUFFER: u32 = 8 << 20;

/// Why a script did not pass.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// The stack did something else.
    #[error("{0}: {1}")]
    Differs(Place, String),
    /// The script wants what the runner does not have.
    #[error("{0}: not supported: {1}")]
    Unsupported(Place, String),
}

type Result<T> = std::result::Result<T, Failure>;

/// How strictly scripts are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Ours: nothing may leave that the script does not expect.
    Strict,
    /// packetdrill's: what leaves after the last event does not matter, values of timestamps are not compared.
    Foreign,
}

/// The set-up that a script's options ask for.
pub fn setting(script: &Script, how: How) -> Setting {
    let foreign = how.manner == Manner::Foreign;
    let number =
        |name, default: u32| script.option(name).and_then(|text| text.parse().ok()).unwrap_or(default);
    Setting {
        route: script.option("route").map(route_of).unwrap_or_default(),
        mtu: number("mtu", 1500),
        receive_buffer: number("receive_buffer", if foreign { FOREIGN_BUFFER } else { 256 << 10 }),
        send_buffer: number("send_buffer", 256 << 10),
        sysctls: script
            .options
            .iter()
            .filter(|(name, _)| name == "sysctl")
            .map(|(_, value)| value.clone())
            .collect(),
        tcp: tcp_of(script),
        ip6: script.option("ip6").map(|_| (LOCAL6, PREFIX6, GATEWAY6)),
        autoconfigure: script.option("ip6") == Some("auto"),
        static_neighbour: script.option("arp") != Some("script"),
        seed: how.seed,
        ..Setting::default()
    }
}

/// `--route=mtu 1000 initcwnd 4`. What is no number counts as 0, which no stack takes.
fn route_of(text: &str) -> Vec<(String, u16)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    words
        .chunks(2)
        .map(|pair| (pair[0].to_owned(), pair.get(1).and_then(|number| number.parse().ok()).unwrap_or(0)))
        .collect()
}

/// What a script sets in the kernel, as far as ours has it and scripts need it.
fn tcp_of(script: &Script) -> TcpSettings {
    let sysctl = |name: &str| {
        let of = |value: &str| {
            value.strip_prefix("net.ipv4.")?.strip_prefix(name)?.strip_prefix('=').map(str::to_owned)
        };
        script.options.iter().filter(|(option, _)| option == "sysctl").find_map(|(_, value)| of(value))
    };
    let bits = sysctl("tcp_fastopen").and_then(|bits| bits.parse().ok()).unwrap_or(0);
    TcpSettings {
        fast_open: FastOpen::from_bits_truncate(bits),
        unsent_low_water: sysctl("tcp_notsent_lowat").and_then(|bytes| bytes.parse().ok()).unwrap_or(0),
        fast_open_keys: sysctl("tcp_fastopen_key").and_then(|text| FastOpenKeys::parse(&text)),
        ..TcpSettings::default()
    }
}

/// Runs a script.
///
/// # Errors
/// The first difference.
pub fn run(script: &Script, stack: &mut dyn Stack, how: How) -> Result<()> {
    Runner::new(script, stack, how).run(script)
}

/// How to run a script.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// How strictly it is taken.
    pub manner: Manner,
    /// What everything random follows from.
    pub seed: u64,
    /// Print each packet as it leaves.
    pub trace: bool,
}

/// A packet that left and waits to be expected.
struct Left {
    at: i64,
    seen: Seen,
}

/// A call that blocks.
struct Waiting {
    place: Place,
    call: crate::script::Call,
    asked: calls::Asked,
    /// When it must return.
    due: i64,
}

/// What the runner keeps of a descriptor.
#[derive(Clone, Debug, Default)]
struct Fd {
    datagram: bool,
    written: u64,
    read: u64,
}

struct Runner<'a> {
    stack: &'a mut dyn Stack,
    manner: Manner,
    seed: u64,
    trace: bool,
    /// ARP is the script's business.
    arp_scripted: bool,
    /// Payload is not compared (urgent data).
    data_unchecked: bool,
    extra_tolerance: i64,
    flows: HashMap<(u16, u16), Flow>,
    /// Local and remote port when the script names none; the local one is `None` until our SYN tells it.
    ports: (Option<u16>, u16),
    remote: Ipv4Addr,
    left: VecDeque<Left>,
    reassembly: Reassembly,
    waiting: Option<Waiting>,
    fds: HashMap<i32, Fd>,
    /// The scripted time of the last event.
    last: i64,
    /// The IP packet that came last, and the one that left last: ICMP errors are about them.
    came: Vec<u8>,
    went: Vec<u8>,
}

impl<'a> Runner<'a> {
    fn new(script: &Script, stack: &'a mut dyn Stack, how: How) -> Runner<'a> {
        let How { manner, seed, trace } = how;
        Runner {
            stack,
            manner,
            seed,
            trace,
            arp_scripted: script.option("arp") == Some("script"),
            data_unchecked: script.option("data") == Some("unchecked"),
            extra_tolerance: script.option("tolerance_usecs").and_then(|text| text.parse().ok()).unwrap_or(0),
            flows: HashMap::new(),
            ports: (Some(LOCAL_PORT), REMOTE_PORT),
            remote: crate::packet::REMOTE,
            left: VecDeque::new(),
            reassembly: Reassembly::default(),
            waiting: None,
            fds: HashMap::new(),
            last: 0,
            came: Vec::new(),
            went: Vec::new(),
        }
    }

    fn run(&mut self, script: &Script) -> Result<()> {
        for event in &script.events {
            self.event(event)?;
        }
        if let Some(waiting) = &self.waiting {
            let place = waiting.place.clone();
            let due = waiting.due;
            self.let_pass(due + self.tolerance(due), &place)?;
            self.finish(&place)?;
        }
        let end = script.events.last().map(|event| event.place.clone());
        if let (Manner::Strict, Some(place), Some(left)) = (self.manner, end, self.left.front()) {
            let text = self.describe(&left.seen);
            return Err(Failure::Differs(
                place,
                format!("the script ends, but at {} left {text}", time(left.at)),
            ));
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        let place = &event.place;
        let when = event.when;
        let base = if when.relative { self.last } else { 0 };
        let at = if when.any { self.stack.now().max(self.last) } else { base + when.from };
        match &event.what {
            What::Out(packet) => {
                let latest = if when.any { i64::MAX } else { base + when.to.unwrap_or(when.from) };
                let (earliest, range) = (if when.any { i64::MIN } else { at }, when.any || when.to.is_some());
                let actual = self.expect(packet, earliest, latest, place)?;
                self.last = if range || !self.stack.is_exact() { actual } else { at };
                return Ok(());
            }
            What::Command(_) => return Ok(()),
            What::Code(_) => return Err(Failure::Unsupported(place.clone(), "code".into())),
            What::In(_) | What::Call(_) | What::Quiet => {}
        }
        self.let_pass(at, place)?;
        match &event.what {
            What::In(packet) => self.arrive(packet, place)?,
            What::Call(call) => {
                self.finish(place)?;
                let due = if when.returns { Some(base + when.to.unwrap_or(when.from)) } else { None };
                self.call(call, at, due, place)?;
            }
            _ => {
                if let Some(left) = self.left.front() {
                    let text = self.describe(&left.seen);
                    return Err(Failure::Differs(place.clone(), format!("at {} left {text}", time(left.at))));
                }
            }
        }
        self.last = at;
        Ok(())
    }

    /// How far from its time something may be.
    fn tolerance(&self, at: i64) -> i64 {
        self.stack.tolerance((at - self.last).max(0)).max(self.extra_tolerance)
    }

    /// Time passes until then.
    fn let_pass(&mut self, until: i64, place: &Place) -> Result<()> {
        loop {
            self.collect(place)?;
            if self.stack.now() >= until {
                return Ok(());
            }
            self.stack.advance(until);
        }
    }

    /// Takes what has left and what has returned.
    fn collect(&mut self, place: &Place) -> Result<()> {
        while let Some((at, frame)) = self.stack.captured() {
            let Some((frame, fragments)) = self.reassembly.add(frame) else { continue };
            let mut seen =
                take(&frame).map_err(|error| Failure::Differs(place.clone(), error.to_string()))?;
            seen.fragments = fragments;
            match seen.content {
                Content::Other => {}
                Content::Arp(..) if !self.arp_scripted => self.answer_arp(&seen),
                _ => {
                    if self.trace {
                        eprintln!("{} > {}", time(at), self.describe(&seen));
                    }
                    self.left.push_back(Left { at, seen });
                }
            }
        }
        if let Some((at, answer)) = self.stack.answer() {
            self.returned(at, &answer)?;
        }
        Ok(())
    }

    fn answer_arp(&mut self, seen: &Seen) {
        if matches!(seen.content, Content::Arp(true, _))
            && seen.destination == GATEWAY
            && seen.source == LOCAL
        {
            let frame = arp_frame(false, GATEWAY, LOCAL, seen.link_source);
            self.stack.inject(&frame);
        }
    }

    /// The call that waits has returned.
    fn returned(&mut self, at: i64, answer: &Answer) -> Result<()> {
        let Some(waiting) = self.waiting.take() else { return Ok(()) };
        let tolerance = self.tolerance(waiting.due);
        if (at - waiting.due).abs() > tolerance {
            let text = format!(
                "{} returns at {}, not at {} ({})",
                waiting.call.name,
                time(at),
                time(waiting.due),
                calls::describe(answer)
            );
            return Err(Failure::Differs(waiting.place, text));
        }
        self.check_answer(&waiting.call, &waiting.asked, answer, &waiting.place)
    }

    /// A call that waits must have returned before the next one.
    fn finish(&mut self, place: &Place) -> Result<()> {
        let Some(due) = self.waiting.as_ref().map(|waiting| waiting.due) else { return Ok(()) };
        let latest = due + self.tolerance(due);
        while self.waiting.is_some() && self.stack.now() < latest {
            self.stack.advance(latest);
            self.collect(place)?;
        }
        match &self.waiting {
            Some(waiting) => {
                let text = format!("{} has not returned at {}", waiting.call.name, time(self.stack.now()));
                Err(Failure::Differs(waiting.place.clone(), text))
            }
            None => Ok(()),
        }
    }

    /// Ports of a packet: (local, remote). Unknown as long as our SYN has not told.
    fn ports_of(&self, packet: &Packet, inward: bool) -> (Option<u16>, u16) {
        match packet.ports {
            Some((from, to)) if inward => (Some(to), from),
            Some((from, to)) => (Some(from), to),
            None => self.ports,
        }
    }

    fn flow(&mut self, ports: (u16, u16)) -> &mut Flow {
        let seed = self.seed;
        self.flows.entry(ports).or_insert_with(|| Flow::new(seed, ports))
    }
}

/// Microseconds as scripts write times.
fn time(micros: i64) -> String {
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}
