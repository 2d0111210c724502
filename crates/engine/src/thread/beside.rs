//! The Linux thread's turns: the engine gives its core away, and looks up now and then.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use scoutline_abi::layout::engine_state;
use scoutline_base::Time;
use scoutline_sched::{Decision, Entry, Level, Policy, schedule};

use super::Loop;
use crate::clock;
use crate::linux::Sentinel;
use crate::sys;

/// How often the engine looks for more important arrivals while Linux runs, when they do not all ring. A look costs 2 to
/// 15 µs.
const LINUX_LOOK: Duration = Duration::from_micros(100);
/// When they do: the receive ring wants to be emptied.
const LINUX_LOOK_RUNG: Duration = Duration::from_millis(1);
/// When they do, but the last look left something in it, or paths could have had the core already: programs' marks ring no more.
const LINUX_LOOK_SOONER: Duration = Duration::from_micros(500);
/// The least that it sleeps there for a message that is due by its pace.
const PACED_LOOK: Duration = Duration::from_micros(25);
/// The sentinel runs within so long on a core that is idle: two switches.
const CONFIRMED_WITHIN: Duration = Duration::from_micros(50);
/// How long a raised thread runs at most before paths of its own level, its own for one, get the core. It rings when it
/// sleeps; some never do.
const RAISED_QUANTUM: Duration = Duration::from_micros(300);

/// A turn of Linux.
struct Slice {
    /// As of now: its level is that of the most important raised thread, if there is one.
    decision: Decision,
    start: Time,
    /// How long paths had the core before it.
    had: Duration,
    /// From when on paths interrupt it that are above this level.
    leave: Option<(Time, Level)>,
    /// What runs spins for what paths bring: whatever comes goes first.
    lent: bool,
    /// Programs were woken before it.
    has_woken: bool,
    /// Nobody waited when paths could have interrupted it.
    is_late: bool,
}

impl Slice {
    /// How long it may last.
    fn quantum(&self, ordinary: Level) -> Duration {
        let quantum = self.decision.quantum.time;
        if self.decision.level > ordinary { quantum.min(RAISED_QUANTUM) } else { quantum }
    }

    fn is_over(&self, ordinary: Level, now: Time) -> bool {
        now.since(self.start) >= self.quantum(ordinary)
    }
}

impl Loop {
    /// Gives the core to Linux until it is idle, a more important path is ready, or the quantum is over.
    pub(super) fn linux_slice(&mut self, decision: Decision) {
        let ordinary = self.core.settings.linux_level;
        let start = clock::now();
        self.core.early.tell_all();
        let mut slice = Slice {
            decision,
            start,
            had: start.since(self.busy_since),
            leave: self.leave_for_paths(decision.level, start),
            lent: false,
            has_woken: self.core.wakes.get() > 0,
            is_late: false,
        };
        // What a raised thread is in the way of stays until it sleeps.
        self.core.flush_above(if decision.level > ordinary { decision.level } else { Level::Idle }, start);
        self.core.publish_leave(slice.leave.map(|(leave, _)| leave));
        if !self.leave_core(&decision, start) {
            return;
        }
        self.times.slices += 1;
        let mut now = start;
        let mut finished = false;
        let said_idle = std::mem::take(&mut self.said_idle);
        let mut booked = (start, self.own_time());
        // What was sent and looked at before is charged to Linux, but was not away.
        let away_from = clock::now();
        while !slice.is_over(ordinary, now) {
            self.core.ring_put_off();
            let left = slice.quantum(ordinary).saturating_sub(now.since(start));
            let level = slice.decision.level;
            let leave_at =
                slice.leave.filter(|_| level == ordinary).map(|(leave, _)| self.timer_for(leave, now));
            let rung = self.sleep_beside_linux(level, left, leave_at, now);
            now = clock::now();
            // Before anybody else becomes ready: what Linux had alone is not to be made up for.
            self.charge_linux(&mut booked, away_from, now);
            if self.sentinel.as_ref().is_some_and(Sentinel::is_idle) {
                // Where something runs all the time, EEVDF gives the sentinel its 3/1024 in between. It is believed when
                // it says so twice, and needed no time for the second: then nobody ran in between.
                finished = said_idle && now.since(start) < CONFIRMED_WITHIN;
                self.on_idle(&slice, finished, now);
                break;
            }
            // Other engines' connections and packets do not wait for Linux, nor does what was said before a program's call.
            self.hear(now);
            let goes_first = self.stopping || self.look_up(&mut slice, rung, now);
            self.core.early.tell_all();
            if goes_first {
                break;
            }
        }
        if slice.decision.level == ordinary && now.since(start) >= decision.quantum.time {
            self.turn.on_interrupted();
        }
        self.core.publish(engine_state::POLLING);
        self.last_linux = now;
        self.last_work = now;
        self.busy_since = now;
        self.core_idle = finished;
        self.unfinished = !finished;
    }

