//! The transmit side of a device: what paths made goes through class queues, or, while there is nothing to decide,
//! straight to the device.
//!
//! ```text
//!   run ─► emit ─┬─ one level, no rate: out ──────────────────────────► push
//!                └─ else: class queues (scoutline_sched::transmit) ─► fill ─► out ─► push
//!                     ▲ room                                            │ not taken: back to the front
//!   paths that have more to send wait here until their class's queue has room: segments are made late
//! ```
//! With a rate, messages are handed down as the link takes them, so that what the kernel holds is at most half a
//! millisecond's worth. Without one the link is not known; then what the kernel still holds (SIOCOUTQ) is bounded, and
//! background is handed down one message at a time, when nothing of ours is left there.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use scoutline_base::{PathId, Time};
use scoutline_path::{Body, Burst, DropReason, Message, Path};
use scoutline_ring::StreamMemory;
use scoutline_sched::transmit::{Activity, BitRate, Flow, Preemption, Room, Settings, Taken, Transmit};
use scoutline_sched::{Level, Weight};

use super::background::Background;
use super::{Core, Net};
use crate::socket::StreamStage;

/// Messages that are sent together at most: beyond this the gain of one more in a sendmmsg is small.
pub(super) const PUSH_BURST: usize = 32;
/// What is not background.
const FOREGROUND: Level = Level::Priority(0);
/// Bytes that are sent together at most: the kernel copies them in some 20 µs, and nothing interrupts it.
pub(super) const PUSH_LEN: usize = 256 << 10;
/// Bytes that may stand below us when nothing says how fast the link is. A millisecond at 8 Gbit/s; on a veth pair
/// next to nothing ever stands there.
const STANDING_LEN: u64 = 1 << 20;
/// The queue of what serves the machine itself (ARP, ICMP, resets): no class's rate or weight is meant for it.
const SYSTEM_QUEUE: u32 = u32::MAX;
/// Messages that may wait in one class's queue, however small they are.
const QUEUE_MESSAGES: usize = 512;

/// See the module.
pub(crate) struct TransmitSide {
    pub(super) queues: Transmit<Message>,
    /// What the device is given next.
    out: Burst,
    /// Bytes of data in `out`.
    out_len: usize,
    /// Whose the messages in `out` are, when they come from the queues.
    taken: Vec<(Flow, u32)>,
    /// There is nothing to decide: queues are left out.
    direct: bool,
    /// Paths that wait for room in their class's queue.
    stalled: BTreeMap<(Level, u32), (Flow, VecDeque<PathId>)>,
    /// The device holds up what is queued, and will not say when it goes on.
    blocked: bool,
    pub(super) background: Background,
}

impl TransmitSide {
    pub(super) fn new(rate: Option<BitRate>, preemption: Preemption, mtu: u32) -> TransmitSide {
        let settings = Settings { rate, frame_len: mtu + LINK_LEN };
        TransmitSide {
            queues: Transmit::new(settings),
            out: Burst::new(),
            out_len: 0,
            taken: Vec::new(),
            direct: rate.is_none(),
            stalled: BTreeMap::new(),
            blocked: false,
            background: Background::new(Activity::new(preemption)),
        }
    }

    /// There is nothing to decide: queues are left out.
    pub(super) fn is_direct(&self) -> bool {
        self.direct
    }

    /// The link carries something else, and background keeps away for another time.
    pub(super) fn set_link(&mut self, rate: Option<BitRate>, preemption: Preemption) {
        self.queues.set_rate(rate);
        self.background.set_preemption(preemption);
    }

    /// What the link carries, as configured.
    pub(super) fn rate(&self) -> Option<BitRate> {
        self.queues.settings().rate
    }

    /// A path waits neither for room nor for foreground to be silent any more.
    pub(super) fn forget_waiting(&mut self, id: PathId) {
        self.background.forget(id);
        for (_, waiting) in self.stalled.values_mut() {
            waiting.retain(|&other| other != id);
        }
    }

