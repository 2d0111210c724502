//! The engine without its thread: devices, demultiplexing, paths, schedule and sockets joined, driven by whoever
//! holds the clock. It never sleeps and never asks for the time; [`crate::thread`] does both.
//!
//! ```text
//! pull ─► demux ─► path queue ─► scheduler ─► run the stages ─► transmit queue ─► push
//!   doorbells (dirty slots), calls, timers ──────┘
//! ```

mod addresses;
mod ahead;
mod apart;
mod background;
mod binding;
mod calls;
mod classes;
mod datagrams;
mod failures;
mod fast_open;
mod floods;
mod forward;
mod gone;
mod groups;
mod information;
mod live;
mod micro;
mod open;
mod passing;
mod paths;
mod report;
mod several;
mod spare;
mod transmit;
mod vlan;
mod wishes;

pub use micro::{PathCost, path_cost};

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use scoutline_base::{DeviceId, PathId, Random, Time};
use scoutline_device::{Partner, vlan::tag_of};
use scoutline_path::{
    Account, Burst, ClassAccounts, DropReason, FlowKey, FlowTable, Grant, Graph, Message, ModuleId,
    PathTable, Ran, Runner, StageTotals, Verdict, flow_of_frame, flow_of_message,
};
use scoutline_proto::{Bindings, Interface};
use scoutline_sched::{Decision, Entry, Level, Parameters, Policy, Schedule, Share, Weight};

use crate::admission::{Promise, Promises};
use crate::by_path::ByPath;
use crate::clock;
use crate::command::RegionId;
use crate::extend::{Extension, TakenBack};
use crate::flood::{Detector, Unwanted};
use crate::moderation::Moderation;
use crate::policy::{ClassPolicy, PolicyMemory};
use crate::program::Program;
use crate::program::early::Early;
use crate::program::put_off::OfAll;
use crate::routing::Routing;
use crate::scheduling::Asks;
use crate::settings::{EngineSettings, ProgramFacts};
use crate::several::Several;
use crate::socket::Listeners;
use crate::start::Served;
use crate::wheel::Wheel;
use apart::Apart;
use classes::Sweep;
use floods::{LONGEST_QUEUE, SERVED_IN};
use forward::Direction;
use paths::is_syn;
use report::Counters;
use several::{Look, Stray};
use transmit::{TransmitSide, attach_stream};

/// Messages taken from a device at a time: bounds how long a burst keeps a more important path waiting.
const PULL_BURST: usize = 64;
/// Packets that are passed on and are no longer than this may be put together.
const SHORT: u64 = 512;
/// So often at most interfaces are asked what they wait for: answers of neighbours, and what else takes a second.
const NEIGHBOUR_LOOK: Duration = Duration::from_millis(1);

/// One device with its addresses and module graph.
pub(crate) struct Net {
    pub(crate) device: Box<dyn Partner>,
    pub(crate) modules: scoutline_proto::net::Net,
    pub(crate) graph: Graph,
    /// What its stages have cost, while that is measured.
    stage_totals: Rc<StageTotals>,
    entry: ModuleId,
    pub(crate) tcp: Rc<Bindings>,
    pub(crate) udp: Rc<Bindings>,
    /// What was made for the device.
    transmit: TransmitSide,
    /// What went wrong when the device was last used.
    failure: Option<String>,
    /// Packets for nobody, or for a path without room.
    unwanted: Unwanted,
    flood: Detector,
}

impl Net {
    /// The addresses on the device.
    pub(crate) fn interface(&self) -> &Rc<Interface> {
        &self.modules.interface
    }
}

/// What the engine knows of a path beside the path itself.
#[derive(Default)]
struct Extra {
    /// What it counts as.
    level: Level,
    /// The same, if it is counted among those that stand apart.
    apart: Option<Level>,
    /// What it asks of the schedule.
    asks: Asks,
    /// What of the CPU it is promised.
    promise: Option<Box<Promise>>,
    /// Since when the program's end or a timer waits to be looked at.
    since: Option<Time>,
    /// The program's end wants to be looked at.
    kicked: bool,
    /// A timer of the path may be due.
    expired: bool,
    /// It waits for room in its class's queue.
    stalled: bool,
    /// It waits for foreground to be silent.
    suspended: bool,
    /// It stands in the list of background paths that hold packets.
    listed: bool,
    /// There was room for it: its turn to make something.
    turn: bool,
    /// Its device knows its connection.
    known: bool,
    /// When the wheel will call, if it will.
    armed: Option<Time>,
    flow: Option<FlowKey>,
    net: u16,
    /// Where its packets leave, if it passes them on.
    to: Option<u16>,
    /// What the rules of classes look at beside the flow: the type-of-service octet of the first packet that came,
    /// and the program.
    tos: Option<u8>,
    program: Option<Rc<ProgramFacts>>,
}

