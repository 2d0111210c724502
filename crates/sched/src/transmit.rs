//! What a device sends next (DESIGN.md §4, last point): class queues in front of a device, in virtual time. Pure.
//!
//! ```text
//!   class queues, by strict levels       within a level                 the device
//!    3     preferred ▮▮ ───────────────────────────────┐
//!    0     web ▮▮▮▮ ─┬─ in proportion to weights ──────┼──► take ──► Pace ──► kernel ──► wire
//!          mail ▮▮ ──┘  (classes with a rate wait)     │             what stands below is bounded
//!    idle  backup ▮ ───────────────────────────────────┘
//! ```
//!
//! - **Synopsis**: [`Transmit::enqueue`] with a [`Flow`], [`Transmit::take`] what may leave now,
//!   [`Transmit::next_time`] when to look again, [`Transmit::room`] how much a producer may make.
//! - **Options** ([`Settings`]): `rate` of the device (none), `frame_len` (1514), and for each flow level, weight and
//!   `rate` of its class.
//! - **Counters**: [`Transmit::queued_bytes`] by level.
//! - **See also**: [`Activity`]: when background may be sent at all.
//!
//! With a rate, a message is handed down when what stands below needs at most [`BELOW`] of the link's time; one of the
//! idle level when that is at most half a frame (or `BELOW_WAKE`): so one background frame at most waits where it
//! cannot be recalled, behind the rest of the one that the link sends. Time that nobody used is not saved up: no burst follows a pause. Producers make
//! late: a class queue takes two segments (background more, as it can be recalled), and a segment is no longer than
//! what the link sends in [`BELOW`].
//!
//! Within a level, start-time fair queueing (Goyal, Vin, Cheng 1996): the message with the least start tag goes first;
//! a class is off from its share by at most one of its own longest messages and one of each other class.
//!
//! Left out on purpose: fairness between the flows of one class (they take turns in making their messages), and
//! deadlines of messages.

mod activity;
mod pace;

use std::collections::VecDeque;
use std::time::Duration;

use scoutline_base::Time;

use crate::{Level, Weight, levels};

pub use activity::{Activity, Preemption};
pub use pace::{BitRate, Pace};

/// How much of the link's time may stand below us: long enough that an engine which wakes late (some 50 µs; 100 µs
/// while Linux has its core) does not let the link run dry, short enough that nobody notices it as a queue.
pub const BELOW: Duration = Duration::from_micros(500);
/// As much for background on links so fast that a single frame would be too little work for a turn of the engine:
/// a frame at 1 Gbit/s.
const BELOW_IDLE: Duration = Duration::from_micros(12);
/// With so much of the link's time below us, background's next frame is soon enough: an engine wakes in that time.
const BELOW_WAKE: Duration = Duration::from_micros(50);
/// How much of the link's time background may have made ahead. It can be recalled, so it may be more than what stands
/// below: as long as Linux may have the engine's core.
const AHEAD_IDLE: Duration = Duration::from_millis(2);
/// Bytes that a class queue takes when nothing says how fast the device is: what the kernel copies in some 20 µs, and
/// so what one push brings.
const UNPACED_LEN: u64 = 256 << 10;
/// What it may exceed that by: who has room makes whole super-segments. Cut to the rest of the room, twice as many would
/// be pushed.
const UNPACED_SEGMENT: u64 = 192 << 10;
/// Of background then.
const UNPACED_IDLE_LEN: u64 = 64 << 10;
/// A tag's unit: bytes of weight 1, times this, so that little is lost to rounding.
const TAG_SCALE: u128 = 1 << 20;

/// Parameters of a device's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What the link carries, frames counted as [`Transmit::enqueue`] is told; `None`: unknown, and nothing is paced.
    pub rate: Option<BitRate>,
    /// Bytes of the longest frame on the link.
    pub frame_len: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { rate: None, frame_len: 1514 }
    }
}

/// Whose queue a message goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Strictly more important levels go first.
    pub level: Level,
    /// Names the queue within the level.
    pub class: u32,
    /// Its part among the classes of the level.
    pub weight: Weight,
    /// What it may use at most.
    pub rate: Option<BitRate>,
}

