//! The host under test: the stack, its link, and its clock. It lives in a thread of its own ([`crate::plugin`]).

use std::collections::{HashMap, VecDeque};

use scoutline_conformance::stack::ours::Ours;
use scoutline_conformance::stack::{Answer, Op, Setting, Stack};

use crate::flags::Flags;
use crate::neighbours::{self, Frame};
use crate::sysctls;

/// Microseconds until addresses of IPv6 are known to be nobody else's (RFC 4862 §5.4: a second, after a second at most).
const SETTLING: i64 = 5_000_000;
/// Microseconds after which a host that sends nothing is not waited for: more than any time-out of TCP.
const PATIENCE: i64 = 300_000_000;
/// Receive and send buffers, in bytes. Linux's, as packetdrill's scripts have it: a window scale of 8 is offered.
const RECEIVE_BUFFER: u32 = 8 << 20;
const SEND_BUFFER: u32 = 1 << 20;

/// What came of waiting.
#[derive(Debug)]
pub(crate) enum Waited {
    /// A packet left, then.
    Packet(i64, Vec<u8>),
    /// The call that blocks has an answer.
    Answered(Answer),
    /// Neither; and for a packet, there will be none.
    Nothing,
}

/// The host.
pub(crate) struct Host {
    flags: Flags,
    /// Made with the first socket: the script's own set-up comes before that, and may say how.
    stack: Option<Ours>,
    /// What the clock shows is the stack's time and this.
    ahead: i64,
    packets: VecDeque<(i64, Vec<u8>)>,
    /// Descriptors, and which of them are of IPv6.
    fds: HashMap<i32, bool>,
}

impl Host {
    pub(crate) fn new(flags: Flags) -> Host {
        Host { flags, stack: None, ahead: 0, packets: VecDeque::new(), fds: HashMap::new() }
    }

    /// Microseconds.
    pub(crate) fn now(&self) -> i64 {
        self.ahead + self.stack.as_ref().map_or(0, Stack::now)
    }

    /// Begins a call; the answer, if it does not block.
    pub(crate) fn start(&mut self, op: Op, new_fd: i32) -> Option<Answer> {
        match op {
            Op::Socket { inet6, .. } => drop(self.fds.insert(new_fd, inet6)),
            Op::Accept { fd, .. } => drop(self.fds.insert(new_fd, self.is_inet6(fd))),
            Op::Close { fd } => drop(self.fds.remove(&fd)),
            _ => {}
        }
        let stack = self.stack();
        if stack.is_waiting() {
            let answer = stack.answer_meanwhile(&op, new_fd);
            self.collect();
            return Some(answer);
        }
        stack.start(op, new_fd);
        let answer = stack.answer();
        self.collect();
        answer.map(|(_, answer)| answer)
    }

    /// The descriptor is a socket of this host.
    pub(crate) fn has(&self, fd: i32) -> bool {
        self.fds.contains_key(&fd)
    }

    /// It is one of IPv6.
    pub(crate) fn is_inet6(&self, fd: i32) -> bool {
        self.fds.get(&fd).copied().unwrap_or(false)
    }

    /// A packet comes.
    pub(crate) fn inject(&mut self, packet: &[u8]) -> Waited {
        let stack = self.stack();
        let station = stack.link_address();
        stack.inject(&neighbours::frame(packet, station));
        self.collect();
        self.answered()
    }

    /// Time passes until then, or until the call that blocks is answered.
    pub(crate) fn advance(&mut self, until: i64) -> Waited {
        let ahead = self.ahead;
        let Some(stack) = &mut self.stack else {
            self.ahead = self.ahead.max(until);
            return Waited::Nothing;
        };
        stack.advance(until - ahead);
        self.collect();
        let answered = self.answered();
        if self.now() < until && matches!(answered, Waited::Nothing) { self.advance(until) } else { answered }
    }

    /// Waits for a packet that leaves.
    pub(crate) fn await_packet(&mut self) -> Waited {
        let latest = self.now() + PATIENCE;
        loop {
            if let Some((at, packet)) = self.packets.pop_front() {
                return Waited::Packet(at, packet);
            }
            let (ahead, now) = (self.ahead, self.now());
            let Some(stack) = self.stack.as_mut().filter(|_| now < latest) else { return Waited::Nothing };
            stack.advance(latest - ahead);
            self.collect();
            if let Waited::Answered(answer) = self.answered() {
                return Waited::Answered(answer);
            }
        }
    }

    /// Waits for the call that blocks.
    pub(crate) fn await_answer(&mut self) -> Waited {
        self.advance(self.now() + PATIENCE)
    }

    fn answered(&mut self) -> Waited {
        let answer = self.stack.as_mut().and_then(Stack::answer);
        answer.map_or(Waited::Nothing, |(_, answer)| Waited::Answered(answer))
    }

    fn stack(&mut self) -> &mut Ours {
        if self.stack.is_none() {
            let before = self.ahead;
            let stack = self.stack.insert(Ours::new(&setting(&self.flags)));
            while stack.now() < SETTLING {
                stack.advance(SETTLING);
                while stack.captured().is_some() {}
            }
            self.ahead = before - stack.now();
        }
        self.stack.as_mut().expect("made above")
    }

    /// Takes what left; questions about neighbours are answered at once.
    fn collect(&mut self) {
        let Some(stack) = &mut self.stack else { return };
        let station = stack.link_address();
        while let Some((at, frame)) = stack.captured() {
            match neighbours::sort(&frame, station) {
                Frame::Packet(packet) => self.packets.push_back((at + self.ahead, packet)),
                Frame::Question(answer) => stack.inject(&answer),
                Frame::Other => {}
            }
        }
    }
}

fn setting(flags: &Flags) -> Setting {
    let setting = Setting {
        ip4: flags.ip4,
        ip6: Some(flags.ip6),
        mtu: flags.mtu,
        takes_merged: true,
        receive_buffer: RECEIVE_BUFFER,
        send_buffer: SEND_BUFFER,
        seed: flags.seed,
        ..Setting::default()
    };
    let mut setting = if flags.sysctls { sysctls::apply(setting) } else { setting };
    setting.tcp.congestion = flags.congestion.unwrap_or(setting.tcp.congestion);
    setting
}