// There may be a million.
const _: () = assert!(size_of::<Extra>() <= 136);

/// The engine.
pub struct Core {
    pub(crate) settings: EngineSettings,
    pub(crate) nets: Vec<Net>,
    pub(crate) paths: PathTable,
    extras: ByPath<Extra>,
    flows: FlowTable,
    pub(crate) schedule: Schedule,
    wheel: Wheel,
    runner: Runner,
    pub(crate) programs: BTreeMap<RegionId, Rc<Program>>,
    pub(crate) finished: ClassAccounts,
    pub(crate) policy: Rc<ClassPolicy>,
    listeners: Listeners,
    /// Which net leads where.
    routing: Rc<Routing>,
    promises: Rc<Promises>,
    policy_memory: PolicyMemory,
    /// What the sweep under way takes back from threads.
    taken_back: TakenBack,
    /// What is told to the control thread, and which addresses it was made from.
    served: Served,
    served_of: Vec<u32>,
    /// Networks on other devices, by device and number.
    vlans: BTreeMap<(usize, u16), usize>,
    /// The paths that pass packets on.
    forwarders: BTreeMap<Direction, PathId>,
    /// Classes were changed, and not all paths have been looked at since.
    sweep: Option<Sweep>,
    /// See [`Core::all_important_ring`].
    all_ring: bool,
    apart: Apart,
    /// Threads woken since Linux ran last.
    pub(crate) wakes: Rc<Cell<u64>>,
    /// Wake-ups that are put off until the engine gives its core away.
    pub(crate) put_off: Rc<OfAll>,
    /// Connections that nobody has been told of, since their peers have said nothing yet.
    pub(crate) early: Rc<Early>,
    /// What programs know of the engine's state, and whether they may give Linux's turn back.
    published: Cell<u32>,
    takes_back: Cell<bool>,
    /// Turns at rings: see [`crate::program::OfEngine`].
    turns: Rc<Cell<u16>>,
    /// Threads raised with their paths.
    pub(crate) extension: Rc<Extension>,
    pub(crate) counters: Counters,
    /// Whether to sleep between two looks.
    pub(crate) moderation: Moderation,
    /// Drops of packets that belong to no path.
    pub(crate) unowned: Account,

    started: Time,
    random: Random,
    incoming: Burst,
    touched: Vec<PathId>,
    /// Scratch: timers that fired.
    due: Vec<PathId>,
    /// Paths of datagram sockets that have just been closed: they may have a port still.
    closed_datagrams: Vec<PathId>,
    /// When interfaces are asked again what they wait for.
    neighbours_at: Time,
    /// Paths that have more to send than their device takes now.
    stalled: Vec<PathId>,
    /// Paths in TIME-WAIT, and some that have gone.
    spare: VecDeque<PathId>,
    /// The other engines of the daemon.
    pub(crate) several: Several,
    /// Flows that are another engine's, though the rule says that they are this one's.
    elsewhere: HashMap<FlowKey, usize>,
    /// What found no path, to be looked at again.
    strays: Vec<Stray>,
    /// At what is being looked.
    look: Look,
    /// How often sockets have begun to listen.
    listenings: u32,
}

impl Core {
    /// Looks for input on every device and sorts it onto paths. Says whether there was any.
    pub(crate) fn pull(&mut self, now: Time) -> bool {
        let (mut any, mut more) = (false, false);
        for net in 0..self.nets.len() {
            self.relieve(net, now);
            if !self.nets[net].device.has_input() {
                continue;
            }
            let mut burst = std::mem::take(&mut self.incoming);
            match self.nets[net].device.pull(&mut burst, PULL_BURST, now) {
                Ok(_) => self.nets[net].on_device_works(),
                Err(error) => self.nets[net].on_device_failed(&error),
            }
            if !burst.is_empty() {
                any = true;
                more |= burst.len() >= PULL_BURST / 2;
                self.counters.pulls += 1;
                self.counters.packets += burst.len() as u64;
                self.prefetch(net, &burst);
                for message in burst.drain(..) {
                    self.classify(net, message, now);
                }
                self.charge_demux(now);
            }
            self.incoming = burst;
        }
        self.moderation.on_look(more);
        any
    }

