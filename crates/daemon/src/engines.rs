//! All engines of the daemon, as the control plane sees them: one.
//!
//! What comes and goes is told to each; what has to happen in an order (the end of processes and programs) to the first,
//! which passes it on. Questions are put to all, and their answers become one ([`crate::merge`]).

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use scoutline_abi::api::Answer;
use scoutline_abi::served::Network;
use scoutline_engine::EngineHandle;

use crate::engine::{Command, EngineLink};
use crate::merge::merge;

/// How long the answer of a slower engine is waited for: who asked gives up before.
const PATIENCE: Duration = Duration::from_secs(6);

/// One or several engines.
pub(crate) struct Engines {
    all: Vec<EngineHandle>,
    notices: Vec<String>,
}

impl Engines {
    /// They have been started.
    pub(crate) fn new(all: Vec<EngineHandle>) -> Engines {
        let mut notices: Vec<String> = Vec::new();
        for notice in all.iter().flat_map(EngineHandle::notices) {
            if !notices.contains(notice) {
                notices.push(notice.clone());
            }
        }
        Engines { all, notices }
    }

    /// Stops them: connections are reset, devices closed.
    pub(crate) fn stop(self) {
        self.all.into_iter().for_each(EngineHandle::stop);
    }

    fn each(&self, command: impl Fn() -> Command) {
        self.all.iter().for_each(|engine| engine.send(command()));
    }

    /// Puts a question to all; their answers become one.
    fn ask(&self, answer: Sender<Answer>, question: impl Fn(Sender<Answer>) -> Command) {
        let (sender, answers) = channel();
        for engine in &self.all {
            engine.send(question(sender.clone()));
        }
        drop(sender);
        let count = self.all.len();
        // The control plane never waits.
        let gather = std::thread::Builder::new().name("scl-gather".into());
        if let Err(error) = gather.spawn(move || gather_answers(&answers, count, &answer)) {
            log::warn!("the engines' answers cannot be gathered: {error}");
        }
    }
}

fn gather_answers(answers: &Receiver<Answer>, count: usize, to: &Sender<Answer>) {
    let all: Vec<Answer> = (0..count).map_while(|_| answers.recv_timeout(PATIENCE).ok()).collect();
    if all.len() == count {
        // Whoever asked may be gone.
        let _ = to.send(merge(all));
    }
}

impl EngineLink for Engines {
    fn send(&self, command: Command) {
        if let [engine] = &self.all[..] {
            return engine.send(command);
        }
        match command {
            Command::AddRegion { id, region, program, pid, key, bells } => {
                for (engine, bell) in self.all.iter().zip(bells) {
                    let (region, program) = (region.clone(), program.clone());
                    engine.send(Command::AddRegion { id, region, program, pid, key, bells: vec![bell] });
                }
            }
            Command::AddSet { region, set, pipe, process } => {
                self.each(|| Command::AddSet { region, set, pipe: pipe.clone(), process });
            }
            Command::RemoveSet { region, set } => self.each(|| Command::RemoveSet { region, set }),
            Command::AddFile { region, file, map } => {
                self.each(|| Command::AddFile { region, file, map: map.clone() });
            }
            Command::SetPermissions(permissions) => {
                self.each(|| Command::SetPermissions(permissions.clone()));
            }
            Command::SetClasses(classes, done) => {
                let of = self.all.len() as u64;
                let part = || classes.iter().map(|class| class.part(of)).collect();
                self.ask(done, |done| Command::SetClasses(part(), done));
            }
            Command::SetLive(live, done) => {
                let part = live.part(self.all.len() as u64);
                self.ask(done, |done| Command::SetLive(part.clone(), done));
            }
            Command::Query(question, answer) => {
                self.ask(answer, |answer| Command::Query(question.clone(), answer));
            }
            // In order, from one engine to the next.
            ordered @ (Command::ProcessGone { .. } | Command::RemoveRegion(_)) => self.all[0].send(ordered),
            // Each has its pipe, and one byte is enough.
            one @ Command::WakeSet { .. } => self.all[0].send(one),
            // Engines are stopped one by one, and speak to each other by themselves.
            Command::Stop | Command::Crossing(_) => {}
        }
    }

    fn served(&self) -> Vec<Network> {
        self.all[0].served()
    }

    fn notices(&self) -> &[String] {
        &self.notices
    }

    fn is_running(&self) -> bool {
        self.all.iter().all(EngineHandle::is_running)
    }

    fn count(&self) -> usize {
        self.all.len()
    }
}