/// How much a producer may make for a queue now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes on the wire; at least a frame when the queue is empty.
    pub bytes: u64,
    /// Bytes on the wire of one message at most; at least a frame.
    pub segment: u32,
}

/// A message that may leave.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken<T> {
    /// Whose it was.
    pub flow: Flow,
    /// Bytes on the wire.
    pub len: u32,
    /// What was enqueued.
    pub item: T,
}

/// The class queues of one device. Work for each call: the classes of one level; `take` goes down the levels until
/// one has something that may leave.
#[derive(Debug)]
pub struct Transmit<T> {
    settings: Settings,
    link: Option<Pace>,
    levels: Vec<LevelQueues<T>>,
    /// Of the classes that ever sent: the rate of each is one, however many levels its paths stand in.
    rates: Vec<ClassRate>,
    /// Bit `i` is set while level `i` has messages.
    occupied: u128,
    len: usize,
    bytes: u64,
    /// Some class has had a rate.
    class_rates: bool,
    /// Rates hold no longer.
    released: bool,
}

/// How far a class has used its rate.
#[derive(Debug)]
struct ClassRate {
    class: u32,
    pace: Option<Pace>,
}

#[derive(Debug)]
struct LevelQueues<T> {
    /// Those that were ever used; a class without messages stays, with its tags.
    classes: Vec<ClassQueue<T>>,
    bytes: u64,
    len: usize,
    /// The start tag of the message that left last.
    virtual_time: u128,
}

#[derive(Debug)]
struct ClassQueue<T> {
    flow: Flow,
    /// Where its class is among [`Transmit::rates`].
    rate: usize,
    messages: VecDeque<(u32, T)>,
    bytes: u64,
    /// Start tag of the first message; of an empty queue, where the next one may start at the earliest.
    start: u128,
}

impl<T> Transmit<T> {
    /// Empty queues.
    pub fn new(settings: Settings) -> Transmit<T> {
        let empty = || LevelQueues { classes: Vec::new(), bytes: 0, len: 0, virtual_time: 0 };
        Transmit {
            settings,
            link: settings.rate.map(Pace::new),
            levels: (0..levels::COUNT).map(|_| empty()).collect(),
            rates: Vec::new(),
            occupied: 0,
            len: 0,
            bytes: 0,
            class_rates: false,
            released: false,
        }
    }

    /// Its parameters.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Rates hold no longer: all that waits may leave now, in its order.
    pub fn release(&mut self) {
        self.released = true;
    }

    /// Changes the rate; what stands below is counted on.
    pub fn set_rate(&mut self, rate: Option<BitRate>) {
        self.settings.rate = rate;
        self.link = rate.map(|rate| match self.link.take() {
            Some(link) => link.with_rate(rate),
            None => Pace::new(rate),
        });
    }

    /// Puts a message of so many bytes on the wire at the end of its class's queue. Weight and rate of the class are
    /// from now on what `flow` says.
    pub fn enqueue(&mut self, flow: Flow, len: u32, item: T) {
        let index = levels::index(flow.level);
        let level = &mut self.levels[index];
        let virtual_time = level.virtual_time;
        let class = level.class_mut(flow, &mut self.rates);
        self.rates[class.rate].change(flow.rate);
        if class.messages.is_empty() {
            class.start = class.start.max(virtual_time);
        }
        class.messages.push_back((len, item));
        class.bytes += u64::from(len);
        level.bytes += u64::from(len);
        level.len += 1;
        self.class_rates |= flow.rate.is_some();
        self.occupied |= 1 << index;
        self.len += 1;
        self.bytes += u64::from(len);
    }

    /// Takes what leaves next, if anything may leave at `now`. With `idle` false the idle level waits.
    pub fn take(&mut self, now: Time, idle: bool) -> Option<Taken<T>> {
        self.take_above(if idle { Level::Idle } else { Level::Priority(0) }, now)
    }

    /// The same; what is below `least` waits.
    pub fn take_above(&mut self, least: Level, now: Time) -> Option<Taken<T>> {
        let mut occupied = self.occupied;
        while let Some(index) = occupied.checked_ilog2().map(|index| index as usize) {
            occupied &= !(1 << index);
            if levels::level(index) < least {
                return None;
            }
            if self.link_ready_at(index).is_some_and(|at| at > now) {
                return None; // for those below it comes no sooner
            }
            if let Some(class) = self.levels[index].next(&self.rates, now, self.released) {
                return Some(self.take_from(index, class, now));
            }
        }
        None
    }

