//! The configuration: one TOML file, with a default for everything but the device.
//!
//! Reading goes in three steps: [`Config::parse`] makes TOML into the structures here (unknown keys and values of
//! the wrong kind are errors with a line), `check` looks at what the keys mean together, and
//! [`Config::settings`] says the same in the engine's words.

mod check;
mod class;
mod classes;
mod dscp;
mod error;
mod fixed;
mod request;
mod route;
mod scheduling;
mod settings;
mod tcp;
mod values;
mod words;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::Read as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use scoutline_engine::ExtensionSettings;
use serde::Deserialize;
use toml::{Spanned, Table};

pub use class::{Class, Permission};
pub(crate) use classes::{is_class_key, key_value, parse_classes, render};
pub use dscp::Dscp;
use error::Fault;
pub(crate) use error::nearest;
pub use error::{ConfigError, unknown};
pub use request::Requests;
pub use route::{Local, Route, RouteKind};
pub use scheduling::{Percent, Policy, Scheduler};
pub(crate) use settings::{classes as class_settings, permissions as permission_settings};
pub use tcp::{Congestion, Ecn, Tcp};
pub use values::{AnyNetwork, Cores, Interval, Mode, Network, Network6, Networks, Ports, Rate, Size, User};

/// Where the daemon looks for its file when none is named.
pub const DEFAULT_FILE: &str = "/etc/scoutline.toml";
/// The control socket when nothing names another.
pub const DEFAULT_CONTROL: &str = "/run/scoutline/control.sock";
/// Longest file: two hundred times what can be said with every key.
const MAX_FILE: u64 = 1 << 20;
/// Name of the class that takes what no other class takes.
pub const DEFAULT_CLASS: &str = "default";

/// The whole file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `[[device]]`: at least one.
    pub device: Vec<Device>,
    /// `[[forward]]`: packets for others that are passed on.
    pub forward: Vec<Forward>,
    /// `[[route]]`: ways to networks beyond those of the devices.
    pub route: Vec<Route>,
    /// `[local]`: programs on paths of this machine among themselves.
    pub local: Local,
    /// `[engine]`.
    pub engine: Engine,
    /// `[tcp]`: how connections behave.
    pub tcp: Tcp,
    /// `[linux]`: the Linux thread.
    pub linux: Linux,
    /// `[scheduler]`: how the policies divide the engine's CPU.
    pub scheduler: Scheduler,
    /// `[extension]`: threads of programs run at the priority of the path that they serve.
    pub extension: Extension,
    /// `[system]`: paths that serve the machine itself.
    pub system: System,
    /// `[control]`: the sockets of tools and programs.
    pub control: Control,
    /// `[[class]]`: tried in order, the first match wins.
    pub class: Vec<Class>,
    /// `[[permission]]`: what programs may ask for their sockets beyond what the classes give them.
    pub permission: Vec<Permission>,
    /// Where it was read from, if it was.
    #[serde(skip)]
    pub(crate) origin: Origin,
}

/// Where a configuration comes from, so that it can be read again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    /// The file.
    pub(crate) file: Option<PathBuf>,
    /// `[[class]]` as the file has it.
    pub(crate) classes: Vec<Table>,
    /// The rest of the file, but for permissions.
    pub(crate) document: Table,
    /// The control socket that the command line named.
    control: Option<PathBuf>,
}

/// `[[device]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// The interface (packet, xdp, tap) or the file's stem (pcap).
    pub name: Spanned<String>,
    /// How it is driven.
    #[serde(default)]
    pub driver: Driver,
    /// The device that it is a network on, told apart by tags (802.1Q).
    pub parent: Option<Spanned<String>>,
    /// The number in its tags.
    pub vlan: Option<Spanned<u16>>,
    /// The priority in the tags of what is sent.
    pub vlan_priority: Option<Spanned<u8>>,
    /// How it lives with Linux.
    #[serde(default)]
    pub mode: DeviceMode,
    /// Our IPv4 addresses with their networks.
    pub address: Option<Spanned<Networks>>,
    /// Where packets for other networks go.
    pub gateway: Option<Spanned<Ipv4Addr>>,
    /// IPv6 on it; default: static with `address6`, off without.
    pub ipv6: Option<Spanned<Ip6Mode>>,
    /// Our IPv6 addresses and networks, beside the link-local one.
    #[serde(default)]
    pub address6: Vec<Spanned<Network6>>,
    /// Where IPv6 packets for other networks go.
    pub gateway6: Option<Spanned<Ipv6Addr>>,
    /// Largest network-layer packet of a tap or pcap device; an ordinary interface has its own.
    pub mtu: Option<Spanned<u32>>,
    /// Knobs of the packet driver.
    pub packet: Option<PacketKnobs>,
    /// Knobs of the xdp driver.
    pub xdp: Option<XdpKnobs>,
    /// Knobs of the tap driver.
    pub tap: Option<TapKnobs>,
    /// Files of the pcap driver.
    pub pcap: Option<PcapFiles>,
    /// What the link carries; default: as much as the device takes.
    pub rate: Option<Spanned<Rate>>,
    /// Idle-time service.
    pub background: Option<BackgroundKnobs>,
}

