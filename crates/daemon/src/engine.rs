//! The engine as the control plane sees it. A trait, so that tests stand in for it.

use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;

pub use crate::command::{Command, RegionId};

/// A network that paths serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Our address.
    pub address: Ipv4Addr,
    /// Length of its network's prefix.
    pub prefix: u8,
    /// Where packets for other networks go.
    pub gateway: Option<Ipv4Addr>,
}

/// A running engine.
pub trait EngineLink {
    /// Hands over a command and rings the doorbell. Never waits. A command to an engine that has ended is dropped:
    /// [`is_running`](EngineLink::is_running) tells.
    fn send(&self, command: Command);
    /// What programs write to wake it: an eventfd.
    fn doorbell(&self) -> BorrowedFd<'_>;
    /// The networks that it serves.
    fn served(&self) -> Vec<Served>;
    /// What is degraded and why, one line each.
    fn notices(&self) -> Vec<String>;
    /// False once it has ended, whatever the reason.
    fn is_running(&self) -> bool;
}

#[cfg(test)]
pub(crate) mod fake {
    //! An engine that only remembers, and answers what it is told to.

    use std::cell::{Cell, RefCell};
    use std::collections::VecDeque;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use rustix::event::EventfdFlags;
    use scoutline_abi::api::{Answer, Request};

    use super::{Command, EngineLink, Served};

    type Answers = Box<dyn Fn(Request) -> Answer + Send>;

    pub(crate) struct FakeEngine {
        doorbell: OwnedFd,
        commands: RefCell<VecDeque<Command>>,
        answers: Option<Answers>,
        dead: Cell<bool>,
    }

    impl FakeEngine {
        pub(crate) fn new() -> FakeEngine {
            let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
            FakeEngine { doorbell, commands: RefCell::default(), answers: None, dead: Cell::new(false) }
        }

        pub(crate) fn answering(answers: impl Fn(Request) -> Answer + Send + 'static) -> FakeEngine {
            FakeEngine { answers: Some(Box::new(answers)), ..FakeEngine::new() }
        }

        pub(crate) fn next(&self) -> Option<Command> {
            self.commands.borrow_mut().pop_front()
        }

        pub(crate) fn clear(&self) {
            self.commands.borrow_mut().clear();
        }

        pub(crate) fn die(&self) {
            self.dead.set(true);
        }

        /// How often the doorbell was rung.
        pub(crate) fn rung(&self) -> u64 {
            let mut bytes = [0; 8];
            rustix::io::read(&self.doorbell, &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
        }
    }

    impl EngineLink for FakeEngine {
        fn send(&self, command: Command) {
            match (&self.answers, command) {
                (Some(answers), Command::Query(request, sender)) => {
                    let _ = sender.send(answers(request));
                }
                (_, command) => self.commands.borrow_mut().push_back(command),
            }
        }

        fn doorbell(&self) -> BorrowedFd<'_> {
            self.doorbell.as_fd()
        }

        fn served(&self) -> Vec<Served> {
            vec![Served { address: [10, 0, 0, 1].into(), prefix: 24, gateway: None }]
        }

        fn notices(&self) -> Vec<String> {
            vec!["a notice".into()]
        }

        fn is_running(&self) -> bool {
            !self.dead.get()
        }
    }
}
/// Until the engine is wired.
pub struct NoEngine;
impl EngineLink for NoEngine {
    fn send(&self, _: Command) {}
    fn doorbell(&self) -> BorrowedFd<'_> {
        unimplemented!()
    }
    fn served(&self) -> Vec<Served> {
        Vec::new()
    }
    fn notices(&self) -> Vec<String> {
        Vec::new()
    }
    fn is_running(&self) -> bool {
        false
    }
}