    /// The sentinel has run: Linux had nothing to run, and has `finished` if that was confirmed.
    fn on_idle(&mut self, slice: &Slice, finished: bool, now: Time) {
        self.said_idle = true;
        let paths_wait = self.core.has_input() || !self.core.schedule.is_idle();
        self.turn.on_idle(now.since(slice.start), slice.had, paths_wait);
        if finished {
            self.times.slices_idle += 1;
            self.core.extension.core_was_idle();
        }
    }

    /// Looks for what has come in a turn of Linux; true: something goes first.
    fn look_up(&mut self, slice: &mut Slice, rung: bool, now: Time) -> bool {
        let ordinary = self.core.settings.linux_level;
        if rung
            && !slice.lent
            && let Some(below) = self.given_back(slice.decision.level)
        {
            (slice.leave, slice.lent) = (Some((now, below)), true);
            self.turn.on_idle(now.since(slice.start), slice.had, true);
        }
        if slice.lent {
            self.core.publish(engine_state::SLEEPING);
        }
        self.core.pull(now);
        self.crowded = self.core.has_packets();
        self.core.listen_to_programs(now);
        self.core.pace(now);
        self.place_linux(now);
        slice.decision.level = self.core.schedule.configuration().fixed.linux_level;
        let decision = slice.decision;
        let mut against = decision;
        if let Some((leave, below)) = slice.leave
            && now >= leave
            && decision.level == ordinary
        {
            against.level = below;
        }
        if self.core.schedule.preempts(&against, now) {
            if against.level != decision.level
                && !slice.lent
                && let Some((leave, _)) = slice.leave
            {
                if slice.is_late {
                    self.turn.on_interrupted();
                } else {
                    self.turn.on_pressed(slice.has_woken);
                    self.turn.on_moment(rung, now.since(leave));
                    self.times.slices_rung += u64::from(rung);
                }
            }
            self.times.slices_interrupted += 1;
            return true;
        }
        slice.is_late = against.level != decision.level;
        if slice.lent && decision.level != ordinary {
            slice.lent = false;
            self.core.publish(engine_state::AWAY);
        }
        false
    }

    /// From when on paths of Linux's own level interrupt this turn of it: once it has had as much as they had, and a
    /// little more. Only where they were through when it began; where both have more than enough to do, turns are long.
    /// So a program that never sleeps does not keep what comes now and then waiting for a whole quantum.
    /// With it the level that they are above.
    fn leave_for_paths(&self, level: Level, start: Time) -> Option<(Time, Level)> {
        let below = self.below_linux(level).filter(|_| self.core.schedule.is_idle())?;
        Some((start + self.turn.limit(start.since(self.busy_since)), below))
    }

    /// When the timer is due for a moment that programs tell us of, if they mark anything from then on.
    fn timer_for(&self, leave: Time, now: Time) -> Time {
        if leave <= now { leave } else { leave + self.turn.slack() }
    }

    /// A program that rang in this turn has said that it has nothing to do: paths of Linux's own level interrupt the turn
    /// from now on, against the level below. `None`: none has, or the turn is a raised thread's.
    fn given_back(&mut self, level: Level) -> Option<Level> {
        if !self.core.is_said_to_be_idle(self.bells.rung()) {
            return None;
        }
        let below = self.below_linux(level);
        match below {
            Some(_) => self.times.slices_given_back += 1,
            None => self.core.publish(engine_state::AWAY),
        }
        below
    }

