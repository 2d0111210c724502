//! The configuration in the engine's words.

use std::net::Ipv4Addr;
use std::time::Duration;

use scoutline_base::DeviceId;
use scoutline_device::{
    DeviceConfig, Driver as OpenDriver, MAX_LONG_FRAME, Station, packet, pcap, tap, vlan, xdp,
};
use scoutline_engine::{
    Asks, ClassSettings, DeviceSettings, EngineSettings, ExtensionSettings, Forward, Host6Config,
    PermissionSettings,
};
use scoutline_sched::transmit::{BitRate, Preemption};
use scoutline_sched::{Level, Weight};
use toml::Spanned;

use super::{
    AnyNetwork, Class, Config, DEFAULT_CLASS, Device, DeviceMode, Driver, Extension, Interval, Ip6Mode,
    Network, PacketKnobs, Permission, Ports, Rate, Realtime,
};
use super::{check, request};

impl Config {
    /// What the engine is told. The configuration has been checked when it was made.
    pub fn settings(&self) -> EngineSettings {
        let engine = &self.engine;
        let cpu = self.cores().first().copied();
        let realtime = match engine.realtime {
            Realtime::On => true,
            // Only with a core of its own choice does the engine leave room for what else runs there (the Linux
            // thread); roaming with real-time priority it would stop whatever it meets.
            Realtime::Auto => cpu.is_some(),
            Realtime::Off => false,
        };
        let microseconds = |us: u32| Duration::from_micros(u64::from(us));
        EngineSettings {
            devices: self.device.iter().enumerate().map(|(index, device)| self.open(index, device)).collect(),
            host: self.host(),
            own_link: self.local.own_link(),
            forwards: self.forwards(),
            classes: classes(&self.class, &self.device),
            permissions: permissions(&self.permission),
            cpu,
            realtime_priority: realtime.then(|| *engine.realtime_priority.get_ref()),
            realtime_required: engine.realtime == Realtime::On,
            spin: microseconds(*engine.spin_us.get_ref()),
            forward_pause: microseconds(*engine.forward_pause_us.get_ref()),
            receive_buffer: engine.receive_buffer.get_ref().0 as u32,
            send_buffer: engine.send_buffer.get_ref().0 as u32,
            receive_buffer_max: engine.receive_buffer_max.get_ref().0 as u32,
            send_buffer_max: engine.send_buffer_max.get_ref().0 as u32,
            buffers_grow: true,
            max_paths: *engine.max_paths.get_ref(),
            max_buffer_bytes: engine.max_buffer_memory.get_ref().0,
            time_wait: Duration::from_secs(u64::from(*engine.time_wait_s.get_ref())),
            tcp: self.tcp.settings(),
            queue_packets: *engine.queue_packets.get_ref(),
            measure: engine.measure,
            shares: self.scheduler.shares(),
            policy_memory: self.scheduler.memory(),
            linux: self.linux.stands(),
            linux_level: self.linux.level(),
            linux_quantum: microseconds(*self.linux.quantum_us.get_ref()),
            linux_interval: microseconds(*self.linux.interval_us.get_ref()),
            extension: self.extension(),
            system_level: Level::Priority(*self.system.priority.get_ref()),
            seed: None,
            shared_secret: None,
            link_use: Vec::new(),
        }
    }
}

impl Config {
    /// The cores with an engine each; none: there is one engine, wherever Linux puts it.
    pub(crate) fn cores(&self) -> &[usize] {
        self.engine.cpu.as_ref().map_or(&[], |cores| &cores.get_ref().0)
    }

    fn forwards(&self) -> Vec<Forward> {
        let index = |name: &Spanned<String>| {
            let index = self.device.iter().position(|device| device.name.get_ref() == name.get_ref());
            index.map(|index| DeviceId(index as u16))
        };
        let forward =
            |forward: &super::Forward| Some(Forward { from: index(&forward.from)?, to: index(&forward.to)? });
        self.forward.iter().filter_map(forward).collect()
    }

    /// Without a core of its own the engine cannot tell who else wants it.
    fn extension(&self) -> Option<ExtensionSettings> {
        let Extension { enabled, base, range } = &self.extension;
        enabled
            .unwrap_or(self.engine.cpu.is_some())
            .then(|| ExtensionSettings { base: *base.get_ref(), range: *range.get_ref() })
    }

    /// The interfaces that are to take super-segments of so many bytes.
    pub(crate) fn long_segments(&self) -> impl Iterator<Item = (&str, u32)> {
        let wanted =
            |knobs: &PacketKnobs| knobs.offload.unwrap_or(true) && knobs.long_segments.unwrap_or(true);
        // The limit must not be reached.
        self.own_interfaces(wanted).map(|name| (name, MAX_LONG_FRAME + 1))
    }

    /// The interfaces that are to hand packets to no other core.
    pub(crate) fn unsteered(&self) -> impl Iterator<Item = &str> {
        self.own_interfaces(|knobs| !knobs.steering.unwrap_or(false))
    }

