//! The engine as the control plane sees it. A trait, so that tests stand in for it.

use scoutline_abi::served::Network;
pub(crate) use scoutline_engine::{Command, RegionId};

/// A running engine.
pub(crate) trait EngineLink {
    /// Hands over a command and rings the doorbell. Never waits. A command to an engine that has ended is dropped:
    /// [`is_running`](EngineLink::is_running) tells.
    fn send(&self, command: Command);
    /// The networks that it serves.
    fn served(&self) -> Vec<Network>;
    /// What is degraded and why, one line each.
    fn notices(&self) -> &[String];
    /// False once it has ended, whatever the reason.
    fn is_running(&self) -> bool;
    /// How many engines it is.
    fn count(&self) -> usize;
}

#[cfg(test)]
pub(crate) mod fake {
    //! An engine that only remembers, and answers what it is told to.

    use std::cell::{Cell, RefCell};
    use std::collections::VecDeque;

    use scoutline_abi::api::{Answer, Request};
    use scoutline_abi::layout::served_flag;

    use super::{Command, EngineLink, Network};

    type Answers = Box<dyn Fn(Request) -> Answer + Send>;

    pub(crate) struct FakeEngine {
        commands: RefCell<VecDeque<Command>>,
        answers: Option<Answers>,
        dead: Cell<bool>,
        notices: [String; 1],
    }

    impl FakeEngine {
        pub(crate) fn new() -> FakeEngine {
            FakeEngine {
                commands: RefCell::default(),
                answers: None,
                dead: Cell::new(false),
                notices: ["a notice".into()],
            }
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
    }

    impl EngineLink for FakeEngine {
        fn send(&self, command: Command) {
            match (&self.answers, command) {
                (Some(answers), Command::Query(request, sender)) => {
                    let _ = sender.send(answers(request));
                }
                (Some(_), Command::SetClasses(_, sender)) => {
                    let _ = sender.send(Answer::Done);
                }
                (_, command) => self.commands.borrow_mut().push_back(command),
            }
        }

        fn served(&self) -> Vec<Network> {
            let address = std::net::Ipv4Addr::new(10, 0, 0, 1).into();
            vec![Network { address, prefix_len: 96 + 24, flags: served_flag::EXTENTS, scope: 0 }]
        }

        fn notices(&self) -> &[String] {
            &self.notices
        }

        fn is_running(&self) -> bool {
            !self.dead.get()
        }

        fn count(&self) -> usize {
            1
        }
    }
}