    /// What `stat` shows of it, by name.
    pub(super) fn counters(&self, now: Time) -> Vec<(String, u64)> {
        let background = &self.background;
        let queued = self.queues.queued_bytes().map(|(level, bytes)| match level {
            Level::Idle => ("queued-bytes-idle".to_owned(), bytes),
            Level::Priority(priority) => (format!("queued-bytes-{priority}"), bytes),
        });
        let named = [
            ("rate-bits", self.rate().map_or(0, BitRate::get)),
            ("queued-bytes", self.queues.bytes()),
            ("background-paths", u64::from(background.paths())),
            ("background-suspended-ns", background.suspended_for(now).as_nanos() as u64),
            ("preemption-ns", background.interval().as_nanos() as u64),
            ("displaced", background.displaced()),
        ];
        queued.chain(named.map(|(name, value)| (name.to_owned(), value))).collect()
    }

    /// Moves what may leave now from the queues to `out`.
    fn fill(&mut self, standing: Option<u64>, mut least: Level, now: Time) {
        let paced = self.rate().is_some();
        let mut below = standing.unwrap_or(0);
        // Without a rate, background goes alone, and waits until all before it has left.
        if !paced && (below > 0 || !self.out.is_empty()) {
            least = least.max(FOREGROUND);
        }
        self.blocked = false;
        // Nobody looks at what has arrived between two pushes: all that waits goes in one, or the rest would be pushed alone.
        while self.out.len() < PUSH_BURST && self.out_len < 2 * PUSH_LEN {
            if !paced && below >= STANDING_LEN {
                break;
            }
            let Some(Taken { flow, len, item }) = self.queues.take_above(least, now) else { break };
            if !paced {
                least = least.max(FOREGROUND);
            }
            below += u64::from(len);
            self.out_len += item.body_len();
            self.taken.push((flow, len));
            self.out.push(item);
        }
    }

    /// What the device did not take goes back to the front of the queues: something more important may come before it
    /// goes.
    fn recall(&mut self) {
        let sent = self.taken.len().saturating_sub(self.out.len());
        if self.taken.is_empty() || self.out.is_empty() {
            self.taken.clear();
            return;
        }
        self.taken.drain(..sent);
        // What was made while there was nothing to decide stays in front.
        let unlabelled = self.out.len() - self.taken.len();
        while self.out.len() > unlabelled
            && let (Some(item), Some((flow, len))) = (self.out.pop(), self.taken.pop())
        {
            self.queues.put_back(Taken { flow, len, item });
        }
    }
}

/// Ethernet header.
const LINK_LEN: u32 = 14;

impl Core {
    /// What a path's messages are to the device.
    pub(super) fn flow_of(&self, id: PathId) -> Flow {
        let extra = &self.extras[id.index];
        // What serves the machine itself is of no class's rate or weight.
        let path = self.paths.get(id).filter(|_| extra.program.is_some() || extra.to.is_some());
        let Some(path) = path else { return system_flow(extra.level) };
        let class = self.policy.class(u32::from(path.class()));
        let (weight, rate) = (class.settings.weight, class.settings.rate);
        Flow { level: extra.level, class: class.number, weight, rate }
    }

    /// How much may be made for a device now; with a flow, for that flow's queue.
    pub(super) fn room(&self, net: usize, flow: Option<&Flow>) -> (usize, Room) {
        let Net { device, transmit, .. } = &self.nets[net];
        match flow {
            None => {
                let messages = device.room().saturating_sub(transmit.out.len());
                (messages, Room { bytes: u64::MAX, segment: u32::MAX })
            }
            Some(flow) => {
                let (waiting, room) = transmit.queues.room(flow);
                (QUEUE_MESSAGES.saturating_sub(waiting), room)
            }
        }
    }

    /// True when a path of this flow can make at least one full packet.
    pub(super) fn has_room(&self, net: usize, flow: Option<&Flow>) -> bool {
        let (messages, room) = self.room(net, flow);
        let frame = self.nets[net].transmit.queues.settings().frame_len;
        messages > 0 && room.bytes >= u64::from(frame)
    }

    /// The flow of a path, where the device's queues are used at all.
    #[inline]
    pub(super) fn queued_flow(&self, net: usize, id: PathId) -> Option<Flow> {
        (!self.nets[net].transmit.direct).then(|| self.flow_of(id))
    }

    /// Gives messages to a device.
    pub(super) fn emit(&mut self, net: usize, flow: Option<&Flow>, burst: &mut Burst) {
        let side = &mut self.nets[net].transmit;
        match flow {
            None => {
                side.out_len += burst.iter().map(Message::body_len).sum::<usize>();
                side.out.append(burst);
            }
            Some(flow) => {
                for message in burst.drain(..) {
                    side.queues.enqueue(*flow, message.wire_len(), message);
                }
            }
        }
    }

