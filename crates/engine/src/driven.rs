//! The engine without its thread, for simulations and conformance tests: whoever drives it holds the clock.
//!
//! What runs is the whole [`Core`], with the loop of [`crate::thread`] except for sleeping, Linux's turns and the
//! bells. With [`EngineSettings::seed`] and the same calls at the same times it does the same again: what is left
//! of the real clock only measures what runs cost, which decides nothing among levels.

use scoutline_abi::api::{Answer, Request};
use scoutline_base::Time;
use scoutline_device::Partner;
use scoutline_sched::{Entry, Policy};

use crate::command::Command;
use crate::core::Core;
use crate::settings::EngineSettings;
use crate::start::StartError;

/// An engine in virtual time.
///
/// Give it packets (at its devices) and marks and calls (in the regions of programs), then [`Driven::settle`], then
/// go to [`Driven::next_timeout`] or to the next moment of your own, whichever is sooner.
pub struct Driven {
    core: Core,
}

impl Driven {
    /// An engine over open devices, one for each of the settings.
    ///
    /// # Errors
    /// When settings and module graph do not fit together.
    pub fn new(
        settings: EngineSettings,
        devices: Vec<Box<dyn Partner>>,
        now: Time,
    ) -> Result<Driven, StartError> {
        Core::with_devices(settings, devices, now).map(|core| Driven { core })
    }

    /// What the control thread would have said.
    pub fn obey(&mut self, command: Command, now: Time) {
        self.core.obey(command, now);
    }

    /// Runs until nothing is left to do at `now`.
    pub fn settle(&mut self, now: Time) {
        let core = &mut self.core;
        loop {
            core.pull(now);
            let spoken = core.listen_to_programs(now);
            core.fire_timers(now);
            core.pace(now);
            while core.sweep(now) {}
            match core.schedule.dequeue(now) {
                Some(decision) => {
                    if let Entry::Path(id) = decision.entry {
                        core.run_path(id, &decision, now);
                    }
                }
                None if spoken => {}
                None => {
                    core.flush_all(now);
                    if core.schedule.is_idle() && !core.has_own_input() {
                        return;
                    }
                }
            }
        }
    }

    /// When something is due without anything arriving.
    pub fn next_timeout(&self, now: Time) -> Option<Time> {
        self.core.next_timeout(now)
    }

    /// Answers a question of the JSON API.
    pub fn query(&self, request: &Request, now: Time) -> Answer {
        self.core.answer_query(request, now)
    }

    /// The end: every connection is reset.
    pub fn stop(&mut self, now: Time) {
        self.core.stop(now);
    }
}
