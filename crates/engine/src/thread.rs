//! The engine's thread: run to completion, then spin for a bounded time, then sleep; and the Linux thread's turns.
//!
//! ```text
//!         ┌──────────────► look: commands, devices, doorbells, calls, timers
//!         │                         │
//!         │            scheduler: what is most important?
//!         │      ┌──────────────┬───┴──────────────┐
//!         │ paths, 5 µs       Linux              nothing
//!         │   run, charge   flush, give up      flush, spin a while,
//!         └──────┴──────── the core until ◄──┐  then sleep until rung
//!                          idle, called back, │
//!                          or quantum over  ──┘
//! ```

mod beside;

use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use scoutline_abi::layout::engine_state;
use scoutline_base::{PathId, Time};
use scoutline_sched::{Charged, Decision, Entry, Level, Policy, schedule};

use crate::alarm::Alarm;
use crate::bells::Bells;
use crate::clock;
use crate::command::Command;
use crate::core::Core;
use crate::linux::Sentinel;
use crate::program::Program;
use crate::rest::Rest;
use crate::several::TAKEN_AT_ONCE;
use crate::spin::Spin;
use crate::sys::Sleeper;
use crate::turn::Turn;

/// A look for work that takes so long, and follows one that found nothing, was interrupted by somebody who computes: programs
/// that take turns with each other sleep again long before.
const TAKEN: Duration = Duration::from_micros(300);
/// Paths run for so long, and the last of them to its end, before what has come meanwhile is looked for: a look costs a third
/// of a short turn.
const UNSEEN: Duration = Duration::from_micros(5);
/// Linux gets a turn at least this often even if no program was woken: other programs live on the core too.
const LINUX_AT_LEAST: Duration = Duration::from_millis(1);
/// Woken threads that have not run, from which on Linux goes first. Few enough that one more waits for less than a
/// millisecond behind them, enough that a turn of Linux is worth its switch.
const LINUX_BACKLOG: usize = 8;
/// What paths of Linux's level get between its turns even then: acknowledgments must not starve.
const PRESSED_INTERVAL: Duration = Duration::from_micros(25);

/// The loop and what it sleeps on.
pub(crate) struct Loop {
    pub(crate) core: Core,
    pub(crate) commands: Receiver<Command>,
    pub(crate) bells: Bells,
    pub(crate) sleeper: Sleeper,
    /// Ends sleeps beside Linux.
    alarm: Alarm,
    /// Present when the engine is pinned: then Linux is an entry in its schedule.
    pub(crate) sentinel: Option<Sentinel>,
    pub(crate) times: Times,
    last_linux: Time,
    last_work: Time,
    /// The engine has had the core since then.
    busy_since: Time,
    spin: Spin,
    turn: Turn,
    rest: Rest,
    /// Nothing has come since it began to spin.
    spinning: bool,
    /// Linux had nothing to run on the engine's core when it had its last turn, and no program has been heard of since.
    core_idle: bool,
    books: Books,
    /// Linux had more to run when its last turn ended.
    unfinished: bool,
    /// The sentinel has ended the last slice.
    said_idle: bool,
    /// Too many woken threads have not run yet.
    pressed: bool,
    /// Devices had more than a look takes, when Linux had the core.
    crowded: bool,
    stopping: bool,
}

/// What the loop itself takes (devices, doorbells, sending) is charged to the path of its turn when Linux has a part of
/// the CPU: else the engine as a whole would have more than its own. Among the priorities nobody asks for that.
#[derive(Default)]
struct Books {
    /// Up to here all time is charged to somebody.
    until: Time,
    /// What was charged to anybody by then.
    charged: Duration,
    /// A path has run since Linux did.
    path_ran: bool,
}

/// Where the engine's time went, in nanoseconds, and how often it slept. The rest of its time it was busy.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub(crate) spin_ns: u64,
    pub(crate) sleep_ns: u64,
    pub(crate) away_ns: u64,
    pub(crate) sleeps: u64,
    pub(crate) slices: u64,
    pub(crate) slices_idle: u64,
    pub(crate) slices_interrupted: u64,
    pub(crate) slices_given_back: u64,
    pub(crate) slices_rung: u64,
}

