//! Settings that change while the engine runs.

use std::sync::mpsc::Sender;

use scoutline_abi::api::Answer;
use scoutline_sched::schedule::Configuration;
use scoutline_sched::{Quantum, Schedule};

use super::Core;
use crate::settings::LiveSettings;

impl Core {
    /// Puts these settings in the place of those that there are.
    pub(super) fn set_live(&mut self, live: &LiveSettings, done: Sender<Answer>) {
        self.set_shares(live);
        self.settings.spin = live.spin;
        self.settings.forward_pause = live.forward_pause;
        self.moderation.set_pause(live.forward_pause);
        for (net, &(rate, preemption)) in live.links.iter().enumerate().take(self.nets.len()) {
            let device = &mut self.settings.devices[net];
            if (device.rate, device.preemption) != (rate, preemption) {
                (device.rate, device.preemption) = (rate, preemption);
                self.nets[net].transmit.set_link(rate, preemption);
            }
        }
        self.check_direct();
        let mut sweeps =
            std::mem::replace(&mut self.settings.queue_packets, live.queue_packets) != live.queue_packets;
        self.policy.set_queue_packets(live.queue_packets);
        if self.settings.host != live.host {
            self.settings.host.clone_from(&live.host);
            self.apply_host();
            // Listening sockets may take packets for other addresses now.
            sweeps = true;
        }
        if self.settings.extension == live.extension {
            return if sweeps { self.sweep_all(done) } else { drop(done.send(Answer::Done)) };
        }
        self.settings.extension = live.extension;
        // Whoever asked may be gone, here and there.
        let then = move || drop(done.send(Answer::Done));
        if sweeps {
            let (unheard, _) = std::sync::mpsc::channel();
            self.sweep_all(unheard);
        }
        self.extension.configure(live.extension, Box::new(then));
    }

    /// How the CPU is divided.
    fn set_shares(&mut self, live: &LiveSettings) {
        let mut configuration = *self.schedule.configuration();
        configuration.shares = live.shares;
        configuration.fixed.linux_quantum = Quantum { packets: u32::MAX, time: live.linux_quantum };
        // The loop has another one for itself while threads wait to run, and comes back to that of the settings.
        if configuration.fixed.linux_interval == self.settings.linux_interval {
            configuration.fixed.linux_interval = live.linux_interval;
        }
        // While a thread is raised Linux stands elsewhere; the loop puts it where it belongs.
        if configuration.linux == self.settings.linux {
            configuration.linux = live.linux;
        }
        self.settings.shares = live.shares;
        self.settings.linux = live.linux;
        self.settings.linux_quantum = live.linux_quantum;
        self.settings.linux_interval = live.linux_interval;
        self.schedule.configure(configuration);
        // What is promised does not depend on where Linux stands for the moment.
        self.promises.follow(&Schedule::new(Configuration { linux: live.linux, ..configuration }));
    }
}