    /// Shares the time since `from` among the paths that the burst was sorted onto.
    ///
    /// Where shares are compared it counts against them too, or a flood would be sorted at the cost of others. Levels
    /// are not shares.
    fn charge_demux(&mut self, from: Time) {
        let now = clock::now();
        let share = now.since(from).as_nanos() as u64 / self.touched.len().max(1) as u64;
        for id in self.touched.drain(..) {
            if let Some(path) = self.paths.get_mut(id) {
                path.account.cpu_ns = path.account.cpu_ns.saturating_add(share);
                if self.extras[id.index].asks != Asks::Level {
                    self.schedule.charge(Entry::Path(id), Duration::from_nanos(share), now);
                }
            }
        }
    }

    /// Sorts one packet onto its path, or drops it here: before any protocol work (DESIGN.md §2), and, if it is of a known
    /// flow, before what waits beside the ring is copied. Modules read whole packets.
    fn classify(&mut self, net: usize, mut message: Message, now: Time) {
        let device = DeviceId(net as u16);
        if let Some(key) = flow_of_message(&message, device)
            && let Some(id) = self.flows.lookup(&key)
        {
            self.counters.flow_hits += 1;
            self.offer(id, message, now);
            return;
        }
        if !message.settle() {
            return self.unowned.on_drop(DropReason::Lost);
        }
        if let Some(tag) = tag_of(message.bytes()) {
            return self.classify_tagged(net, tag.vlan, message, now);
        }
        if self.several.is_several() {
            let key = flow_of_frame(message.bytes(), device);
            let Some(own) = self.keep_own(net, key.as_ref(), message) else { return };
            message = own;
        }
        let (verdict, key) = {
            let net = &self.nets[net];
            net.graph.demux(message.bytes(), device, net.entry)
        };
        if self.several.is_several() && !self.nets[net].interface().is_own_link() {
            let Some(own) = self.keep_unless_others(net, &key, message) else { return };
            message = own;
        }
        // Uncommon headers (options, say) of a known flow; a listener's is another path.
        if matches!(verdict, Verdict::Path(_) | Verdict::NoPath)
            && let Some(id) = self.flows.lookup(&key)
        {
            self.offer(id, message, now);
            return;
        }
        match verdict {
            Verdict::Path(id) => match self.refuses_connection(id, &message) {
                Some(reason) => {
                    self.nets[net].unwanted.count(is_syn(message.bytes()));
                    self.count_refusal(Some(id), reason);
                }
                None => {
                    self.offer(id, message, now);
                }
            },
            Verdict::NoPath => self.on_stray(net, &key, message, now),
            Verdict::Group => self.offer_to_group(net, &key, message, now),
            Verdict::Up(_) => self.drop_unowned(net, DropReason::UnknownProtocol),
            Verdict::Drop(DropReason::NotForUs) if self.forwards(net) => {
                let key = flow_of_frame(message.bytes(), device).unwrap_or(key);
                if self.forward(net, &key, message, now).is_err() {
                    self.drop_unowned(net, DropReason::NotForUs);
                }
            }
            Verdict::Drop(reason) => self.drop_unowned(net, reason),
        }
    }

    /// Puts a message into a path's queue and makes the path ready. A full queue drops it, counted there: false.
    fn offer(&mut self, id: PathId, message: Message, now: Time) -> bool {
        if self.paths.get(id).is_none() {
            self.unowned.on_drop(DropReason::NoPath);
            return false;
        }
        self.touched.push(id);
        let Extra { level, net, to, .. } = self.extras[id.index];
        let (net, bytes) = (net as usize, message.body_len() as u64);
        if level > Level::Idle {
            self.make_room(net, bytes);
        }
        let Some(path) = self.paths.get_mut(id) else { return false };
        let Err(message) = path.offer(message) else {
            self.on_offered(net, id, level, now);
            self.make_ready(id, now);
            return true;
        };
        if level > Level::Idle && to.is_none() {
            // What background loses while it waits is no flood, nor is what a full link cannot take.
            let until = now + SERVED_IN * path.queue().limit_packets().min(LONGEST_QUEUE);
            self.nets[net].unwanted.count(is_syn(message.bytes()));
            self.hold_back(net, id, message.bytes(), until);
        }
        false
    }