impl Loop {
    pub(crate) fn new(
        core: Core,
        commands: Receiver<Command>,
        bells: Bells,
        (sleeper, alarm): (Sleeper, Alarm),
        sentinel: Option<Sentinel>,
    ) -> Loop {
        let now = clock::now();
        let spin = Spin::new(core.settings.spin);
        core.early.is_on.set(!core.settings.spin.is_zero());
        Loop {
            core,
            commands,
            bells,
            sleeper,
            alarm,
            sentinel,
            times: Times::default(),
            last_linux: now,
            last_work: now,
            busy_since: now,
            spinning: false,
            core_idle: false,
            spin,
            turn: Turn::default(),
            rest: Rest::default(),
            books: Books { until: now, ..Books::default() },
            unfinished: false,
            said_idle: false,
            pressed: false,
            crowded: false,
            stopping: false,
        }
    }

    /// Runs until told to stop.
    pub(crate) fn run(&mut self) {
        while !self.stopping {
            let mut now = clock::now();
            if self.core.schedule.is_idle()
                && let Some(pause) = self.core.moderation.pause(now)
            {
                now = self.pause(pause, now);
            }
            self.hear(now);
            if self.stopping {
                break; // or it would sleep first, and nothing need ever come
            }
            let mut came = self.core.pull(now);
            came |= self.core.listen_to_programs(now);
            self.core.fire_timers(now);
            let mut worked = came;
            worked |= self.core.pace(now);
            worked |= self.core.sweep(now);
            self.ready_linux(now);
            let decision = self.core.schedule.dequeue(now);
            if self.spinning && (worked || decision.is_some()) {
                self.spinning = false;
                self.spin.on_worked(now.since(self.last_work), came);
            }
            if let Some(mut decision) = decision {
                while self.take_turn(&decision, now) && self.last_work.since(now) < UNSEEN {
                    match self.core.schedule.dequeue(self.last_work) {
                        Some(next) => decision = next,
                        None => break,
                    }
                }
                self.core.early.tell_overdue(now);
                continue;
            }
            if worked {
                self.last_work = now;
                self.core.early.tell_overdue(now);
                continue;
            }
            self.core.flush_all(now);
            if !self.core.early.is_empty() {
                self.await_words(now);
                continue;
            }
            self.core.ring_put_off();
            if self.rests(now) {
                continue;
            }
            if self.core.has_input() || !self.core.schedule.is_idle() {
                continue;
            }
            if self.may_spin(now) && now.since(self.last_work) < self.spin.limit() {
                self.look_again_soon(now);
            } else {
                self.sleep(now);
                self.begin_books();
            }
        }
        self.core.stop(clock::now());
    }

    /// First words of clients are waited for as long as the engine would spin in nobody's way. How that ends says nothing
    /// of other spins.
    fn await_words(&mut self, now: Time) {
        let is_alone = self.sentinel.is_none() || self.core_idle;
        if !is_alone || self.spin.limit().is_zero() {
            self.core.early.tell_all();
        } else if !self.core.early.end_patience(now) {
            self.offer_core();
            self.begin_books();
            self.times.spin_ns += clock::now().since(now).as_nanos() as u64;
        }
    }

    /// Between two looks of a spin.
    fn offer_core(&self) {
        match self.sentinel {
            Some(_) => std::hint::spin_loop(),
            // An ordinary thread that waits for this core goes first (Linux 6.18: a yield forfeits a slice); where none does,
            // this is a short system call.
            None => std::thread::yield_now(),
        }
    }

    /// A look of a spin is over, and has found nothing.
    fn look_again_soon(&mut self, now: Time) {
        let before = clock::now();
        self.offer_core();
        let after = clock::now();
        let goes_on = std::mem::replace(&mut self.spinning, true);
        self.begin_books();
        if after.since(before) > TAKEN || goes_on && after.since(now) > TAKEN {
            // What has come meanwhile was not found by spinning.
            self.spin.on_taken();
            self.spinning = false;
            self.times.away_ns += after.since(now).as_nanos() as u64;
        } else {
            self.times.spin_ns += after.since(now).as_nanos() as u64;
        }
    }

    /// The turn of a path, or of Linux. False: time has passed.
    fn take_turn(&mut self, decision: &Decision, looked: Time) -> bool {
        match decision.entry {
            Entry::Path(id) => {
                self.rest.on_turn(id);
                self.last_work = self.core.run_path(id, decision, self.last_work.max(looked));
                self.charge_turn(id);
                true
            }
            Entry::Linux => {
                self.linux_slice(*decision);
                // Turns of Linux in a row are looked after for paths that wait.
                let waited_for = !self.core.schedule.is_idle();
                if !std::mem::take(&mut self.books.path_ran) && !waited_for {
                    self.begin_books();
                }
                false
            }
        }
    }