/// `[[forward]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forward {
    /// The device on which they come.
    pub from: Spanned<String>,
    /// The device by which they leave.
    pub to: Spanned<String>,
}

/// `driver = "…"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Driver {
    /// AF_PACKET with 64 KiB super-segments.
    #[default]
    Packet,
    /// AF_XDP: small packets at high rates.
    Xdp,
    /// Whichever of the two suits the interface.
    Auto,
    /// A tap interface, made by the daemon.
    Tap,
    /// Packets from a file, packets to a file.
    Pcap,
}

/// `ipv6 = "…"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ip6Mode {
    /// There is none.
    Off,
    /// A link-local address, and those of the file.
    Static,
    /// And what routers advertise: addresses, networks, themselves.
    Auto,
}

/// `mode = "…"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceMode {
    /// The interface and the address belong to scoutline.
    #[default]
    Dedicated,
}

/// `[device.packet]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PacketKnobs {
    /// Frames of 64 KiB in the receive ring.
    pub ring_frames: Option<Spanned<u32>>,
    /// The kernel cuts super-segments and completes checksums; default: yes.
    pub offload: Option<bool>,
    /// The interface is set to take super-segments beyond 64 KiB while we have it; default: yes, if dedicated.
    pub long_segments: Option<bool>,
    /// The interface hands packets to other cores (receive packet steering) as it did before; default: no, if dedicated.
    pub steering: Option<bool>,
    /// Sent packets skip the interface's queueing discipline; default: no.
    pub qdisc_bypass: Option<bool>,
    /// A flood of unwanted packets is held back at the interface while it lasts; default: yes.
    pub police_floods: Option<bool>,
}

/// `[device.xdp]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct XdpKnobs {
    /// Packets in the receive ring of each queue; each takes 6 KiB.
    pub ring_frames: Option<Spanned<u32>>,
    /// The interface's driver puts packets into our memory itself, where it can; default: yes.
    pub zero_copy: Option<bool>,
    /// A flood of unwanted packets is held back at the interface while it lasts; default: yes.
    pub police_floods: Option<bool>,
}

/// `[device.background]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BackgroundKnobs {
    /// How long background keeps away after a foreground packet; default: by the gaps seen.
    pub preemption_us: Option<Spanned<Interval>>,
}

/// `[device.tap]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TapKnobs {
    /// An address for Linux's side.
    pub linux_address: Option<Spanned<Network>>,
}

/// `[device.pcap]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PcapFiles {
    /// Packets to receive.
    pub input: Option<PathBuf>,
    /// Where sent packets go.
    pub output: Option<PathBuf>,
}

/// `[engine]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Engine {
    /// The core to run on; a list: an engine on each of them. Default: Linux decides.
    pub cpu: Option<Spanned<Cores>>,
    /// Whether to run with real-time priority.
    pub realtime: Realtime,
    /// Which: 1 to 99.
    pub realtime_priority: Spanned<u8>,
    /// How long to spin for more work before sleeping, at most, while that pays and nobody else wants the core; 0: not at all.
    pub spin_us: Spanned<u32>,
    /// How long to sleep between two looks while short datagrams that are forwarded come densely, and nothing else does.
    pub forward_pause_us: Spanned<u32>,
    /// Receive buffer of a socket: connections begin with less, and have that when they need it.
    pub receive_buffer: Spanned<Size>,
    /// The same of its send buffer.
    pub send_buffer: Spanned<Size>,
    /// To which a connection's receive buffer grows on a long path.
    pub receive_buffer_max: Spanned<Size>,
    /// The same of its send buffer.
    pub send_buffer_max: Spanned<Size>,
    /// Paths that may exist.
    pub max_paths: Spanned<u32>,
    /// Buffer bytes that all paths together may hold.
    pub max_buffer_memory: Spanned<Size>,
    /// How long a closed connection stays in TIME-WAIT, in seconds.
    pub time_wait_s: Spanned<u32>,
    /// Packets that may wait in a path's input queue.
    pub queue_packets: Spanned<u32>,
    /// Time the stages of new paths one by one.
    pub measure: bool,
}