    fn make_ready(&mut self, id: PathId, now: Time) {
        let Extra { level, asks, .. } = self.extras[id.index];
        let parameters = match asks {
            Asks::Level => level.into(),
            Asks::Weight(weight) => self.share_of(id, weight),
            _ => asks.parameters(
                level,
                self.waits_since(id, now),
                self.schedule.bert().configuration().capacity,
            ),
        };
        self.schedule.enqueue(Entry::Path(id), parameters, now);
    }

    /// What a path with this weight asks for: a part of what its class gets, if that is one of WFQ.
    fn share_of(&self, id: PathId, weight: Weight) -> Parameters {
        let class = self.paths.get(id).map(|path| self.policy.class(u32::from(path.class())));
        match class.map(|class| (class.number, class.settings.asks)) {
            Some((number, Asks::Weight(class_weight))) => {
                Share { class: number as u16, class_weight, weight }.into()
            }
            _ => weight.into(),
        }
    }

    /// When the oldest of what waits for a path came: the front of its queue, or what its program or a timer wants.
    /// A path that is not done with the latter in its time has as long again: a bulk sender is never done.
    fn waits_since(&mut self, id: PathId, now: Time) -> Time {
        let extra = &mut self.extras[id.index];
        let within = match extra.asks {
            Asks::Deadline { within_us, .. } => Duration::from_micros(within_us.into()),
            _ => Duration::ZERO,
        };
        let asked = (extra.kicked || extra.expired).then(|| {
            let since = extra.since.filter(|since| *since + within > now).unwrap_or(now);
            extra.since = Some(since);
            since
        });
        let queued = self.paths.get(id).and_then(|path| Some(path.queue().first()?.facts.arrival));
        asked.into_iter().chain(queued).min().unwrap_or(now)
    }

    /// Looks at the slots that programs marked and at their calls. Says whether there were any.
    pub(crate) fn listen_to_programs(&mut self, now: Time) -> bool {
        let mut any = false;
        let mut next = Bound::Unbounded;
        // One may come or go meanwhile, so each is looked for behind the last; the clone is a reference count.
        while let Some((&id, program)) = self.programs.range((next, Bound::Unbounded)).next() {
            let program = Rc::clone(program);
            next = Bound::Excluded(id);
            if program.has_posted() {
                any = true;
                self.answer_calls(&program, now);
            }
            if program.dirty().is_empty() {
                continue;
            }
            any = true;
            program.take_dirty(|slot| {
                self.counters.doorbells += 1;
                self.on_dirty(&program, slot, now);
            });
        }
        any
    }

    /// The engine is about to give its core away: who can run only there is woken now.
    pub(crate) fn ring_put_off(&self) {
        if !self.put_off.is_empty() {
            self.programs.values().for_each(|program| program.ring_put_off());
        }
    }

    /// A program marked a slot.
    fn on_dirty(&mut self, program: &Rc<Program>, slot: u32, now: Time) {
        let Some(end) = program.end(slot) else { return };
        if !end.listen_paths.is_empty() {
            self.check_listener(&end, now);
            return;
        }
        if end.duty.get().level > Level::Priority(0)
            && let Some(set) = end.shared().server.swap(0, Ordering::AcqRel).checked_sub(1)
        {
            program.raise(set, end.duty.get());
        }
        match end.path.get() {
            Some(id) if self.paths.get(id).is_some() => {
                self.note_closed(&end, id);
                self.kick(id, now);
            }
            _ => Core::check_pathless(&end),
        }
    }

    /// The program's end of a path waits to be looked at.
    fn is_kicked(&self, id: PathId) -> bool {
        self.paths.get(id).is_some() && self.extras[id.index].kicked
    }

    /// The program's end of a path wants to be looked at.
    fn kick(&mut self, id: PathId, now: Time) {
        self.extras[id.index].kicked = true;
        self.make_ready(id, now);
    }