    /// The names of interfaces that are ours alone, and whose knobs say so.
    fn own_interfaces(&self, wanted: impl Fn(&PacketKnobs) -> bool) -> impl Iterator<Item = &str> {
        let default = PacketKnobs::default();
        let own = move |device: &&Device| {
            device.driver == Driver::Packet
                && device.vlan.is_none()
                && device.mode == DeviceMode::Dedicated
                && wanted(device.packet.as_ref().unwrap_or(&default))
        };
        self.device.iter().filter(own).map(|device| device.name.get_ref().as_str())
    }
}

impl Config {
    /// The driver of a device.
    fn driver(&self, device: &Device) -> OpenDriver {
        let name = device.name.get_ref().clone();
        if let Some(vlan) = self.vlan(device) {
            return OpenDriver::Vlan(vlan);
        }
        let mtu = device.mtu.as_ref().map(|mtu| *mtu.get_ref());
        match device.driver {
            // What "auto" means is settled before anything is opened.
            Driver::Packet | Driver::Auto => OpenDriver::Packet(self.packet(device)),
            Driver::Xdp => OpenDriver::Xdp(self.xdp(device)),
            Driver::Tap => {
                let mut options = tap::Config::new(name);
                options.mtu = mtu;
                let linux = device.tap.as_ref().and_then(|knobs| knobs.linux_address.as_ref());
                options.linux_address =
                    linux.map(|network| (network.get_ref().address, network.get_ref().prefix));
                OpenDriver::Tap(options)
            }
            Driver::Pcap => {
                let mut options = pcap::Config::default();
                if let Some(files) = &device.pcap {
                    options.read.clone_from(&files.input);
                    options.write.clone_from(&files.output);
                }
                options.mtu = mtu.unwrap_or(options.mtu);
                OpenDriver::Pcap(options)
            }
        }
    }

    fn packet(&self, device: &Device) -> packet::Config {
        let mut options = packet::Config::of(self.station(device));
        options.dedicated = device.mode == DeviceMode::Dedicated;
        if let Some(knobs) = &device.packet {
            options.offload = knobs.offload.unwrap_or(options.offload);
            options.qdisc_bypass = knobs.qdisc_bypass.unwrap_or(options.qdisc_bypass);
            options.police = knobs.police_floods.unwrap_or(options.police);
            options.ring_frames =
                knobs.ring_frames.as_ref().map_or(options.ring_frames, |frames| *frames.get_ref());
        }
        // Only a pinned engine gives its core to others.
        options.bell = self.engine.cpu.is_some();
        options
    }

    fn xdp(&self, device: &Device) -> xdp::Config {
        let mut options = xdp::Config::of(self.station(device));
        if let Some(knobs) = &device.xdp {
            options.zero_copy = knobs.zero_copy.unwrap_or(options.zero_copy);
            options.police = knobs.police_floods.unwrap_or(options.police);
            options.ring_frames =
                knobs.ring_frames.as_ref().map_or(options.ring_frames, |frames| *frames.get_ref());
        }
        // Rings by class serve an engine without a core of its own too; classes may come later.
        options.bell = true;
        options
    }

    /// An ordinary interface, and who we are on it.
    fn station(&self, device: &Device) -> Station {
        Station {
            interface: device.name.get_ref().clone(),
            address: device.networks().first().map(|network| network.address),
            addresses6: device.address6.iter().map(|network| network.get_ref().address).collect(),
            groups: self.wants_groups(device),
        }
    }

    /// Whether a device, or a network on it, speaks IPv6, which lives on frames to groups.
    fn wants_groups(&self, device: &Device) -> bool {
        let on_it =
            |other: &&Device| other.parent.as_ref().map(Spanned::get_ref) == Some(device.name.get_ref());
        let mut here = self.device.iter().filter(on_it).chain([device]);
        here.any(|one| one.ip6_mode() != Ip6Mode::Off)
    }

    /// What a network on another device is.
    fn vlan(&self, device: &Device) -> Option<vlan::Config> {
        let (parent, number) = device.parent.as_ref().zip(device.vlan.as_ref())?;
        let on = self.device.iter().position(|other| other.name.get_ref() == parent.get_ref())?;
        let offload = self.device[on].packet.as_ref().and_then(|knobs| knobs.offload);
        Some(vlan::Config {
            name: device.name.get_ref().clone(),
            parent: DeviceId(on as u16),
            vlan: *number.get_ref(),
            priority: device.vlan_priority.as_ref().map_or(0, |priority| *priority.get_ref()),
            by_kernel: self.device[on].driver == Driver::Tap || offload.unwrap_or(true),
        })
    }

    fn open(&self, index: usize, device: &Device) -> DeviceSettings {
        let first = device.networks().first();
        let none = Network { address: Ipv4Addr::UNSPECIFIED, prefix: 32 };
        let Network { address, prefix } = *first.unwrap_or(&none);
        let driver = self.driver(device);
        let device_config = DeviceConfig { id: DeviceId(index as u16), driver };
        let gateway = device.gateway.as_ref().map(|gateway| *gateway.get_ref());
        let rate = device.rate.as_ref().map(bit_rate);
        let preemption = device.background.as_ref().and_then(|knobs| knobs.preemption_us.as_ref());
        let preemption = match preemption.map_or(Interval::Auto, |interval| *interval.get_ref()) {
            Interval::Auto => Preemption::Auto,
            Interval::Us(us) => Preemption::Fixed(Duration::from_micros(u64::from(us))),
        };
        DeviceSettings { device: device_config, address, prefix, gateway, ip6: ip6(device), rate, preemption }
    }
}

