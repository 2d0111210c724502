//! A run: hosts and wires, and the one clock that all go by.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::rc::Rc;
use std::time::Duration;

use scoutline_base::{Address, DeviceId, Time};
use scoutline_device::memory::wire;

use crate::books::{self, Totals};
use crate::canary::Canary;
use crate::host::{Host, ROUTER, address4, address6};
use crate::model::End;
use crate::oracle::Oracle;
use crate::plan::{Plan, Weather, What};
use crate::program::{Opening, Program};
use crate::shared::Shared;

/// Virtual time does not begin at zero: what is subtracted from it must not become negative.
const START: Time = Time::from_millis(1_000);
/// The least step of time: nothing here is finer.
const STEP: Duration = Duration::from_micros(1);
/// When all must have ended, after the last fault. Of a connection that lost its retransmission twelve times in a row
/// (0.2 s, doubled up to 120 s) the next comes within two minutes; slow readers take their time.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long nothing happens before the hosts must be empty: the longest TIME-WAIT, orphans and fragments included.
const AFTERMATH: Duration = Duration::from_secs(400);
/// Steps before a run is said never to end.
const MOST_STEPS: u64 = 3_000_000;
/// Turns of hosts and programs at one moment before they are said to wake each other for ever.
const MOST_TURNS: u32 = 10_000;
/// Steps between two looks at the books.
const BOOKS_EVERY: u64 = 64;
/// With the canary, timers further away than this are lost.
const LOST_TIMERS: Duration = Duration::from_millis(150);

/// The ends of the wires, as devices are called.
const NAMES: [[&str; 2]; 2] = [["wire0", "wire1"], ["wire2", "wire3"]];

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Of everything that happened: the same for every run of a plan.
    pub hash: u64,
    /// Steps of the clock.
    pub steps: u64,
    /// Virtual time that passed, in milliseconds.
    pub virtual_ms: u64,
    /// Packets that the hosts got.
    pub packets: u64,
}

/// Something that a plan wants at a moment.
#[derive(Clone, Debug)]
enum Act {
    Weather(Weather),
    Flow(usize),
    Chat(usize),
    Event(usize, What),
}

struct World {
    now: Time,
    routed: bool,
    whole: bool,
    hosts: Vec<Host>,
    totals: Vec<Totals>,
    links: Vec<End>,
    /// In order of time, the next one last.
    acts: Vec<(Time, Act)>,
    shared: Rc<Shared>,
    oracle: Rc<RefCell<Oracle>>,
    steps: u64,
}

/// Runs a plan, with a defect if one is given. `prints`: each thing that happens is a line.
///
/// # Errors
/// What was found wrong first.
pub fn run(plan: &Plan, canary: Option<Canary>, prints: bool) -> Result<Report, String> {
    let mut world = World::new(plan, Rc::new(Shared::new(canary, prints)));
    let result = world.live(plan);
    match world.shared.first_found() {
        Some(found) => Err(found),
        None => result.map(|()| world.report()),
    }
}

impl World {
    fn new(plan: &Plan, shared: Rc<Shared>) -> World {
        let oracle = Rc::new(RefCell::new(Oracle::new(plan)));
        let mut links = Vec::new();
        let mut ends: [Vec<End>; 3] = Default::default();
        for (link, names) in NAMES.into_iter().enumerate().take(if plan.router { 2 } else { 1 }) {
            let first = plan.weather.iter().find(|weather| weather.link == link);
            let config = first.map(|weather| weather.config(plan.whole)).unwrap_or_default();
            // What devices say of themselves stays the same: the wire's bad days are not theirs.
            let (one, other) = wire(
                plan.seed.wrapping_add(link as u64),
                Weather { mtu: 1500, ..Weather::fair(0, link, 1) }.config(plan.whole),
            );
            let (one, other) = match (plan.router, link) {
                (false, _) => ((0, one), (1, other)),
                (true, 0) => ((0, one), (ROUTER, other)),
                (true, _) => ((1, one), (ROUTER, other.with_id(DeviceId(1)))),
            };
            for ((host, partner), name) in [one, other].into_iter().zip(names) {
                ends[host].push(End::new(name, partner));
            }
            let end =
                ends[if plan.router { ROUTER } else { 0 }].last().expect("an end was just made").clone();
            end.wire_mut().reshape(config);
            links.push(end);
        }
        let both = || (Rc::clone(&shared), Rc::clone(&oracle));
        let seed = plan.seed;
        let [one, other, middle] = ends;
        let mut hosts = vec![
            Host::new(0, Some(plan.hosts[0].clone()), plan.router, seed, one, both()),
            Host::new(1, Some(plan.hosts[1].clone()), plan.router, seed, other, both()),
        ];
        if plan.router {
            hosts.push(Host::new(ROUTER, None, true, seed, middle, both()));
        }
        let totals = vec![Totals::default(); hosts.len()];
        let (routed, whole) = (plan.router, plan.whole);
        World { now: START, routed, whole, hosts, totals, links, acts: acts(plan), shared, oracle, steps: 0 }
    }

