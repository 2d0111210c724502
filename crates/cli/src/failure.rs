//! How a command fails: one line and a fixed exit code.

/// It did not do what was asked.
pub(crate) const FAILED: u8 = 1;
/// It was asked wrongly; clap's own code for that.
pub(crate) const USAGE: u8 = 2;
/// No daemon answers.
pub(crate) const UNREACHABLE: u8 = 3;
/// `run`: the program is there but cannot run on paths.
pub(crate) const CANNOT_RUN: u8 = 126;
/// `run`: there is no such program.
pub(crate) const NOT_FOUND: u8 = 127;

/// A failure: what is told and with which code the program ends.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// One line, with the remedy; empty when all is said.
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }

    /// Code 1.
    pub(crate) fn failed(message: impl Into<String>) -> Failure {
        Failure::new(FAILED, message)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::failed(format!("{error:#}"))
    }
}

/// What the system said, without Rust's "(os error 2)".
pub(crate) fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
