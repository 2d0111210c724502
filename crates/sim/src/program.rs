//! A program on a host: it listens, accepts, connects, reads, writes, through its region as the shim does. It looks at a
//! socket when it is told that there is something, as with an edge-triggered epoll, or when a pause of its own is over:
//! a wake-up that is lost shows as a connection that does not end.

mod chat;
mod talk;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::time::Duration;

use std::cell::RefCell;

use scoutline_abi::Region;
use scoutline_abi::layout::{
    call_op, fast_open, slot_flag, slot_kind, slot_option, slot_request as ask, slot_state as is,
};
use scoutline_base::{Address, Endpoint, Time};
use scoutline_engine::{Driven, RegionId};

use crate::canary::Canary;
use crate::model::{self, Socket};
use crate::oracle::{CLIENT, Oracle, Outcome, SERVER};
use crate::plan::{DUAL_PORT, ECHO_PORT, V4_PORT};
use crate::shared::Shared;
use chat::Chat;
use talk::Talk;

/// Connections that may wait to be accepted.
const BACKLOG: u64 = 8;
/// Of them, those that may have begun with data in a SYN.
const FAST_OPEN_LIMIT: u64 = 2;
/// A call that fails because an address is not in use yet is made again.
const AGAIN: Duration = Duration::from_millis(500);
/// A swallowed wake-up, with the canary: one in so many.
const LOST_WAKES: u64 = 7;
/// A socket that is not closed, with the canary: one in so many.
const LEAKED: u64 = 3;

/// See the module.
pub(crate) struct Program {
    pub(crate) id: RegionId,
    pub(crate) region: Arc<Region>,
    host: usize,
    sockets: BTreeMap<u32, Held>,
    /// What could not be opened yet.
    later: Vec<(Time, Opening)>,
    shared: Rc<Shared>,
    oracle: Rc<RefCell<Oracle>>,
    wakes: u64,
    closes: u64,
}

/// A socket that the program holds.
struct Held {
    role: Role,
    /// When it goes on by itself.
    at: Option<Time>,
}

enum Role {
    Listener,
    Talk(Talk),
    Chat(Chat),
    Echo,
}

/// Something to be opened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Opening {
    /// The client's end of a flow.
    Flow(usize, Address),
    /// A chat.
    Chat(usize, Address),
    /// A listening socket.
    Listener(u16),
    /// The socket that sends datagrams back.
    Echo,
}

/// What becomes of a socket after it was looked at.
enum Next {
    /// Nothing before it is ready.
    Wait,
    /// It goes on then.
    At(Time),
    /// It is closed; true: with a reset.
    Close(bool),
}

/// The arguments of BIND and CONNECT.
fn arguments(address: Address, port: u16) -> [u64; 4] {
    let [high, low] = address.words();
    [low, u64::from(port), 0, high]
}

impl Program {
    /// A program that has just been attached. Nothing is open.
    pub(crate) fn new(
        (id, region): (RegionId, Arc<Region>),
        host: usize,
        shared: Rc<Shared>,
        oracle: Rc<RefCell<Oracle>>,
    ) -> Program {
        Program {
            id,
            region,
            host,
            sockets: BTreeMap::new(),
            later: Vec::new(),
            shared,
            oracle,
            wakes: 0,
            closes: 0,
        }
    }

    /// Opens what every program serves.
    pub(crate) fn serve(&mut self, engine: &mut Driven, now: Time) {
        for opening in [Opening::Listener(DUAL_PORT), Opening::Listener(V4_PORT), Opening::Echo] {
            self.open(engine, opening, now);
        }
    }