/// `realtime = "…"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Realtime {
    /// When the privilege is there; else say so and go on.
    #[default]
    Auto,
    /// Or do not start.
    On,
    /// No.
    Off,
}

impl Default for Engine {
    fn default() -> Engine {
        Engine {
            cpu: None,
            realtime: Realtime::Auto,
            realtime_priority: values::unplaced(50),
            spin_us: values::unplaced(200),
            forward_pause_us: values::unplaced(50),
            receive_buffer: values::unplaced(Size(256 << 10)),
            send_buffer: values::unplaced(Size(256 << 10)),
            receive_buffer_max: values::unplaced(Size(4 << 20)),
            send_buffer_max: values::unplaced(Size(4 << 20)),
            max_paths: values::unplaced(200_000),
            max_buffer_memory: values::unplaced(Size(4 << 30)),
            time_wait_s: values::unplaced(60),
            queue_packets: values::unplaced(256),
            measure: false,
        }
    }
}

/// `[linux]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Linux {
    /// Where the Linux thread stands among the priorities; default: 0.
    pub priority: Option<Spanned<u8>>,
    /// Its weight among the paths of WFQ, if it stands there.
    pub weight: Option<Spanned<u32>>,
    /// Per cent of the CPU against all paths together, if it stands beside them.
    pub share: Option<Spanned<u8>>,
    /// How long Linux may run at most before the engine looks again.
    pub quantum_us: Spanned<u32>,
    /// How much time paths of Linux's level may take between two of its turns.
    pub interval_us: Spanned<u32>,
}

impl Default for Linux {
    fn default() -> Linux {
        Linux {
            priority: None,
            weight: None,
            share: None,
            quantum_us: values::unplaced(2_000),
            interval_us: values::unplaced(200),
        }
    }
}

/// `[extension]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Extension {
    /// Threads of programs are raised with their paths; default: yes, if the engine is pinned.
    pub enabled: Option<bool>,
    /// A path of priority p ≥ 1 has its thread at SCHED_FIFO `base` + p. Below the engine's own priority.
    pub base: Spanned<u8>,
    /// p counts up to this.
    pub range: Spanned<u8>,
}

impl Default for Extension {
    fn default() -> Extension {
        let ExtensionSettings { base, range } = ExtensionSettings::default();
        Extension { enabled: None, base: values::unplaced(base), range: values::unplaced(range) }
    }
}

/// `[system]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct System {
    /// Priority of the ARP, ICMP, reassembly and reset paths.
    pub priority: Spanned<u8>,
}

impl Default for System {
    fn default() -> System {
        System { priority: values::unplaced(3) }
    }
}

/// `[control]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Control {
    /// The control socket; the attach socket lies beside it with `.attach` behind its name.
    pub socket: Spanned<PathBuf>,
    /// A group whose members may use both.
    pub group: Option<Spanned<String>>,
    /// Mode of both sockets, in octal.
    pub mode: Mode,
}

impl Default for Control {
    fn default() -> Control {
        Control { socket: values::unplaced(DEFAULT_CONTROL.into()), group: None, mode: Mode(0o660) }
    }
}

impl Control {
    /// The number of its group.
    ///
    /// # Errors
    /// There is no such group.
    pub fn group_id(&self) -> Result<Option<u32>, ConfigError> {
        let Some(group) = &self.group else { return Ok(None) };
        let name = group.get_ref();
        let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
        let found = groups.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
        });
        let Some(id) = found.or_else(|| name.parse().ok()) else {
            let message = format!(
                "[control] group = \"{name}\": there is no such group; make it with `groupadd {name}`"
            );
            return Err(ConfigError::of_machine(message));
        };
        Ok(Some(id))
    }
}

impl Device {
    /// What IPv6 there is on it.
    pub(crate) fn ip6_mode(&self) -> Ip6Mode {
        let default = if self.address6.is_empty() { Ip6Mode::Off } else { Ip6Mode::Static };
        self.ipv6.as_ref().map_or(default, |mode| *mode.get_ref())
    }
}

