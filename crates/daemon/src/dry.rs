//! The control API without a socket and without an engine: what lines of requests make of a configuration. For fuzzing
//! (`fuzz/src/control.rs`), which has no other way to what is private here.

use scoutline_abi::api::{Answer, ClassKeys, Request};
use scoutline_abi::served::Network;
use scoutline_engine::Command;

use crate::classes::{Classes, Handled};
use crate::config::Config;
use crate::engine::EngineLink;

/// An engine that believes everything and says nothing.
struct Silent;

impl EngineLink for Silent {
    fn send(&self, _command: Command) {}

    fn served(&self) -> Vec<Network> {
        Vec::new()
    }

    fn notices(&self) -> &[String] {
        &[]
    }

    fn is_running(&self) -> bool {
        true
    }

    fn count(&self) -> usize {
        1
    }
}

/// What lines made of the classes, and how many of them were no request, or refused.
#[derive(Debug)]
pub struct Outcome {
    /// The classes afterwards.
    pub classes: Vec<ClassKeys>,
    /// Lines that were not understood.
    pub unknown: usize,
    /// Requests that were refused.
    pub refused: usize,
}

/// Takes each line as a request to a daemon with this configuration. Reading the file again is left out: it is not in
/// the input.
pub fn requests(config: &Config, input: &[u8]) -> Outcome {
    let mut classes = Classes::new(config);
    let mut outcome = Outcome { classes: Vec::new(), unknown: 0, refused: 0 };
    for line in input.split(|byte| *byte == b'\n') {
        match crate::control::parse(line) {
            Ok(Request::Reload) => {}
            Ok(request) => {
                if let Handled::Now(Answer::Error { message }) = classes.handle(&request, &Silent) {
                    assert!(!message.is_empty(), "a refusal says why");
                    outcome.refused += 1;
                }
            }
            Err(_) => outcome.unknown += 1,
        }
    }
    if let Handled::Now(Answer::Classes { classes }) = classes.handle(&Request::Classes, &Silent) {
        outcome.classes = classes;
    }
    outcome
}