    /// From the start to the end.
    fn live(&mut self, plan: &Plan) -> Result<(), String> {
        let fair = START + Duration::from_millis(plan.fair_from_ms());
        let last_act = self.acts.first().map_or(START, |(at, _)| *at);
        let deadline = fair.max(last_act) + PATIENCE;
        loop {
            self.turn()?;
            if self.acts.is_empty() && self.is_over() {
                break;
            }
            if self.now > deadline {
                return Err(format!("at {:?}: connections that do not end: {}", self.now, self.left()));
            }
            self.advance(deadline + STEP)?;
        }
        self.oracle.borrow().verdict()?;
        for host in &mut self.hosts {
            if let Some(program) = &mut host.program {
                program.give_up();
            }
            host.retire(self.now);
        }
        let end = self.now + AFTERMATH;
        while self.now < end {
            self.turn()?;
            self.advance(end)?;
        }
        self.check_books()?;
        for host in &mut self.hosts {
            let number = host.number;
            books::check_empty(host, self.now)
                .map_err(|wrong| format!("at the end, host {number}: {wrong}"))?;
        }
        Ok(())
    }

    /// Everything that is due now.
    fn turn(&mut self) -> Result<(), String> {
        self.shared.set_now(self.now);
        while self.acts.last().is_some_and(|(at, _)| *at <= self.now) {
            let Some((_, act)) = self.acts.pop() else { break };
            self.act(act);
        }
        for turns in 0.. {
            let mut busy = false;
            for host in &mut self.hosts {
                if host.up_at.is_some_and(|at| at <= self.now) {
                    host.start(self.now);
                }
                busy |= host.settle(self.now);
            }
            if !busy {
                break;
            }
            if turns == MOST_TURNS {
                return Err(format!("at {:?}: programs and engines wake each other for ever", self.now));
            }
        }
        if self.steps.is_multiple_of(BOOKS_EVERY) {
            self.check_books()?;
        }
        match self.shared.first_found() {
            Some(found) => Err(found),
            None => Ok(()),
        }
    }

    fn check_books(&mut self) -> Result<(), String> {
        for (host, totals) in self.hosts.iter().zip(&mut self.totals) {
            books::check(host, totals, self.now)
                .map_err(|wrong| format!("at {:?}: the books of host {}: {wrong}", self.now, host.number))?;
        }
        Ok(())
    }