    /// Opens something, now or as soon as it can be.
    pub(crate) fn open(&mut self, engine: &mut Driven, opening: Opening, now: Time) {
        if let Err(errno) = self.try_open(engine, opening, now) {
            self.shared.note(self.host, format_args!("{opening:?} fails: {errno}"), &[10, errno as u64]);
            match (opening, errno) {
                // The address is not in use yet, or nothing leads there before it is.
                (_, libc::EADDRNOTAVAIL | libc::ENETUNREACH | libc::EADDRINUSE) => {
                    self.later.push((now + AGAIN, opening));
                }
                (Opening::Flow(flow, _), errno) => {
                    self.oracle.borrow_mut().on_over(flow, CLIENT, Outcome::Failed(errno));
                }
                (_, errno) => {
                    self.shared.found(format_args!("host {}: {opening:?}: errno {errno}", self.host));
                }
            }
        }
    }

    fn try_open(&mut self, engine: &mut Driven, opening: Opening, now: Time) -> Result<(), i32> {
        let call = |engine: &mut Driven, op, slot, arguments| {
            let result = model::call(&self.region, engine, now, op, slot, arguments);
            if result < 0 { Err(-result) } else { Ok(result as u32) }
        };
        let (kind, v6) = match opening {
            Opening::Flow(_, to) => (slot_kind::STREAM, !to.is_v4()),
            Opening::Chat(_, to) => (slot_kind::DATAGRAM, !to.is_v4()),
            Opening::Listener(port) => (slot_kind::STREAM, port == DUAL_PORT),
            Opening::Echo => (slot_kind::DATAGRAM, true),
        };
        let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
        let slot = call(engine, call_op::OPEN, 0, [u64::from(kind), family as u64, 0, 0])?;
        let socket = Socket::at(&self.region, slot);
        let any = if v6 {
            socket.slot.flags.store(slot_flag::INET6, Release);
            Address::UNSPECIFIED_V6
        } else {
            Address::UNSPECIFIED_V4
        };
        let option = |engine: &mut Driven, option, value| {
            let _ = call(engine, call_op::OPTION, slot, [option, value, 0, 0]);
        };
        let made = match opening {
            Opening::Flow(flow, to) => {
                let plan = self.oracle.borrow().flows[flow].plan.clone();
                option(engine, slot_option::NO_DELAY, u64::from(plan.no_delay));
                if plan.congestion > 0 {
                    option(engine, slot_option::CONGESTION, u64::from(plan.congestion));
                }
                if let Some(priority) = plan.priority {
                    // Refused where it would rise: that is its right.
                    option(engine, slot_option::PRIORITY, u64::from(priority));
                }
                let mut to = arguments(to, plan.port);
                to[2] |= if plan.fast_open { fast_open::DATA << 32 } else { 0 };
                call(engine, call_op::CONNECT, slot, to).map(|room| {
                    let mut talk = Talk::client(flow, plan.client);
                    if room > 0 {
                        talk.write_with_syn(socket, &mut self.oracle.borrow_mut());
                    }
                    Role::Talk(talk)
                })
            }
            Opening::Chat(chat, to) => Chat::open(chat, to, &self.oracle.borrow(), |connected| {
                if connected {
                    call(engine, call_op::CONNECT, slot, arguments(to, ECHO_PORT))
                } else {
                    call(engine, call_op::BIND, slot, arguments(any, 0))
                }
            })
            .map(Role::Chat),
            Opening::Listener(port) => call(engine, call_op::BIND, slot, arguments(any, port))
                .inspect(|_| option(engine, slot_option::FAST_OPEN, FAST_OPEN_LIMIT))
                .and_then(|_| call(engine, call_op::LISTEN, slot, [BACKLOG, 0, 0, 0]))
                .map(|_| Role::Listener),
            Opening::Echo => call(engine, call_op::BIND, slot, arguments(any, ECHO_PORT)).map(|_| Role::Echo),
        };
        match made {
            Ok(role) => {
                self.shared.note(
                    self.host,
                    format_args!("{opening:?} is slot {slot}"),
                    &[11, u64::from(slot)],
                );
                self.hold(slot, role, now);
                Ok(())
            }
            Err(errno) => {
                self.close(slot, false);
                Err(errno)
            }
        }
    }