    /// Charges the path that has just run with what the loop has spent since the books were in order.
    fn charge_turn(&mut self, id: PathId) {
        if self.core.settings.linux == schedule::Linux::Priority {
            return;
        }
        let all = |core: &Core| {
            let Charged { paths, linux } = core.schedule.charged();
            paths + linux
        };
        let now = self.last_work;
        let booked = all(&self.core).saturating_sub(self.books.charged);
        self.core.charge(id, now.since(self.books.until).saturating_sub(booked), now);
        self.books = Books { until: now, charged: all(&self.core), path_ran: true };
    }

    /// From here on the loop's time is somebody's.
    fn begin_books(&mut self) {
        if self.core.settings.linux != schedule::Linux::Priority {
            let Charged { paths, linux } = self.core.schedule.charged();
            self.books = Books { until: clock::now(), charged: paths + linux, path_ran: false };
        }
    }

    /// Linux is ready when programs were woken, or when it has not run for a while.
    ///
    /// When many woken threads have not run yet, Linux comes sooner: what is no more important than Linux then waits
    /// in path queues, where priority counts, and not in Linux's run queue, where it does not.
    fn ready_linux(&mut self, now: Time) {
        if self.sentinel.is_none() {
            return;
        }
        let configured = self.core.settings.linux_interval;
        let backlog = |program: &Rc<Program>| program.backlog(self.last_linux);
        let pressed = self.core.programs.values().map(backlog).sum::<usize>() >= LINUX_BACKLOG;
        if pressed != self.pressed {
            self.pressed = pressed;
            let mut configuration = *self.core.schedule.configuration();
            configuration.fixed.linux_interval =
                if pressed { configured.min(PRESSED_INTERVAL) } else { configured };
            self.core.schedule.configure(configuration);
        }
        let wanted = self.place_linux(now);
        let idle = self.core.schedule.is_idle();
        let due = !idle && now.since(self.last_linux) >= LINUX_AT_LEAST;
        if self.core.wakes.get() > 0 || self.unfinished || due || wanted {
            let level = self.core.settings.linux_level;
            self.core.schedule.enqueue(Entry::Linux, level.into(), now);
        }
    }

    /// Linux stands where its most important raised thread does, among the priorities; without one, where it was put,
    /// and never below its own level. Says whether such a thread wants to run.
    fn place_linux(&mut self, now: Time) -> bool {
        let wanted = self.core.extension.wanted(now);
        let settings = &self.core.settings;
        let linux_level = wanted.unwrap_or(Level::Idle).max(settings.linux_level);
        let linux = if wanted.is_some() { schedule::Linux::Priority } else { settings.linux };
        let mut configuration = *self.core.schedule.configuration();
        if (configuration.fixed.linux_level, configuration.linux) != (linux_level, linux) {
            configuration.fixed.linux_level = linux_level;
            configuration.linux = linux;
            self.core.schedule.configure(configuration);
        }
        wanted.is_some()
    }

    /// Whether a spin is in nobody's way, as far as is known: a program that still runs here brings the next work itself,
    /// or is what the engine works for. One may have begun meanwhile, so spins do not follow each other for long. Where
    /// the engine has no core of its own, Linux takes such a program to another.
    fn may_spin(&self, now: Time) -> bool {
        self.sentinel.is_none() || self.core_idle && now.since(self.busy_since) < LINUX_AT_LEAST
    }

    /// Sleeps until something happens. What came before the state was published is found by the last look; what
    /// comes after rings.
    fn sleep(&mut self, now: Time) {
        self.core.publish(engine_state::SLEEPING);
        fence(Ordering::SeqCst);
        let (mut limit, mut rung) = (None, true);
        if !self.core.has_input() {
            let due = self.core.next_timeout(now).map(|due| due.since(now));
            // A device that was full says nothing when it has room again.
            let full = self.core.has_output().then_some(Duration::from_micros(200));
            limit = due.into_iter().chain(full).min();
            let bells = self.bells.fd();
            rung = self.sleeper.sleep(limit).any(|fd| fd == bells);
            self.times.sleeps += 1;
        }
        self.core.publish(engine_state::POLLING);
        if rung {
            self.core_idle &= !self.bells.silence();
            self.core.silence_bells();
        }
        let woke = clock::now();
        let arrived = limit.is_none_or(|limit| woke.since(now) < limit);
        self.spin.on_slept(woke.since(self.last_work), arrived, self.spinning);
        (self.busy_since, self.spinning) = (woke, false);
        self.times.sleep_ns += woke.since(now).as_nanos() as u64;
        self.last_work = woke;
    }