    /// The next level below Linux's own, if it is there, and among the priorities.
    fn below_linux(&self, level: Level) -> Option<Level> {
        let settings = &self.core.settings;
        match level {
            _ if settings.linux != schedule::Linux::Priority || level != settings.linux_level => None,
            Level::Idle => None,
            Level::Priority(0) => Some(Level::Idle),
            Level::Priority(priority) => Some(Level::Priority(priority - 1)),
        }
    }

    /// Says that the engine is away from now on, unless something has come meanwhile that is more important than Linux
    /// (false: it stays), and has the sentinel tell when Linux is idle.
    fn leave_core(&mut self, decision: &Decision, start: Time) -> bool {
        self.core.wakes.set(0);
        self.unfinished = false;
        self.core.publish_taking_back(self.below_linux(decision.level).is_some());
        self.core.publish(engine_state::AWAY);
        fence(Ordering::SeqCst);
        // What rang before is in the ring now; what comes from here on rings again. Where no bell of a device is heard in
        // this turn, it may go on.
        if decision.level < self.core.highest_level() {
            self.core.silence_bells();
        }
        self.core.pull(start);
        // Who marked before it saw that we are away has not rung.
        self.core.listen_to_programs(start);
        if self.core.schedule.preempts(decision, start) {
            self.core.publish(engine_state::POLLING);
            self.unfinished = true;
            // Linux has had its turn, if in vain. Were it free, Linux would be chosen again before a policy that is
            // owed its share, and give way to it again, for ever.
            let now = clock::now();
            self.core.schedule.charge(Entry::Linux, now.since(start), now);
            return false;
        }
        if let Some(sentinel) = &self.sentinel {
            sentinel.arm();
        }
        self.sentinel.is_some()
    }

    /// Sleeps for as long as nobody needs the engine before Linux at this level is through, and `left` at most; paths of
    /// its own level need it from `leave` on. Says whether a program has rung.
    fn sleep_beside_linux(&mut self, level: Level, left: Duration, leave: Option<Time>, now: Time) -> bool {
        let look = match self.core.all_important_ring() {
            true if self.crowded || leave.is_some_and(|leave| leave <= now) => LINUX_LOOK_SOONER,
            true => LINUX_LOOK_RUNG,
            false => LINUX_LOOK,
        };
        let due = |at: Option<Time>| at.filter(|&at| at > now).map_or(left, |at| at.since(now));
        // What is no more important than the thread that runs waits until that sleeps, which it tells us.
        let bells = match leave {
            Some(leave) if leave <= now => self.sleeper.fd(),
            _ if level < self.core.highest_level() => self.bells.fd(),
            _ => self.bells.without_devices(),
        };
        let paced = self.core.next_paced(now).map_or(left, |due| due.since(now).max(PACED_LOOK));
        if !self.alarm.sleep_on(bells, now, look.min(left).min(paced).min(due(leave))) {
            return false;
        }
        // Devices ring once for what is not taken from here.
        if bells == self.sleeper.fd() && !self.sleeper.ready().any(|fd| fd == self.bells.fd()) {
            return false;
        }
        let rung = self.bells.silence();
        if bells != self.bells.without_devices() {
            self.core.silence_bells();
        }
        rung
    }

    /// What this thread has taken of the CPU, if anybody asks: among the priorities Linux is charged with our own time
    /// in its turns as well, since nothing follows from it and the question costs two system calls in each.
    fn own_time(&self) -> Duration {
        match self.core.settings.linux {
            schedule::Linux::Priority => Duration::ZERO,
            _ => sys::thread_time(),
        }
    }

    /// Charges Linux with the time since it was charged last. Going to sleep and looking up is our own: 20 µs and more on
    /// a virtual machine.
    fn charge_linux(&mut self, booked: &mut (Time, Duration), away_from: Time, now: Time) {
        let own = self.own_time();
        let less_own = |spent: Duration| spent.saturating_sub(own.saturating_sub(booked.1));
        let (spent, away) = (less_own(now.since(booked.0)), less_own(now.since(booked.0.max(away_from))));
        *booked = (now, own);
        self.times.away_ns += away.as_nanos() as u64;
        self.core.schedule.charge(Entry::Linux, spent, now);
    }
}