    fn take_from(&mut self, index: usize, class: usize, now: Time) -> Taken<T> {
        let level = &mut self.levels[index];
        level.virtual_time = level.classes[class].start;
        let queue = &mut level.classes[class];
        let (len, item) = queue.messages.pop_front().expect("a class with messages was chosen");
        queue.bytes -= u64::from(len);
        queue.start += queue.cost(len);
        let flow = queue.flow;
        if let Some(pace) = &mut self.rates[queue.rate].pace {
            pace.on_sent(len, now);
        }
        if let Some(link) = &mut self.link {
            link.on_sent(len, now);
        }
        level.bytes -= u64::from(len);
        level.len -= 1;
        self.len -= 1;
        self.bytes -= u64::from(len);
        if level.len == 0 {
            self.occupied &= !(1 << index);
        }
        Taken { flow, len, item }
    }

    /// Puts back what was taken last and could not leave after all: to the front, and as if it had not been taken.
    pub fn put_back(&mut self, taken: Taken<T>) {
        let Taken { flow, len, item } = taken;
        let index = levels::index(flow.level);
        let level = &mut self.levels[index];
        let class = level.class_mut(flow, &mut self.rates);
        class.start = class.start.saturating_sub(class.cost(len));
        class.messages.push_front((len, item));
        class.bytes += u64::from(len);
        if let Some(pace) = &mut self.rates[class.rate].pace {
            pace.on_recalled(len);
        }
        if let Some(link) = &mut self.link {
            link.on_recalled(len);
        }
        level.bytes += u64::from(len);
        level.len += 1;
        self.occupied |= 1 << index;
        self.len += 1;
        self.bytes += u64::from(len);
    }

    /// When [`Transmit::take`] has something, if nothing is enqueued before. The idle level may not leave before
    /// `idle`; with `None`, not at all.
    pub fn next_time(&self, idle: Option<Time>) -> Option<Time> {
        let mut occupied = self.occupied;
        let mut soonest: Option<Time> = None;
        while let Some(index) = occupied.checked_ilog2().map(|index| index as usize) {
            occupied &= !(1 << index);
            let not_before = match levels::level(index) {
                // The last one.
                Level::Idle => match idle {
                    Some(idle) => idle,
                    None => break,
                },
                Level::Priority(_) => Time::ZERO,
            };
            let link = self.link_ready_at(index).unwrap_or(Time::ZERO).max(not_before);
            let class = self.levels[index].ready_at(&self.rates, self.released);
            soonest = soonest.into_iter().chain(class.map(|class| class.max(link))).min();
        }
        soonest
    }

    /// How much a producer may make for this queue. It keeps each queue so short that what is made late is the most
    /// important, and long enough that the link never waits for a producer.
    ///
    /// Says first how many messages wait there.
    pub fn room(&self, flow: &Flow) -> (usize, Room) {
        let index = levels::index(flow.level);
        let idle = flow.level == Level::Idle;
        let queue = self.levels[index].classes.iter().find(|queue| queue.flow.class == flow.class);
        let (waiting, queued) = queue.map_or((0, 0), |queue| (queue.messages.len(), queue.bytes));
        let rate = self.settings.rate.into_iter().chain(flow.rate).min();
        let Some(rate) = rate else {
            let most = if idle { UNPACED_IDLE_LEN } else { UNPACED_LEN };
            let left = most.saturating_sub(queued);
            let overshoot = if idle || left == 0 { 0 } else { UNPACED_SEGMENT };
            let bytes = left + overshoot;
            return (waiting, Room { bytes, segment: if idle { most as u32 } else { u32::MAX } });
        };
        let segment = self.segment(rate, idle);
        let ahead = if idle { rate.bytes_in(AHEAD_IDLE) } else { 0 };
        (waiting, Room { bytes: ahead.max(u64::from(2 * segment)).saturating_sub(queued), segment })
    }

