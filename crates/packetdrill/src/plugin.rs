//! Threads: packetdrill's main thread, which moves the clock; its call thread, for calls that block, which moves it until
//! such a call is due; and ours, which has the host, because an engine is bound to its thread.
//!
//! A call that blocks sleeps until an order of the main thread brings its answer. Then the clock must stand still until
//! the call thread has looked at it, for packetdrill compares that time with the script's:
//!
//! ```text
//!  call thread:  Idle ─ the call blocks ─► Waits              ┌─► Taken ─ gettimeofday ─► Idle
//!  main thread:                              └─► Answered ────┘              and now it goes on
//! ```

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;

use scoutline_conformance::stack::{Answer, Op};

use crate::flags::Flags;
use crate::host::{Host, Waited};

/// How long the main thread waits for the call thread, which has nothing to do but read the clock.
const PATIENCE: Duration = Duration::from_secs(5);

type Order = Box<dyn FnOnce(&mut Host) + Send>;

/// Where a call that blocks is.
#[derive(Debug, Default)]
enum Blocked {
    #[default]
    Idle,
    Waits,
    Answered(Answer),
    Taken,
}

/// The plug-in: what all threads share.
pub(crate) struct Plugin {
    orders: Mutex<Option<Sender<Order>>>,
    host: Mutex<Option<JoinHandle<()>>>,
    /// The thread that moves the clock.
    main: ThreadId,
    blocked: Mutex<Blocked>,
    changed: Condvar,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Plugin {
    /// Starts the host's thread. The thread that calls this is the one that moves the clock.
    ///
    /// # Panics
    /// When there can be no thread.
    pub(crate) fn start(flags: Flags) -> Arc<Plugin> {
        let (orders, inbox) = channel::<Order>();
        let run = move || {
            let mut host = Host::new(flags);
            while let Ok(order) = inbox.recv() {
                order(&mut host);
            }
        };
        let host = thread::Builder::new().name("scoutline".into()).spawn(run).expect("a thread");
        Arc::new(Plugin {
            orders: Mutex::new(Some(orders)),
            host: Mutex::new(Some(host)),
            main: thread::current().id(),
            blocked: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Ends the host, and waits until it is gone.
    pub(crate) fn stop(&self) {
        locked(&self.orders).take();
        if let Some(host) = locked(&self.host).take() {
            // A panic of it has been told already.
            let _ = host.join();
        }
    }

    /// Has the host do something.
    ///
    /// # Panics
    /// When the host has panicked, and has said why.
    pub(crate) fn ask<T: Send + 'static>(&self, what: impl FnOnce(&mut Host) -> T + Send + 'static) -> T {
        let (tell, told) = channel();
        let order: Order = Box::new(move |host| {
            let _ = tell.send(what(host));
        });
        if let Some(orders) = &*locked(&self.orders) {
            let _ = orders.send(order);
        }
        told.recv().expect("the host lives")
    }

    /// Does a call, and waits for its answer.
    pub(crate) fn call(&self, op: Op, new_fd: i32) -> Answer {
        let is_main = thread::current().id() == self.main;
        if !is_main {
            *locked(&self.blocked) = Blocked::Waits;
        }
        let answer = self.ask(move |host| host.start(op, new_fd));
        match answer {
            Some(answer) => {
                if !is_main {
                    *locked(&self.blocked) = Blocked::Idle;
                }
                answer
            }
            None if is_main => {
                if let Waited::Answered(answer) = self.ask(Host::await_answer) {
                    return answer;
                }
                eprintln!("scoutline: a call blocks, and nothing is left that could end it");
                Answer::error(libc::EDEADLK)
            }
            None => self.await_answer(),
        }
    }

    fn await_answer(&self) -> Answer {
        let mut blocked = locked(&self.blocked);
        loop {
            if let Blocked::Answered(answer) = &mut *blocked {
                let answer = std::mem::take(answer);
                *blocked = Blocked::Taken;
                return answer;
            }
            blocked = self.changed.wait(blocked).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives the call thread its answer, and waits until it has read the clock.
    fn hand_over(&self, answer: Answer) {
        let mut blocked = locked(&self.blocked);
        *blocked = Blocked::Answered(answer);
        self.changed.notify_all();
        let waits = |blocked: &mut Blocked| !matches!(blocked, Blocked::Idle);
        let _ = self.changed.wait_timeout_while(blocked, PATIENCE, waits);
    }

    /// What the clock shows, in microseconds. It moves, but for who looks when a call of its own ended.
    pub(crate) fn read_clock(&self) -> i64 {
        if thread::current().id() != self.main && matches!(*locked(&self.blocked), Blocked::Taken) {
            let now = self.ask(|host| host.now());
            *locked(&self.blocked) = Blocked::Idle;
            self.changed.notify_all();
            return now;
        }
        let tick = |host: &mut Host| {
            let waited = host.advance(host.now() + 1);
            (waited, host.now())
        };
        let (waited, now) = self.ask(tick);
        if let Waited::Answered(answer) = waited {
            self.hand_over(answer);
        }
        now
    }

    /// Time passes.
    pub(crate) fn sleep(&self, micros: i64) {
        let until = self.ask(|host| host.now()) + micros;
        while let Waited::Answered(answer) = self.ask(move |host| host.advance(until)) {
            self.hand_over(answer);
        }
    }

    /// A packet comes.
    pub(crate) fn inject(&self, packet: Vec<u8>) {
        if let Waited::Answered(answer) = self.ask(move |host| host.inject(&packet)) {
            self.hand_over(answer);
        }
    }

    /// Waits for a packet that leaves; `None` when there will be none.
    pub(crate) fn await_packet(&self) -> Option<(i64, Vec<u8>)> {
        loop {
            match self.ask(Host::await_packet) {
                Waited::Packet(at, packet) => return Some((at, packet)),
                Waited::Answered(answer) => self.hand_over(answer),
                Waited::Nothing => return None,
            }
        }
    }
}