fn ip6(device: &Device) -> Option<Host6Config> {
    let mode = device.ip6_mode();
    let addresses =
        device.address6.iter().map(|network| (network.get_ref().address, network.get_ref().prefix));
    (mode != Ip6Mode::Off).then(|| Host6Config {
        addresses: addresses.collect(),
        gateway: device.gateway6.as_ref().map(|gateway| *gateway.get_ref()),
        autoconfigure: mode == Ip6Mode::Auto,
    })
}

fn bit_rate(rate: &Spanned<Rate>) -> BitRate {
    BitRate::new(rate.get_ref().0)
}

/// Classes in the engine's words, on an engine with these devices. Both have been checked. The last one is always
/// `default`, even if one before it leaves it nothing.
pub(crate) fn classes(classes: &[Class], devices: &[Device]) -> Vec<ClassSettings> {
    let mut settings: Vec<ClassSettings> = classes.iter().map(|one| class(one, devices)).collect();
    if !classes.iter().any(|class| class.name.get_ref() == DEFAULT_CLASS) {
        settings.push(ClassSettings::new(DEFAULT_CLASS));
    }
    settings
}

/// Permissions in the engine's words.
pub(crate) fn permissions(permissions: &[Permission]) -> Vec<PermissionSettings> {
    let texts = |texts: &[Spanned<String>]| texts.iter().map(|text| text.get_ref().clone()).collect();
    let settings = |permission: &Permission| PermissionSettings {
        programs: texts(&permission.program),
        users: permission.user.iter().map(|user| user.0).collect(),
        cgroups: texts(&permission.cgroup),
        priority: permission.priority.as_ref().map(|priority| *priority.get_ref()),
        deadline_us: permission.deadline_us.as_ref().map(|deadline| *deadline.get_ref()),
        weight: permission.weight.as_ref().map(|weight| Weight::new((*weight.get_ref()).into())),
        classes: texts(&permission.class),
        extend: permission.extend.as_ref().is_some_and(|extend| *extend.get_ref()),
    };
    permissions.iter().map(settings).collect()
}

fn class(class: &Class, devices: &[Device]) -> ClassSettings {
    let level = class.level();
    let asks = class.asks();
    let ports = |ports: &[Ports]| ports.iter().map(|ports| ports.0.clone()).collect();
    let networks = |networks: &[AnyNetwork]| {
        networks.iter().map(|network| (network.base(), network.prefix)).collect::<Vec<_>>()
    };
    let device = |name: &Spanned<String>| {
        let index = devices.iter().position(|device| device.name.get_ref() == name.get_ref());
        // The machine's link with itself comes behind them.
        let index = index.or((name.get_ref() == check::OWN_LINK).then_some(devices.len()));
        index.map(|index| DeviceId(index as u16))
    };
    ClassSettings {
        level,
        listen_level: class
            .listen_priority
            .as_ref()
            .map_or(level, |priority| Level::Priority(*priority.get_ref())),
        asks,
        // With a priority of their own they are among the priorities.
        listen_asks: if class.listen_priority.is_some() { Asks::Level } else { asks },
        sources: networks(&class.source),
        destinations: networks(&class.destination),
        local_ports: ports(&class.local_port),
        remote_ports: ports(&class.remote_port),
        dscps: class.dscp.iter().map(|dscp| dscp.0).collect(),
        interfaces: class.interface.iter().filter_map(device).collect(),
        programs: class.program.clone(),
        users: class.user.iter().map(|user| user.0).collect(),
        cgroups: class.cgroup.iter().map(|group| group.get_ref().clone()).collect(),
        request: request::conditions(class),
        requests: class.requests.as_ref().map(|requests| *requests.get_ref()).unwrap_or_default().into(),
        queue_packets: class.queue_packets.as_ref().map(|packets| *packets.get_ref()),
        memory: class.memory.as_ref().map(|memory| memory.get_ref().0),
        connections: class.connections.as_ref().map(|connections| *connections.get_ref()),
        cpu_limit: class.cpu_limit_percent.as_ref().map(|percent| u64::from(percent.get_ref().0) * 100),
        thread_budget_us: class.thread_budget_us.as_ref().map(|budget| *budget.get_ref()),
        mark: class.mark.map(|dscp| dscp.0),
        extend: class.extend.unwrap_or(true),
        weight: class
            .weight
            .as_ref()
            .map_or_else(Weight::default, |weight| Weight::new(u64::from(*weight.get_ref()))),
        rate: class.rate.as_ref().map(bit_rate),
        ..ClassSettings::new(class.name.get_ref())
    }
}