    /// Fires timers: their paths become ready.
    pub(crate) fn fire_timers(&mut self, now: Time) {
        let mut due = std::mem::take(&mut self.due);
        self.wheel.advance(now, |id| due.push(id));
        for id in due.drain(..) {
            let Some(path) = self.paths.get(id) else { continue };
            let extra = &mut self.extras[id.index];
            match path.next_timeout() {
                // The deadline has moved on since the timer was set: most timers end here.
                Some(due) if due > now => extra.armed = Some(self.wheel.arm(id, due)),
                Some(_) => {
                    self.counters.timers += 1;
                    extra.armed = None;
                    extra.expired = true;
                    self.make_ready(id, now);
                }
                None => extra.armed = None,
            }
        }
        self.due = due;
        self.look_for_floods(now);
        self.follow_addresses();
        if now >= self.neighbours_at {
            self.fire_neighbours(now);
        }
    }

    /// Asks again, gives up, and sets when to look next: nothing there is set for less than [`NEIGHBOUR_LOOK`], and what each
    /// interface waits for is long to find out.
    fn fire_neighbours(&mut self, now: Time) {
        for net in 0..self.nets.len() {
            if self.nets[net].interface().next_neighbour_timeout().is_some_and(|due| due <= now) {
                let mut effects = std::mem::take(&mut self.runner.effects);
                let mut asked = Burst::new();
                let interface = self.nets[net].interface();
                interface.on_neighbour_timeout(now, &mut asked, &mut self.unowned, &mut effects);
                self.emit_unowned(net, &mut asked);
                self.carry_out(net, None, effects, now);
            }
        }
        let due = self.nets.iter().filter_map(|net| net.interface().next_neighbour_timeout()).min();
        let latest = now + NEIGHBOUR_LOOK;
        self.neighbours_at = due.map_or(latest, |due| due.min(latest));
    }

    /// When something is due without anything arriving.
    pub(crate) fn next_timeout(&self, now: Time) -> Option<Time> {
        let paced = (0..self.nets.len()).filter_map(|net| self.transmit_timeout(net));
        let background = (0..self.nets.len()).filter_map(|net| self.background_timeout(net, now));
        let of_interfaces = self.nets.iter().filter_map(|net| net.interface().next_neighbour_timeout()).min();
        let neighbours = of_interfaces.map(|due| due.max(self.neighbours_at)).into_iter();
        let devices = self.nets.iter().filter_map(|net| net.device.next_event());
        let floods = self.nets.iter().filter_map(|net| net.flood.next_look());
        let paths = neighbours.chain(self.wheel.next());
        paths.chain(devices).chain(floods).chain(paced).chain(background).min()
    }