    /// Messages that belong to no path: at the system's level.
    pub(super) fn emit_unowned(&mut self, net: usize, burst: &mut Burst) {
        let flow = (!self.nets[net].transmit.direct).then(|| system_flow(self.settings.system_level));
        self.emit(net, flow.as_ref(), burst);
    }

    /// A path has more to send than there is room for.
    pub(super) fn stall(&mut self, net: usize, id: PathId, flow: Option<&Flow>) {
        match flow {
            None => self.stalled.push(id),
            Some(flow) => {
                if std::mem::replace(&mut self.extras[id.index].stalled, true) {
                    return;
                }
                let key = (flow.level, flow.class);
                let waiting =
                    self.nets[net].transmit.stalled.entry(key).or_insert_with(|| (*flow, VecDeque::new()));
                waiting.0 = *flow;
                waiting.1.push_back(id);
            }
        }
    }

    /// Whether a path that runs may make data: when others of its class wait for room, only in its turn. What else it
    /// makes (acknowledgments) does not wait.
    pub(super) fn take_turn(&mut self, net: usize, id: PathId, flow: &Flow) -> bool {
        let turn = std::mem::take(&mut self.extras[id.index].turn);
        turn || !self.nets[net].transmit.stalled.contains_key(&(flow.level, flow.class))
    }

    /// True when so much was made that it should go: more in one system call gains little.
    pub(super) fn is_burst_full(&self, net: usize) -> bool {
        let side = &self.nets[net].transmit;
        let messages = side.out.len() + side.queues.len();
        messages >= PUSH_BURST
            || side.out_len >= PUSH_LEN
            || !side.direct && side.queues.bytes() >= PUSH_LEN as u64
    }

    /// Gives the devices what was made for them.
    pub(crate) fn flush_all(&mut self, now: Time) {
        self.flush_above(Level::Idle, now);
    }

    /// The same, but what is below this level stays for later, where there are several.
    pub(crate) fn flush_above(&mut self, least: Level, now: Time) {
        for net in 0..self.nets.len() {
            self.flush_net(net, least, now);
        }
    }

    /// Gives a device what it takes now of what was made for it.
    pub(super) fn flush(&mut self, net: usize, now: Time) {
        self.flush_net(net, Level::Idle, now);
    }

    /// The same, but what is below this level stays for later, where there are several.
    pub(super) fn flush_net(&mut self, net: usize, least: Level, now: Time) {
        let idle = !self.is_background_suspended(net, now);
        let least = if idle { least } else { least.max(FOREGROUND) };
        loop {
            let Net { device, transmit, .. } = &mut self.nets[net];
            let queued = !transmit.queues.is_empty();
            if queued {
                let standing = if transmit.rate().is_none() { device.standing() } else { None };
                transmit.fill(standing, least, now);
            }
            if transmit.out.is_empty() {
                break;
            }
            self.counters.pushes += 1;
            transmit.out_len = 0;
            match device.push(&mut transmit.out) {
                Ok(count) => {
                    self.counters.pushed += count as u64;
                    self.nets[net].on_device_works();
                }
                Err(error) => {
                    // TCP sends again what is lost here; a dead device must not hold memory.
                    for _ in transmit.out.drain(..) {
                        self.unowned.on_drop(DropReason::DeviceError);
                    }
                    self.nets[net].on_device_failed(&error);
                }
            }
            let transmit = &mut self.nets[net].transmit;
            let whole = transmit.out.is_empty();
            transmit.recall();
            if !queued || !whole {
                break;
            }
        }
        if least <= FOREGROUND {
            self.note_blocked(net, idle, now);
        }
        self.revive(net, now);
    }

    /// Looks whether something that could leave by its pace is held up by the device.
    fn note_blocked(&mut self, net: usize, idle: bool, now: Time) {
        let side = &mut self.nets[net].transmit;
        side.blocked = !side.out.is_empty()
            || side.queues.next_time(idle.then_some(Time::ZERO)).is_some_and(|at| at <= now);
    }