    /// Bytes on the wire of one message: a frame, or what the link sends in the time that may stand below.
    fn segment(&self, rate: BitRate, idle: bool) -> u32 {
        let time = if idle { BELOW_IDLE } else { BELOW };
        let bytes = u32::try_from(rate.bytes_in(time)).unwrap_or(u32::MAX / 4);
        bytes.clamp(self.settings.frame_len, u32::MAX / 4)
    }

    /// When the link takes something of a level; `None`: at once.
    fn link_ready_at(&self, level: usize) -> Option<Time> {
        let link = self.link.as_ref().filter(|_| !self.released)?;
        let idle = levels::level(level) == Level::Idle;
        let bound = link.rate().time_for(self.segment(link.rate(), idle));
        Some(link.ready_at(if idle { bound.min(BELOW_WAKE.max(bound / 2)) } else { bound.max(BELOW) }))
    }

    /// Messages that wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when none waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that wait.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True when there are rates.
    pub fn is_paced(&self) -> bool {
        self.link.is_some() || self.class_rates
    }

    /// True when a message of the idle level waits.
    #[inline]
    pub fn has_background(&self) -> bool {
        self.occupied & 1 != 0
    }

    /// True when a message above the idle level waits for the link, and not for its class's rate.
    pub fn presses(&self, now: Time) -> bool {
        let sends = |level: &LevelQueues<T>| level.next(&self.rates, now, self.released).is_some();
        self.has_foreground() && self.levels[1..].iter().any(sends)
    }

    /// True when a message above the idle level waits.
    #[inline]
    pub fn has_foreground(&self) -> bool {
        self.occupied >> 1 != 0
    }

    /// Bytes that wait, for each level that has some; the least important first.
    pub fn queued_bytes(&self) -> impl Iterator<Item = (Level, u64)> + '_ {
        self.levels
            .iter()
            .enumerate()
            .filter(|(_, level)| level.len > 0)
            .map(|(index, level)| (levels::level(index), level.bytes))
    }
}

impl ClassRate {
    /// What the class may use from now on; what it has used of the rate before counts on.
    fn change(&mut self, rate: Option<BitRate>) {
        if self.pace.map(|pace| pace.rate()) != rate {
            self.pace = rate.map(|rate| self.pace.map_or(Pace::new(rate), |pace| pace.with_rate(rate)));
        }
    }

    /// When the class may send.
    fn ready_at(&self, released: bool) -> Time {
        self.pace.filter(|_| !released).map_or(Time::ZERO, |pace| pace.ready_at(BELOW))
    }
}

impl<T> LevelQueues<T> {
    /// The queue of a class, with the weight of now.
    fn class_mut(&mut self, flow: Flow, rates: &mut Vec<ClassRate>) -> &mut ClassQueue<T> {
        let found = self.classes.iter().position(|queue| queue.flow.class == flow.class);
        let at = found.unwrap_or_else(|| {
            let rate = rates.iter().position(|rate| rate.class == flow.class).unwrap_or(rates.len());
            if rate == rates.len() {
                rates.push(ClassRate { class: flow.class, pace: None });
            }
            self.classes.push(ClassQueue { flow, rate, messages: VecDeque::new(), bytes: 0, start: 0 });
            self.classes.len() - 1
        });
        let queue = &mut self.classes[at];
        queue.flow = flow;
        queue
    }

    /// The class whose turn it is among those that may send at `now`.
    fn next(&self, rates: &[ClassRate], now: Time, released: bool) -> Option<usize> {
        let ready =
            |queue: &ClassQueue<T>| !queue.messages.is_empty() && rates[queue.rate].ready_at(released) <= now;
        let candidates = self.classes.iter().enumerate().filter(|(_, queue)| ready(queue));
        candidates.min_by_key(|(_, queue)| queue.start).map(|(at, _)| at)
    }

    /// When one of its classes may send, the link apart.
    fn ready_at(&self, rates: &[ClassRate], released: bool) -> Option<Time> {
        let waiting = self.classes.iter().filter(|queue| !queue.messages.is_empty());
        waiting.map(|queue| rates[queue.rate].ready_at(released)).min()
    }
}

impl<T> ClassQueue<T> {
    /// What a message adds to its class's tags.
    fn cost(&self, len: u32) -> u128 {
        u128::from(len) * TAG_SCALE / u128::from(self.flow.weight.value())
    }
}

#[cfg(test)]
mod tests;