    /// From now on the program hears of this socket. It looks once by itself, since the engine may have spoken before.
    fn hold(&mut self, slot: u32, role: Role, now: Time) {
        let shared = Socket::at(&self.region, slot).slot;
        shared.sets[0].fetch_or(1, SeqCst);
        shared.sets_summary.fetch_or(1, SeqCst);
        fence(SeqCst);
        self.sockets.insert(slot, Held { role, at: Some(now) });
    }

    /// Does what there is to do now; true if it did something that the engine may have to look at.
    pub(crate) fn step(&mut self, engine: &mut Driven, now: Time) -> bool {
        let mut due: Vec<u32> = Vec::new();
        if let Some(set) = self.region.set(0) {
            self.region.ready(set).drain(|slot| due.push(slot as u32));
        }
        if self.shared.canary == Some(Canary::LosesWake) {
            due.retain(|_| {
                self.wakes += 1;
                !self.wakes.is_multiple_of(LOST_WAKES)
            });
        }
        for (slot, held) in &mut self.sockets {
            if held.at.is_some_and(|at| at <= now) {
                held.at = None;
                due.push(*slot);
            }
        }
        let mut openings = Vec::new();
        self.later.retain(|(at, opening)| {
            if *at <= now {
                openings.push(*opening);
            }
            *at > now
        });
        let busy = !due.is_empty() || !openings.is_empty();
        for slot in due {
            self.look_at(slot, now);
        }
        for opening in openings {
            self.open(engine, opening, now);
        }
        busy
    }

    /// When it goes on by itself.
    pub(crate) fn next_time(&self) -> Option<Time> {
        let sockets = self.sockets.values().filter_map(|held| held.at);
        sockets.chain(self.later.iter().map(|(at, _)| *at)).min()
    }

    fn look_at(&mut self, slot: u32, now: Time) {
        let Some(mut held) = self.sockets.remove(&slot) else { return };
        let region = Arc::clone(&self.region);
        let socket = Socket::at(&region, slot);
        let result = match &mut held.role {
            Role::Listener => {
                self.accept_all(socket, now);
                Ok(Next::Wait)
            }
            Role::Talk(talk) => talk.look(socket, now, &mut self.oracle.borrow_mut()),
            Role::Chat(chat) => chat.look(socket, now, &mut self.oracle.borrow_mut()),
            Role::Echo => chat::echo(socket, &mut self.oracle.borrow_mut()).map(|()| Next::Wait),
        };
        let next = result.unwrap_or_else(|wrong| {
            self.shared.found(format_args!("host {}: {wrong}", self.host));
            Next::Wait
        });
        let moved = [socket.slot.receive_head.load(Relaxed), socket.slot.send_tail.load(Relaxed)];
        self.shared.note(
            self.host,
            format_args!("slot {slot}: read to {}, wrote to {}", moved[0], moved[1]),
            &[12, u64::from(slot), moved[0], moved[1]],
        );
        match next {
            Next::Wait => {}
            Next::At(at) => held.at = Some(held.at.map_or(at, |other| other.min(at))),
            Next::Close(abort) => {
                self.shared.note(self.host, format_args!("slot {slot}: closed"), &[13, u64::from(slot)]);
                self.close(slot, abort);
                return;
            }
        }
        self.sockets.insert(slot, held);
    }

    /// As the shim's `accept`, until the queue is empty.
    fn accept_all(&mut self, listener: Socket<'_>, now: Time) {
        while listener.received() > 0 {
            let head = listener.slot.receive_head.load(Relaxed);
            let entry = listener.copy_out(head * 4, 4).try_into().expect("four bytes");
            listener.slot.receive_head.store(head + 1, Release);
            let slot = u32::from_le_bytes(entry);
            let accepted = Socket::at(listener.region, slot);
            accepted.slot.references.fetch_add(1, SeqCst);
            let holds = listener.region.holds(0).expect("a process");
            holds[slot as usize / 64].fetch_or(1 << (slot % 64), SeqCst);
            let remote = Endpoint::new(
                accepted.slot.remote_address.load(),
                accepted.slot.remote_port.load(Relaxed) as u16,
            );
            self.shared.note(
                self.host,
                format_args!("slot {}: accepts {slot} from {remote}", listener.index),
                &[14, u64::from(slot), u64::from(remote.port)],
            );
            self.hold(slot, Role::Talk(Talk::server(remote)), now);
        }
    }