    /// Runs a path that the scheduler chose. Returns the time afterwards.
    pub(crate) fn run_path(&mut self, id: PathId, decision: &Decision, now: Time) -> Time {
        if self.paths.get(id).is_none() {
            return now;
        }
        let Extra { net, to, level, .. } = self.extras[id.index];
        let (net, leaves) = (net as usize, usize::from(to.unwrap_or(net)));
        let urgent = level > self.settings.linux_level;
        // Before any protocol work.
        if level == Level::Idle
            && let Some(busy) = [leaves, net].into_iter().find(|&net| self.is_background_suspended(net, now))
        {
            self.suspend(busy, id, now);
            return now;
        }
        let flow = self.queued_flow(leaves, id);
        let (mut messages, mut room) = self.room(leaves, flow.as_ref());
        if messages == 0 {
            self.flush(leaves, now);
            (messages, room) = self.room(leaves, flow.as_ref());
        }
        let has_turn = flow.as_ref().is_none_or(|flow| self.take_turn(leaves, id, flow));
        if !has_turn {
            room.bytes = 0;
        }
        let mut packets = decision.quantum.packets as usize;
        if to.is_some() {
            // What comes in goes out: it stays in the path's queue until there is room.
            if !has_turn || !self.has_room(leaves, flow.as_ref()) {
                self.stall(leaves, id, flow.as_ref());
                return now;
            }
            packets = packets.min(messages).min(self.fitting(id, room.bytes));
        }
        let Some(path) = self.paths.get_mut(id) else { return now };
        let extra = &mut self.extras[id.index];
        // The quantum bounds both directions: a bulk sender must not fill the device's whole room in one run.
        let messages = messages.min(packets);
        let grant = Grant {
            now,
            packets,
            transmit_room: messages,
            transmit_len: room.bytes,
            segment_len: room.segment,
        };
        let mut more = false;
        let mut kicked = std::mem::take(&mut extra.kicked);
        // A path that stopped for want of room goes on from its program's end.
        let mut note = |ran: Ran| {
            more |= ran.more;
            ran.stopped_early
        };
        let expired = std::mem::take(&mut extra.expired);
        // What came goes first: it may well be what the timer waits for, where the engine was away for a while or the path
        // was suspended.
        if !path.queue().is_empty() {
            let (waited, bytes) = (path.queue().len(), path.queue().bytes());
            kicked |= note(path.run_inward(&mut self.runner, grant));
            let (left, bytes_left) = (path.queue().len(), path.queue().bytes());
            let (taken, bytes) = (waited.saturating_sub(left), bytes.saturating_sub(bytes_left));
            if to.is_some() && !urgent && bytes <= SHORT * taken as u64 {
                self.moderation.on_passed(taken);
            } else {
                self.moderation.on_other();
            }
        }
        if expired {
            let grant = grant.after(&self.runner.out);
            kicked |= note(path.on_timeout(&mut self.runner, grant));
        }
        if kicked {
            let grant = grant.after(&self.runner.out);
            extra.kicked = note(path.run_outward(&mut self.runner, grant, &mut Burst::new()));
        }
        if !extra.kicked {
            extra.since = None;
        }
        attach_stream(path, &mut self.runner.out);
        if let Some(due) = path.next_timeout()
            && extra.armed.is_none_or(|armed| armed > due)
        {
            extra.armed = Some(self.wheel.arm(id, due));
        }
        self.counters.runs += 1;
        let mut made = std::mem::take(&mut self.runner.out);
        if level > Level::Idle {
            self.on_foreground_run(leaves, id, !made.is_empty(), now);
        }
        let awaited = urgent && made.iter().any(|message| !message.facts.can_wait);
        match to {
            None => self.emit(net, flow.as_ref(), &mut made),
            Some(_) => self.emit_forwarded(leaves, flow.as_ref(), &mut made),
        }
        self.runner.out = made;
        if more && has_turn && self.has_room(leaves, flow.as_ref()) {
            self.make_ready(id, now);
        } else if more {
            self.stall(leaves, id, flow.as_ref());
        }
        let effects = std::mem::take(&mut self.runner.effects);
        self.carry_out(net, Some(id), effects, now);
        let after = clock::now();
        let spent = after.since(now);
        if let Some(path) = self.paths.get_mut(id) {
            path.account.cpu_ns = path.account.cpu_ns.saturating_add(spent.as_nanos() as u64);
        }
        self.schedule.charge(Entry::Path(id), spent, after);
        // Before what is less important is worked on; what waits goes with it, since the push is paid for. Without levels
        // there is nothing that it would wait for.
        if awaited && !self.nets[leaves].transmit.is_direct() || self.is_burst_full(leaves) {
            self.flush(leaves, now);
        }
        after
    }

    /// Charges time to a path that it has cost, beside its runs.
    pub(crate) fn charge(&mut self, id: PathId, spent: Duration, now: Time) {
        if let Some(path) = self.paths.get_mut(id) {
            path.account.cpu_ns = path.account.cpu_ns.saturating_add(spent.as_nanos() as u64);
            self.schedule.charge(Entry::Path(id), spent, now);
        }
    }

    /// True when something could be done now.
    pub(crate) fn has_input(&self) -> bool {
        self.has_packets() || self.is_called()
    }

    /// Devices have something.
    pub(crate) fn has_packets(&self) -> bool {
        self.nets.iter().any(|net| net.device.has_input())
    }

    /// True when something could be done now that nobody outside of the engines asks for.
    pub(crate) fn has_own_work(&self) -> bool {
        self.has_strays() || self.several.is_given() || self.has_own_input()
    }

    /// True when something could be done now that no device has brought from outside.
    pub(crate) fn is_called(&self) -> bool {
        self.has_own_work() || self.programs.values().any(|program| program.has_called())
    }

    /// True when programs of this machine have sent each other what nobody has taken yet.
    pub(crate) fn has_own_input(&self) -> bool {
        self.routing.own_link().is_some_and(|net| self.nets[net].device.has_input())
    }

    /// How long the engine has lived.
    pub(crate) fn uptime(&self, now: Time) -> Duration {
        now.since(self.started)
    }
}

#[cfg(test)]
mod tests;