    /// Goes to the next moment at which anything is due, and no further than `until`.
    fn advance(&mut self, until: Time) -> Result<(), String> {
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return Err(format!("at {:?}: never done: {}", self.now, self.left()));
        }
        let canary = self.shared.canary;
        let now = self.now;
        let lost = |at: &Time| canary == Some(Canary::LosesTimer) && at.since(now) > LOST_TIMERS;
        let hosts = self.hosts.iter().filter_map(|host| host.next_time(now)).filter(|at| !lost(at));
        let next = hosts.chain(self.acts.last().map(|(at, _)| *at)).min();
        self.now = next.map_or(until, |next| next.max(now + STEP)).min(until);
        Ok(())
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Weather(weather) => {
                self.shared.note(9, format_args!("{weather:?}"), &[30]);
                self.links[weather.link].wire_mut().reshape(weather.config(self.whole));
            }
            Act::Flow(flow) => {
                let (from, ip6) = {
                    let flow = &mut self.oracle.borrow_mut().flows[flow];
                    flow.started = true;
                    (flow.plan.from, flow.plan.ip6)
                };
                self.open(from, Opening::Flow(flow, self.address(1 - from, ip6)), Act::Flow(flow));
            }
            Act::Chat(chat) => {
                let (from, ip6) = {
                    let oracle = self.oracle.borrow();
                    let plan = oracle.chat_plan(chat);
                    (plan.from, plan.ip6)
                };
                self.open(from, Opening::Chat(chat, self.address(1 - from, ip6)), Act::Chat(chat));
            }
            Act::Event(host, what) => self.happen(host, what),
        }
    }

    fn address(&self, host: usize, ip6: bool) -> Address {
        if ip6 { address6(host, self.routed).into() } else { address4(host, self.routed).into() }
    }

    /// Opens something at a host; while that is off, when it is on again.
    fn open(&mut self, host: usize, opening: Opening, act: Act) {
        let host = &mut self.hosts[host];
        if let (Some(engine), Some(program)) = (&mut host.engine, &mut host.program) {
            program.open(engine, opening, self.now);
        } else {
            let at = host.up_at.unwrap_or(self.now).max(self.now) + STEP;
            self.acts.push((at, act));
            self.acts.sort_by_key(|(at, _)| Reverse(*at));
        }
    }

    fn happen(&mut self, host: usize, what: What) {
        let now = self.now;
        let host = &mut self.hosts[host];
        if host.engine.is_none() {
            return;
        }
        match what {
            What::Classes(number) => {
                host.set_classes(number, now);
                return;
            }
            What::Kill => host.kill_program(now),
            What::Restart { down_ms, orderly } => {
                host.power_off(orderly, now + Duration::from_millis(down_ms), now);
            }
            What::Relisten => host.relisten(now),
        }
        self.oracle.borrow_mut().disturb();
    }

    /// All connections and chats have come to their ends.
    fn is_over(&self) -> bool {
        let oracle = self.oracle.borrow();
        (0..oracle.flows.len()).all(|flow| oracle.is_over(flow))
            && self.hosts.iter().all(|host| host.up_at.is_none())
            && self.hosts.iter().filter_map(|host| host.program.as_ref()).all(Program::is_done)
    }

    fn left(&self) -> String {
        let programs =
            self.hosts.iter().filter_map(|host| Some((host.number, host.program.as_ref()?.left())));
        format!("{:?}; {:?}", self.oracle.borrow().unfinished(), programs.collect::<Vec<_>>())
    }

    fn report(&self) -> Report {
        let packets = self
            .hosts
            .iter()
            .filter_map(|host| host.stat(self.now))
            .filter_map(|stat| stat.engine.get("packets-pulled").copied())
            .sum();
        let virtual_ms = self.now.since(START).as_millis() as u64;
        Report { hash: self.shared.hash(), steps: self.steps, virtual_ms, packets }
    }
}

/// Everything that a plan wants, the first one last.
fn acts(plan: &Plan) -> Vec<(Time, Act)> {
    let at = |ms: u64| START + Duration::from_millis(ms);
    let weather = plan.weather.iter().map(|weather| (at(weather.at_ms), Act::Weather(weather.clone())));
    let flows = plan.flows.iter().enumerate().map(|(index, flow)| (at(flow.at_ms), Act::Flow(index)));
    let chats = plan.chats.iter().enumerate().map(|(index, chat)| (at(chat.at_ms), Act::Chat(index)));
    let events = plan.events.iter().map(|event| (at(event.at_ms), Act::Event(event.host, event.what)));
    let mut all: Vec<(Time, Act)> = weather.chain(flows).chain(chats).chain(events).collect();
    all.sort_by_key(|(at, _)| Reverse(*at));
    all
}