/// The text of a file that is as long as a configuration may be.
fn read(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |error: std::io::Error| ConfigError::unreadable(path, &error);
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(ConfigError::too_long(path, MAX_FILE));
    }
    String::from_utf8(bytes).map_err(|_| unreadable(std::io::ErrorKind::InvalidData.into()))
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, or says something that cannot be.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = read(path)?;
        let mut config = Config::parse(&text, path)?;
        config.origin.file = Some(std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
        Ok(config)
    }

    /// Reads the file of this configuration, with which a daemon runs, again. Its classes can be put in the place of
    /// those that are there.
    ///
    /// # Errors
    /// There is no file; as for [`Config::load`]; or a class names a device that the daemon does not serve yet.
    pub fn reload(&self) -> Result<Config, ConfigError> {
        let Some(path) = &self.origin.file else {
            let message = "the daemon was started without a file; start it with `scoutline up --config FILE`, or \
                           change classes with `scoutline class`";
            return Err(ConfigError::of_machine(message.into()));
        };
        let text = read(path)?;
        let mut config = Config::parse(&text, path)?;
        check::check_classes(&config.class, &self.device).map_err(|mut fault| {
            fault.message += "; devices that were added need a restart";
            ConfigError::from_fault(path, &text, fault)
        })?;
        config.origin.file = Some(path.clone());
        if let Some(control) = &self.origin.control {
            config.set_control(control)?;
        }
        Ok(config)
    }

    /// Reads and checks the text of a file; `path` is for messages.
    ///
    /// # Errors
    /// As for [`Config::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
        if let Some((at, message)) = words::misshapen(text) {
            return Err(ConfigError::from_fault(path, text, Fault { at, message }));
        }
        let mut config: Config =
            toml::from_str(text).map_err(|error| ConfigError::from_toml(path, text, &error))?;
        check::check(&config).map_err(|fault| ConfigError::from_fault(path, text, fault))?;
        config.origin.classes = classes::tables_of(text);
        config.origin.document = toml::from_str(text).unwrap_or_default();
        for about_others in ["class", "permission"] {
            config.origin.document.remove(about_others);
        }
        Ok(config)
    }

    /// Reads and checks what a file would have, classes and permissions left out.
    ///
    /// # Errors
    /// As for [`Config::load`]; the message names no place.
    pub(crate) fn from_document(document: &Table) -> Result<Config, ConfigError> {
        Config::parse(&document.to_string(), Path::new("settings"))
    }

    /// Puts the control socket elsewhere, whatever the file says.
    ///
    /// # Errors
    /// The path cannot be that of a socket.
    pub fn set_control(&mut self, path: &Path) -> Result<(), ConfigError> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        self.origin.control = Some(path.clone());
        self.control.socket = values::unplaced(path);
        check::check(self).map_err(ConfigError::from_arguments)
    }

    /// A configuration of one device and nothing else: `scoutline up --device NAME --address CIDR`.
    ///
    /// # Errors
    /// The address cannot be ours.
    pub fn quick(device: &str, address: Network, gateway: Option<Ipv4Addr>) -> Result<Config, ConfigError> {
        Config::of_device(device, Driver::Packet, address, gateway)
    }

    /// The same of the one interface that is free, with the driver that suits it: `--device auto`.
    ///
    /// # Errors
    /// There is no such interface, or there are several; the address cannot be ours.
    pub fn automatic(address: Network, gateway: Option<Ipv4Addr>) -> Result<Config, ConfigError> {
        let device = scoutline_device::free_interface().map_err(ConfigError::of_machine)?;
        Config::of_device(&device, Driver::Auto, address, gateway)
    }

    fn of_device(
        device: &str,
        driver: Driver,
        address: Network,
        gateway: Option<Ipv4Addr>,
    ) -> Result<Config, ConfigError> {
        let mut table = Table::new();
        table.insert("name".into(), device.into());
        if driver == Driver::Auto {
            table.insert("driver".into(), "auto".into());
        }
        table.insert("address".into(), address.to_string().into());
        if let Some(gateway) = gateway {
            table.insert("gateway".into(), gateway.to_string().into());
        }
        let document = Table::from_iter([("device".to_owned(), toml::Value::Array(vec![table.into()]))]);
        let device = Device {
            name: values::unplaced(device.to_owned()),
            driver,
            parent: None,
            vlan: None,
            vlan_priority: None,
            mode: DeviceMode::Dedicated,
            address: Some(values::unplaced(Networks(vec![address]))),
            gateway: gateway.map(values::unplaced),
            ipv6: None,
            address6: Vec::new(),
            gateway6: None,
            mtu: None,
            packet: None,
            xdp: None,
            tap: None,
            pcap: None,
            rate: None,
            background: None,
        };
        let origin = Origin { document, ..Origin::default() };
        let config = Config { device: vec![device], origin, ..Config::default() };
        check::check(&config).map_err(ConfigError::from_arguments)?;
        Ok(config)
    }
}