    fn close(&mut self, slot: u32, abort: bool) {
        self.closes += 1;
        if self.shared.canary == Some(Canary::LeaksSocket) && self.closes.is_multiple_of(LEAKED) {
            return;
        }
        let socket = Socket::at(&self.region, slot);
        let holds = self.region.holds(0).expect("a process");
        holds[slot as usize / 64].fetch_and(!(1 << (slot % 64)), SeqCst);
        if socket.slot.references.fetch_sub(1, SeqCst) == 1 {
            socket.request(if abort { ask::CLOSE | ask::ABORT } else { ask::CLOSE });
        }
    }

    /// Closes what listens and what sends datagrams back.
    pub(crate) fn close_services(&mut self) {
        let serves = |held: &Held| matches!(held.role, Role::Listener | Role::Echo);
        let services: Vec<u32> =
            self.sockets.iter().filter(|(_, held)| serves(held)).map(|(slot, _)| *slot).collect();
        for slot in services {
            self.sockets.remove(&slot);
            self.close(slot, false);
        }
        self.later.retain(|(_, opening)| !matches!(opening, Opening::Listener(_) | Opening::Echo));
    }

    /// It is no more: what its ends of connections were, is over.
    pub(crate) fn on_killed(&self) {
        let mut oracle = self.oracle.borrow_mut();
        for held in self.sockets.values() {
            if let Role::Talk(talk) = &held.role {
                match talk.flow {
                    Some(flow) => oracle.on_over(flow, talk.side, Outcome::Killed),
                    None => oracle.on_stranger_killed(),
                }
            }
        }
        for (_, opening) in &self.later {
            if let Opening::Flow(flow, _) = opening {
                oracle.on_over(*flow, CLIENT, Outcome::Killed);
            }
        }
    }

    /// Its chats are over, and nothing waits to be opened.
    pub(crate) fn is_done(&self) -> bool {
        !self.sockets.values().any(|held| matches!(held.role, Role::Chat(_))) && self.later.is_empty()
    }

    /// Resets the ends of connections of which nothing is expected any more.
    pub(crate) fn give_up(&mut self) {
        let given_up: Vec<u32> = {
            let oracle = self.oracle.borrow();
            let is_given_up =
                |held: &Held| matches!(&held.role, Role::Talk(talk) if oracle.is_given_up(talk.flow));
            self.sockets.iter().filter(|(_, held)| is_given_up(held)).map(|(slot, _)| *slot).collect()
        };
        for slot in given_up {
            self.sockets.remove(&slot);
            self.close(slot, true);
        }
    }

    /// For people: what is still open.
    pub(crate) fn left(&self) -> String {
        let state = |slot: u32| {
            let socket = Socket::at(&self.region, slot);
            let shared = socket.slot;
            format!(
                "slot {slot} state {:#x} requests {:#x} received {} of {} sent {} acknowledged {} written",
                socket.state(),
                socket.requests(),
                shared.receive_head.load(Acquire),
                shared.receive_tail.load(Acquire),
                shared.send_head.load(Acquire),
                shared.send_tail.load(Acquire)
            )
        };
        let all: Vec<String> = self.sockets.keys().map(|slot| state(*slot)).collect();
        all.join("; ")
    }
}

/// Which end of a connection has which part of its plan.
fn part(plan: &crate::plan::FlowPlan, side: usize) -> &crate::plan::Side {
    if side == SERVER { &plan.server } else { &plan.client }
}

/// Bits that say that a connection attempt is over.
const DECIDED: u32 = is::CONNECTED | is::FAILED;