    /// The device has room again: paths that waited for it go on, each class's in turn.
    fn revive(&mut self, net: usize, now: Time) {
        if !self.stalled.is_empty() && self.room(net, None).0 > 0 {
            let mut stalled = std::mem::take(&mut self.stalled);
            stalled.retain(|&id| {
                let waits = self.paths.get(id).is_some();
                let super::Extra { net: enters, to, .. } = self.extras[id.index];
                let here = usize::from(to.unwrap_or(enters)) == net;
                if waits && here {
                    self.make_ready(id, now);
                }
                waits && !here
            });
            self.stalled = stalled;
        }
        if self.nets[net].transmit.stalled.is_empty() {
            return;
        }
        let mut stalled = std::mem::take(&mut self.nets[net].transmit.stalled);
        stalled.retain(|_, (flow, waiting)| {
            if !self.has_room(net, Some(flow)) {
                return true;
            }
            let Room { bytes, segment } = self.room(net, Some(flow)).1;
            // No more than can make something: the others would run for nothing.
            let mut turns = (bytes / u64::from(segment.min(TURN_LEN))).max(1);
            while turns > 0
                && let Some(id) = waiting.pop_front()
            {
                if self.paths.get(id).is_some() {
                    let extra = &mut self.extras[id.index];
                    (extra.stalled, extra.turn) = (false, true);
                    self.make_ready(id, now);
                    turns -= 1;
                }
            }
            !waiting.is_empty()
        });
        self.nets[net].transmit.stalled = stalled;
    }

    /// Sends what its pace lets go now, and lets background go on once it may. True when something was done.
    pub(crate) fn pace(&mut self, now: Time) -> bool {
        let mut done = false;
        for net in 0..self.nets.len() {
            let side = &self.nets[net].transmit;
            if side.background.has_suspended() && !self.is_background_suspended(net, now) {
                self.resume_background(net, now);
                done = true;
            }
            if self.transmit_timeout(net).is_some_and(|due| due <= now) {
                self.flush(net, now);
                done = true;
            }
        }
        done
    }

    /// When a device's queues have something that may leave, by its pace and by what foreground leaves.
    pub(super) fn transmit_timeout(&self, net: usize) -> Option<Time> {
        let side = &self.nets[net].transmit;
        // Who is blocked is looked at now and then; without a rate there is only background that has to wait.
        if side.queues.is_empty() || side.blocked || !side.queues.is_paced() && !side.queues.has_background()
        {
            return None;
        }
        let quiet = side.background.quiet_at();
        if side.queues.is_paced() { side.queues.next_time(Some(quiet)) } else { Some(quiet) }
    }

    /// When something queued may leave, on any device.
    pub(crate) fn next_paced(&self, now: Time) -> Option<Time> {
        let nets = 0..self.nets.len();
        nets.flat_map(|net| [self.transmit_timeout(net), self.background_timeout(net, now)]).flatten().min()
    }

    /// True while a device has not taken everything, and nothing will tell when it does.
    pub(crate) fn has_output(&self) -> bool {
        self.nets.iter().any(|net| net.transmit.blocked || !net.transmit.out.is_empty())
    }

    /// From now on nothing is paced or held back: the end.
    pub(super) fn release_output(&mut self) {
        for net in &mut self.nets {
            net.transmit.queues.release();
            net.transmit.background.end();
        }
    }

    /// Looks anew whether there is anything to decide on a device, after the classes or a path's level changed.
    pub(super) fn check_direct(&mut self) {
        let classes = self.policy.classes();
        let first = classes.first().map(|class| class.settings.level);
        let alike = self.apart.is_empty()
            && classes
                .iter()
                .all(|class| Some(class.settings.level) == first && class.settings.rate.is_none());
        for net in &mut self.nets {
            let side = &mut net.transmit;
            side.direct = alike && side.rate().is_none() && side.background.paths() == 0;
        }
    }
}

/// How much of a queue's room one path is expected to use.
const TURN_LEN: u32 = 64 << 10;

fn system_flow(level: Level) -> Flow {
    Flow { level, class: SYSTEM_QUEUE, weight: Weight::default(), rate: None }
}

/// Gives messages of the outgoing stream the memory that they are about. The messages keep it until the device has
/// taken them; nothing else here does, for rings of finished connections must come back while they are warm.
pub(super) fn attach_stream(path: &Path, out: &mut Burst) {
    let mut socket = None;
    for message in out.iter_mut() {
        if let Body::Stream { memory, .. } = &mut message.body
            && memory.is_none()
        {
            if socket.is_none() {
                socket = path.stage::<StreamStage>().and_then(StreamStage::end).cloned();
            }
            *memory = socket.clone().map(|end| end as Rc<dyn StreamMemory>);
        }
    }
}