    /// Rests, if that is due. Programs do not ring meanwhile: for them it is at work.
    fn rests(&mut self, now: Time) -> bool {
        // Where it has a core of its own, nobody gains by it; and what is more important does not wait.
        let may = self.sentinel.is_none()
            && self.core.highest_level() <= self.core.settings.linux_level
            && !self.core.has_output()
            && !self.core.has_own_work()
            && self.core.schedule.is_idle();
        let Some(rest) = self.rest.due(now).filter(|_| may) else { return false };
        if self.core.next_timeout(now).is_some_and(|due| due.since(now) < rest) {
            return false;
        }
        let rung = self.alarm.sleep_on(self.bells.fd(), now, rest);
        self.on_rested(now, rung);
        true
    }

    /// Sleeps for so long whatever devices bring, unless somebody rings.
    fn pause(&mut self, pause: Duration, now: Time) -> Time {
        self.core.flush_all(now);
        self.core.early.tell_all();
        self.core.ring_put_off();
        let limit = self.core.next_paced(now).map_or(pause, |due| due.since(now).min(pause));
        if self.core.has_output() || limit < pause / 2 {
            return now;
        }
        self.core.publish(engine_state::SLEEPING);
        fence(Ordering::SeqCst);
        let rung = !self.core.is_called() && self.alarm.sleep_on(self.bells.fd(), now, limit);
        self.core.publish(engine_state::POLLING);
        self.on_rested(now, rung)
    }

    /// It has slept since then for a time of its own choice, or until somebody rang.
    fn on_rested(&mut self, since: Time, rung: bool) -> Time {
        if rung {
            self.core_idle &= !self.bells.silence();
            self.core.silence_bells();
        }
        let woke = clock::now();
        self.times.sleep_ns += woke.since(since).as_nanos() as u64;
        self.times.sleeps += 1;
        (self.busy_since, self.last_work, self.spinning) = (woke, woke, false);
        self.begin_books();
        woke
    }

    /// Takes what was commanded, and looks again at what found no path before that.
    fn hear(&mut self, now: Time) {
        let all = self.obey_commands(now);
        self.core.look_again(all, now);
    }

    /// False: packets of other engines are left for the next turn, and whatever was said behind them.
    fn obey_commands(&mut self, now: Time) -> bool {
        let mut packets = 0;
        while packets < TAKEN_AT_ONCE {
            match self.commands.try_recv() {
                Ok(Command::Query(request, reply)) => {
                    self.core.count_held_back(now);
                    let mut answer = self.core.answer_query(&request, now);
                    if let scoutline_abi::api::Answer::Stat(stat) = &mut answer {
                        // The books are one for all engines, and answers are added up.
                        let is_first = self.core.several.is_first();
                        let (deadlines, weights) =
                            if is_first { self.core.extension.shared_now() } else { (0, 0) };
                        let raised = if is_first { self.core.extension.raised_now() } else { 0 };
                        let times = [
                            ("spin-ns", self.times.spin_ns),
                            ("sleep-ns", self.times.sleep_ns),
                            ("away-ns", self.times.away_ns),
                            ("sleeps", self.times.sleeps),
                            ("linux-slices", self.times.slices),
                            ("linux-slices-ended-idle", self.times.slices_idle),
                            ("linux-slices-interrupted", self.times.slices_interrupted),
                            ("linux-slices-given-back", self.times.slices_given_back),
                            ("linux-slices-rung", self.times.slices_rung),
                            ("threads-raised", self.core.extension.raises.get()),
                            ("threads-raised-now", raised as u64),
                            ("threads-with-deadline", deadlines as u64),
                            ("threads-with-weight", weights as u64),
                        ];
                        stat.engine.extend(times.map(|(name, value)| (name.to_owned(), value)));
                    }
                    // Whoever asked may be gone.
                    let _ = reply.send(answer);
                }
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => {
                    self.stopping = true;
                    return true;
                }
                Ok(mut command) => {
                    match &mut command {
                        Command::AddRegion { id, bells, .. } => {
                            if let Some(bell) = bells.pop() {
                                self.bells.add(*id, bell);
                            }
                        }
                        Command::RemoveRegion(id) => self.bells.remove(*id),
                        Command::SetLive(live, _) => {
                            self.spin.set_most(live.spin);
                            self.core.early.is_on.set(!live.spin.is_zero());
                        }
                        Command::Crossing(crossing) => packets += usize::from(crossing.is_packet()),
                        _ => {}
                    }
                    self.core.obey(command, now);
                }
                Err(TryRecvError::Empty) => return true,
            }
        }
        false
    }
}

#[cfg(test)]
mod tests;
