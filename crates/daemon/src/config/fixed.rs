//! What of a configuration cannot change while the daemon runs.

use std::fmt::Debug;

use scoutline_engine::DeviceSettings;
use scoutline_sched::transmit::Preemption;

use super::Config;

impl Config {
    /// The keys of another configuration, for the same daemon, that have other values and are not taken over live.
    pub(crate) fn needs_restart(&self, other: &Config) -> Vec<String> {
        let (ours, theirs) = (self.fixed(), other.fixed());
        let value_in = |list: &[(String, String)], key: &str| {
            list.iter().find(|(other, _)| other == key).map(|(_, value)| value.clone())
        };
        let mut keys: Vec<&String> = ours.iter().chain(&theirs).map(|(key, _)| key).collect();
        keys.sort_by_key(|key| key.starts_with("[[device]]"));
        let mut differing: Vec<String> = Vec::new();
        for key in keys {
            if !differing.contains(key) && value_in(&ours, key) != value_in(&theirs, key) {
                differing.push(key.clone());
            }
        }
        differing
    }

    /// Everything but the classes and what [`crate::live`] changes, by name; values as text to compare, defaults filled
    /// in.
    fn fixed(&self) -> Vec<(String, String)> {
        let settings = self.settings();
        let text = |value: &dyn Debug| format!("{value:?}");
        let values: [(&str, String); 27] = [
            ("[engine] cpu", text(&self.cores())),
            ("[engine] realtime", text(&self.engine.realtime)),
            ("[engine] realtime_priority", text(self.engine.realtime_priority.get_ref())),
            ("[engine] receive_buffer", text(&settings.receive_buffer)),
            ("[engine] send_buffer", text(&settings.send_buffer)),
            ("[engine] receive_buffer_max", text(&settings.receive_buffer_max)),
            ("[engine] send_buffer_max", text(&settings.send_buffer_max)),
            ("[engine] max_paths", text(&settings.max_paths)),
            ("[engine] max_buffer_memory", text(&settings.max_buffer_bytes)),
            ("[engine] time_wait_s", text(&settings.time_wait)),
            ("[engine] measure", text(&settings.measure)),
            ("[tcp] congestion", text(&settings.tcp.congestion)),
            ("[tcp] ecn", text(&settings.tcp.ecn)),
            ("[tcp] pacing", text(&settings.tcp.pacing)),
            ("[tcp] fast_open", text(&settings.tcp.fast_open)),
            ("[tcp] notsent_lowat", text(&settings.tcp.unsent_low_water)),
            ("[linux] priority", text(&settings.linux_level)),
            ("[scheduler] priority_memory", text(&settings.policy_memory[0])),
            ("[scheduler] edf_memory", text(&settings.policy_memory[1])),
            ("[scheduler] wfq_memory", text(&settings.policy_memory[2])),
            ("[scheduler] bert_memory", text(&settings.policy_memory[3])),
            ("[system] priority", text(&settings.system_level)),
            ("[control] socket", text(self.control.socket.get_ref())),
            ("[control] group", text(&self.control.group.as_ref().map(toml::Spanned::get_ref))),
            ("[control] mode", text(&self.control.mode)),
            ("[[forward]]", text(&settings.forwards)),
            ("[local]", text(&settings.own_link)),
        ];
        let values = values.into_iter().map(|(key, value)| (key.to_owned(), value));
        let long: Vec<(&str, u32)> = self.long_segments().collect();
        let unsteered: Vec<&str> = self.unsteered().collect();
        // Which core the engine runs on is said above; that its devices are opened otherwise then is no other key.
        let mut unpinned = self.clone();
        unpinned.engine.cpu = None;
        let opened = unpinned.settings().devices;
        let devices = self.device.iter().zip(&opened).map(|(device, opened)| {
            let name = device.name.get_ref().as_str();
            let long = long.iter().find(|(other, _)| *other == name);
            let lasting = DeviceSettings { rate: None, preemption: Preemption::Auto, ..opened.clone() };
            (format!("[[device]] {name}"), format!("{lasting:?} {long:?} {}", unsteered.contains(&name)))
        });
        values.chain(devices).collect()
    }
}
