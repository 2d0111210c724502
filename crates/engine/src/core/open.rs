//! Putting an engine together from its settings; commands; the end.

use std::cell::{Cell, RefCell};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use scoutline_abi::layout::{MAX_AHEAD, engine_state};
use scoutline_abi::stand_in;
use scoutline_base::{DeviceId, Random, Time};
use scoutline_device::{DeviceFacts, Driver, OpenError, Partner, vlan};
use scoutline_path::{
    Account, Attributes, Budget, Burst, ClassAccounts, FlowTable, MeasureRule, Name, PathTable, Runner,
    StageTotals, Value,
};
use scoutline_proto::interface::InterfaceConfig;
use scoutline_proto::tcp::isn::Secret;
use scoutline_proto::tcp::{Config, Tcp};
use scoutline_proto::{Bindings, Interface, Offload};
use scoutline_ring::{EngineBell, Moment, Pool};
use scoutline_sched::transmit::Preemption;
use scoutline_sched::{Level, Policy, Quantum, Schedule, priority, schedule};
use scoutline_wire::ethernet;

use super::several::Look;
use super::transmit::TransmitSide;
use super::{Apart, Core, Counters, Net};
use crate::admission::Promises;
use crate::by_path::ByPath;
use crate::clock;
use crate::command::{Command, RegionId};
use crate::extend::{Duty, Extension, TakenBack, Threads};
use crate::flood::{Detector, Unwanted};
use crate::moderation::Moderation;
use crate::policy::{ClassPolicy, PolicyMemory};
use crate::program::{OfEngine, Program};
use crate::routing::Routing;
use crate::settings::{DeviceSettings, EngineSettings};
use crate::several::Several;
use crate::socket::{Listeners, Outlet, SocketModule};
use crate::start::{Served, StartError};
use crate::sys;
use crate::wheel::Wheel;

/// Payload of one super-segment at most: 135 segments of an Ethernet link; the device may set less.
const MAX_TRANSMIT_LEN: u32 = 195_480;
/// Buffers for datagrams on their way out: one for each that fits a link's MTU.
const POOL_BLOCK: u32 = 2048;
/// 16 MiB of them at most; then the heap serves.
const POOL_LIMIT: u32 = 8192;
/// Of them are there from the start.
const POOL_READY: u32 = 256;

impl Core {
    /// Opens the devices and makes the service paths.
    pub(crate) fn open(
        settings: EngineSettings,
        extension: Extension,
        several: Several,
        notices: &mut Vec<String>,
    ) -> Result<Core, StartError> {
        let opened = open_devices(&settings.devices, notices)?;
        let mut core = Core::with_devices(settings, opened, clock::now())?;
        core.several = several;
        core.extension = Rc::new(extension);
        Ok(core)
    }

    /// The engine over devices that are open already, one for each of the settings.
    pub(crate) fn with_devices(
        settings: EngineSettings,
        devices: Vec<Box<dyn Partner>>,
        now: Time,
    ) -> Result<Core, StartError> {
        let mut source = Source::of(settings.seed);
        let seed = source.number();
        let mut classes = settings.classes.clone();
        for class in &mut classes {
            class.settle(settings.linux_level);
        }
        let policy_memory = PolicyMemory::new(settings.policy_memory);
        let policy = Rc::new(ClassPolicy::within(classes, &policy_memory));
        policy.set_linux_level(settings.linux_level);
        policy.set_queue_packets(settings.queue_packets);
        policy.set_permissions(settings.permissions.clone());
        let listeners: Listeners = Rc::new(RefCell::new(HashMap::new()));
        let pool = Rc::new(Pool::with_ready(POOL_BLOCK, POOL_LIMIT, POOL_READY));
        let routing = Rc::new(Routing::default());
        let mut nets = Vec::new();
        for (index, (device, partner)) in settings.devices.iter().zip(devices).enumerate() {
            let (facts, id) = (partner.facts().clone(), DeviceId(index as u16));
            let secret = settings.shared_secret.unwrap_or(seed)
                ^ (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let interface = interface_of(id, device, partner.as_ref(), secret)?;
            if settings.forwards.iter().any(|forward| forward.from == id) {
                interface.ip6.become_router();
            }
            routing.add(Rc::clone(&interface), facts.index);
            let kernel_sends = device.device.sends_by_kernel();
            let socket = socket_module(
                settings.linux_level,
                &listeners,
                &pool,
                &policy,
                Outlet { routing: Rc::clone(&routing), device: id, number: facts.index, kernel_sends },
            );
            let mut transmit = TransmitSide::new(device.rate, device.preemption, facts.mtu);
            transmit.background.share(settings.link_use.get(index).cloned());
            nets.push(make_net(interface, (partner, transmit), &settings, &policy, socket, &mut source)?);
        }
        if settings.own_link.is_some() {
            let id = DeviceId(nets.len() as u16);
            let partner = scoutline_device::local::open(id);
            let machine = nets.iter().map(|net: &Net| Rc::clone(net.interface())).collect();
            let seed = source.number();
            let interface = Interface::own_link(id, machine, seed, offload_of(partner.facts()));
            routing.add(Rc::clone(&interface), 0);
            let socket = socket_module(
                settings.linux_level,
                &listeners,
                &pool,
                &policy,
                Outlet {
                    routing: Rc::clone(&routing),
                    device: id,
                    number: partner.facts().index,
                    kernel_sends: false,
                },
            );
            let transmit = TransmitSide::new(None, Preemption::default(), partner.facts().mtu);
            let partner = Box::new(partner);
            nets.push(make_net(interface, (partner, transmit), &settings, &policy, socket, &mut source)?);
        }
        let fixed = priority::Configuration {
            linux_interval: settings.linux_interval,
            linux_quantum: Quantum { packets: u32::MAX, time: settings.linux_quantum },
            linux_level: settings.linux_level,
            ..priority::Configuration::default()
        };
        let schedule = Schedule::new(schedule::Configuration {
            shares: settings.shares,
            linux: settings.linux,
            fixed,
            ..Default::default()
        });
        let mut core = Core {
            nets,
            paths: PathTable::new(Budget::new(settings.max_paths, settings.max_buffer_bytes)),
            extras: ByPath::default(),
            flows: FlowTable::new(seed),
            promises: Rc::new(Promises::of(&schedule)),
            policy_memory,
            schedule,
            wheel: Wheel::new(now),
            runner: Runner::new(),
            programs: BTreeMap::new(),
            finished: ClassAccounts::default(),
            policy,
            listeners,
            routing,
            taken_back: TakenBack::default(),
            served: Served::default(),
            served_of: Vec::new(),
            vlans: BTreeMap::new(),
            forwarders: BTreeMap::new(),
            sweep: None,
            all_ring: false,
            apart: Apart::default(),
            wakes: Rc::new(Cell::new(0)),
            put_off: Rc::default(),
            early: Rc::default(),
            published: Cell::new(engine_state::POLLING),
            takes_back: Cell::new(false),
            turns: Rc::default(),
            extension: Rc::new(Extension::new(Threads::new(None, None), 0)),
            counters: Counters::default(),
            moderation: Moderation::new(settings.forward_pause),
            unowned: Account::default(),

            started: now,
            random: Random::new(seed ^ 0x5c),
            incoming: Burst::new(),
            touched: Vec::new(),
            due: Vec::new(),
            closed_datagrams: Vec::new(),
            neighbours_at: Time::default(),
            stalled: Vec::new(),
            spare: VecDeque::new(),
            several: Several::default(),
            elsewhere: HashMap::new(),
            strays: Vec::new(),
            look: Look::default(),
            listenings: 0,
            settings,
        };
        core.vlans = core.settings.vlans();
        core.check_direct();
        core.apply_host();
        core.make_service_paths()?;
        core.set_bells();
        Ok(core)
    }

    /// ARP, ICMP, reassembly and resets have paths of their own, at the system level.
    fn make_service_paths(&mut self) -> Result<(), StartError> {
        let class = self.policy.last().number;
        let level = self.settings.system_level;
        for net in 0..self.nets.len() {
            let modules = self.nets[net].modules.clone();
            for (module, attributes, tell) in modules.service_paths() {
                let name = Value::Text(service_name(module, &attributes).into());
                let attributes = attributes.with(Name::PathName, name);
                let id = self
                    .make_path(net, module, attributes, (class, level.into()))
                    .map_err(|error| StartError::Graph(format!("{module}: {error}")))?;
                tell.set(Some(id));
            }
        }
        Ok(())
    }

    /// What to sleep on.
    pub(crate) fn device_fds(&self) -> Vec<RawFd> {
        self.nets.iter().filter_map(|net| net.device.poll_fd()).collect()
    }

    /// What rings for important packets.
    pub(crate) fn bell_fds(&self) -> Vec<RawFd> {
        self.nets.iter().filter_map(|net| net.device.bell_fd()).collect()
    }

    /// Tells the devices which packets are more important than Linux. For classes that do not say so by source or port
    /// the engine looks now and then.
    pub(crate) fn set_bells(&mut self) {
        let rules = self.policy.important(self.settings.linux_level);
        self.all_ring = self.policy.all_important_named(self.settings.linux_level);
        // What programs here send each other needs no bell.
        for net in self.nets.iter_mut().filter(|net| !net.interface().is_own_link()) {
            if let Err(error) = net.device.ring_for(&rules) {
                self.all_ring = false;
                eprintln!("scoutline: warn: {}: important packets do not ring: {error}", net.device.name());
            }
            self.all_ring &= net.device.bell_fd().is_some();
            if let Some(flood) = net.flood.is_on() {
                net.device.police(Some(flood.policing(&rules)));
            }
        }
    }

    /// Whether every packet that is more important than Linux rings. What programs have made important does not: the
    /// devices know classes.
    pub(crate) fn all_important_ring(&self) -> bool {
        self.all_ring && self.apart.highest() <= self.settings.linux_level
    }

    /// Takes what rang for important packets.
    pub(crate) fn silence_bells(&mut self) {
        for net in &mut self.nets {
            net.device.silence_bell();
        }
    }

    /// Obeys a command that changes which programs there are.
    pub(crate) fn obey(&mut self, command: Command, now: Time) {
        match command {
            Command::AddRegion { id, region, program, pid, key, .. } => {
                let cpu = self.settings.cpu.map_or(0, |cpu| cpu as u32 + 1);
                let engine = OfEngine {
                    several: self.several.clone(),
                    wakes: Rc::clone(&self.wakes),
                    turns: Rc::clone(&self.turns),
                    // Who is not pinned has no Linux thread that would ask.
                    core: self.settings.cpu,
                    put_off: Rc::clone(&self.put_off),
                    early: Rc::clone(&self.early),
                    extension: Rc::clone(&self.extension),
                };
                let program = Program::new(id, program, pid, region, engine);
                let program = Rc::new(program);
                program.engine_word().cpu_plus_one.store(cpu, Ordering::Relaxed);
                program.engine_word().takes_back.store(self.takes_back.get().into(), Ordering::Relaxed);
                EngineBell(&program.engine_word().state).publish(self.published.get());
                let mut source = Source::of(self.settings.seed.map(|seed| seed ^ u64::from(id.0)));
                program.set_key(stand_in::key(key.unwrap_or_else(|| source.number())));
                if self.several.is_first() {
                    program.region.header().write_served(&self.networks());
                }
                self.programs.insert(id, program);
            }
            Command::RemoveRegion(id) => {
                if let Some(program) = self.programs.get(&id).cloned() {
                    self.remove_program(&program, now);
                    self.extension.forget_region(&program.region);
                }
                // Behind what was said of its processes.
                self.several.pass_on(Command::RemoveRegion(id));
            }
            Command::AddFile { region, file, map } => {
                if let Some(program) = self.programs.get(&region) {
                    program.add_file(file, map);
                }
            }
            Command::AddSet { region, set, pipe, process } => {
                if let Some(program) = self.programs.get(&region) {
                    program.add_set(set, pipe, process);
                }
            }
            Command::RemoveSet { region, set } => {
                if let Some(program) = self.programs.get(&region) {
                    program.remove_set(set);
                }
            }
            Command::WakeSet { region, set } => {
                if let Some(program) = self.programs.get(&region) {
                    program.wake_set(set, Duty::default());
                }
            }
            Command::ProcessGone { region, process } => {
                if let Some(program) = self.programs.get(&region).cloned() {
                    self.on_process_gone(&program, process, now);
                    let pid = program.region.process(process).map_or(0, |it| it.pid.load(Ordering::Relaxed));
                    self.extension.forget_process(&program.region, pid);
                }
                self.several.pass_on(Command::ProcessGone { region, process });
            }
            Command::Crossing(crossing) => {
                if crossing.is_packet() {
                    self.several.took();
                }
                self.on_said(crossing.0, now);
            }
            // What it changes for sockets that are there, the sweep finds that the classes begin which follow.
            Command::SetPermissions(permissions) => self.policy.set_permissions(permissions),
            Command::SetClasses(classes, done) => self.set_classes(classes, done, now),
            Command::SetLive(live, done) => self.set_live(&live, done),
            Command::Query(..) | Command::Stop => {}
        }
    }

    /// Tells the programs what the engine does: whether they must ring.
    pub(crate) fn publish(&self, state: u32) {
        self.published.set(state);
        for program in self.programs.values() {
            EngineBell(&program.engine_word().state).publish(state);
        }
    }

    /// While the engine is away, whether one of these programs has said that it has nothing to do. Another of its threads may
    /// have found the engine asleep then, and have taken that back.
    pub(crate) fn is_said_to_be_idle(&self, rung: &[RegionId]) -> bool {
        let word = |id| self.programs.get(id).map(|program| EngineBell(&program.engine_word().state));
        rung.iter()
            .filter_map(word)
            .any(|bell| bell.is(engine_state::SLEEPING) || bell.is(engine_state::POLLING))
    }

    /// From when on the core is taken back for a program's mark, in the turn of Linux that begins.
    pub(crate) fn publish_leave(&self, leave: Option<Time>) {
        let leave = leave.map_or(0, Time::as_nanos);
        for program in self.programs.values() {
            Moment(&program.engine_word().leave_ns).publish(leave);
        }
    }

    /// Whether that is taken in the turn of Linux that begins.
    pub(crate) fn publish_taking_back(&self, takes: bool) {
        if self.takes_back.replace(takes) != takes {
            for program in self.programs.values() {
                program.engine_word().takes_back.store(takes.into(), Ordering::Relaxed);
            }
        }
    }

    /// The end: every connection is reset, so that no peer waits for nothing.
    pub(crate) fn stop(&mut self, now: Time) {
        self.extension.restore_all();
        for program in self.programs.values().cloned().collect::<Vec<_>>() {
            self.remove_program(&program, now);
        }
        // Also what programs have left that are gone.
        let left: Vec<_> = self.paths.iter().filter_map(super::paths::socket_of).collect();
        for end in left {
            self.abort_end(&end, now);
        }
        self.release_output();
        while let Some(decision) = self.schedule.dequeue(now) {
            if let scoutline_sched::Entry::Path(id) = decision.entry {
                self.run_path(id, &decision, now);
            }
            self.flush_all(now);
            if self.has_output() {
                return;
            }
        }
    }
}

/// What people call a service path: its module and the role that an attribute gives it.
fn service_name(module: &str, attributes: &Attributes) -> String {
    let role = attributes.iter().find_map(|(name, _)| match name {
        Name::Other(role) => Some(*role),
        _ => None,
    });
    let module = module.to_lowercase();
    role.map_or(module.clone(), |role| format!("{module} {role}"))
}

/// Where seeds and secrets come from.
enum Source {
    /// The system.
    System,
    /// A seed: a simulation.
    Seed(Random),
}

impl Source {
    fn of(seed: Option<u64>) -> Source {
        seed.map_or(Source::System, |seed| Source::Seed(Random::new(seed)))
    }

    fn number(&mut self) -> u64 {
        match self {
            Source::System => u64::from_le_bytes(sys::random_bytes()),
            Source::Seed(random) => random.next_u64(),
        }
    }

    fn key(&mut self) -> [u8; 16] {
        match self {
            Source::System => sys::random_bytes(),
            Source::Seed(random) => {
                (u128::from(random.next_u64()) << 64 | u128::from(random.next_u64())).to_le_bytes()
            }
        }
    }
}

/// Opens the devices, and then the networks that are on them.
fn open_devices(
    devices: &[DeviceSettings],
    notices: &mut Vec<String>,
) -> Result<Vec<Box<dyn Partner>>, StartError> {
    let mut opened: Vec<Option<Box<dyn Partner>>> = Vec::new();
    for device in devices {
        if matches!(device.device.driver, Driver::Vlan(_)) {
            opened.push(None);
            continue;
        }
        let (partner, said) = scoutline_device::open(&device.device)?;
        notices.extend(said.into_iter().map(|notice| notice.0));
        opened.push(Some(partner));
    }
    let mut shared: BTreeMap<usize, vlan::Shared> = BTreeMap::new();
    for (index, device) in devices.iter().enumerate() {
        let Driver::Vlan(options) = &device.device.driver else { continue };
        let parent = usize::from(options.parent.0);
        let on = match shared.entry(parent) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(free) => {
                let partner = opened.get_mut(parent).and_then(Option::take);
                let partner = partner.ok_or_else(|| OpenError::NoParent { name: options.name.clone() })?;
                free.insert(vlan::share(partner))
            }
        };
        opened[parent] = Some(Box::new(on.clone()));
        opened[index] = Some(Box::new(vlan::open(options, on)));
    }
    Ok(opened.into_iter().flatten().collect())
}

/// The addresses on a device.
fn interface_of(
    id: DeviceId,
    device: &DeviceSettings,
    partner: &dyn Partner,
    seed: u64,
) -> Result<Rc<Interface>, StartError> {
    let facts = partner.facts();
    let interface = Interface::new(&InterfaceConfig {
        device: id,
        link_address: facts.link_address,
        address: device.address,
        prefix_len: device.prefix,
        gateway: device.gateway,
        ip6: device.ip6.clone(),
        seed,
        mtu: facts.mtu.min(u32::from(u16::MAX)) as u16,
        trusted_checksums: facts.trusted_checksums,
        offload: offload_of(facts),
    });
    if device.ip6.is_some() && !interface.ip6.enabled {
        return Err(StartError::Ip6 { device: partner.name().to_owned(), mtu: facts.mtu });
    }
    Ok(interface)
}

/// Every partner completes checksums and cuts super-segments, in software if it must.
fn offload_of(facts: &DeviceFacts) -> Offload {
    let longest = facts.offload.max_segment_len - ethernet::HEADER_LEN as u32;
    Offload { checksum: true, tcp_segmentation: Some(longest) }
}

fn socket_module(
    linux_level: Level,
    listeners: &Listeners,
    pool: &Rc<Pool>,
    policy: &Rc<ClassPolicy>,
    outlet: Outlet,
) -> SocketModule {
    SocketModule::new(Rc::clone(listeners), Rc::clone(pool), linux_level, Rc::clone(policy), outlet)
}

fn make_net(
    interface: Rc<Interface>,
    (partner, transmit): (Box<dyn Partner>, TransmitSide),
    settings: &EngineSettings,
    policy: &Rc<ClassPolicy>,
    socket: SocketModule,
    source: &mut Source,
) -> Result<Net, StartError> {
    let tcp = Bindings::new(Rc::clone(policy) as Rc<_>, source.number());
    let udp = Bindings::new(Rc::clone(policy) as Rc<_>, source.number());
    let config = Config {
        receive_buffer: settings.receive_buffer,
        receive_buffer_max: settings.receive_buffer_max.max(Config::default().receive_buffer_max),
        max_transmit_len: MAX_TRANSMIT_LEN,
        // What the ring holds and what lies in files beside it.
        send_buffer: settings.send_buffer.max(settings.send_buffer_max).max(MAX_AHEAD as u32),
        time_wait: settings.time_wait,
        congestion: settings.tcp.congestion,
        ecn: settings.tcp.ecn,
        pacing: settings.tcp.pacing,
        fast_open: settings.tcp.fast_open,
        fast_open_keys: settings.tcp.fast_open_keys,
        timestamps: !settings.tcp.no_timestamps,
        keeps_idle_window: settings.tcp.keeps_idle_window,
        unsent_low_water: settings.tcp.unsent_low_water,
        min_burst_segments: settings.tcp.min_burst_segments.unwrap_or(Config::default().min_burst_segments),
        ..Config::default()
    };
    let net = scoutline_proto::net::Net {
        interface,
        tcp: Tcp::new(Rc::clone(&tcp), Secret::new(source.key()), config),
        udp: Rc::clone(&udp),
    };
    let mut builder =
        net.graph().module(Box::new(socket)).link("SOCKET.tcp", "TCP.up").link("SOCKET.udp", "UDP.up");
    for rule in net.rules() {
        builder = builder.rule(rule);
    }
    let stage_totals = Rc::new(StageTotals::default());
    if settings.measure {
        builder = builder.rule(Box::new(MeasureRule::new(Rc::new(clock::now), Rc::clone(&stage_totals))));
    }
    let graph = builder.build().map_err(|error| StartError::Graph(error.to_string()))?;
    let entry = graph
        .find(scoutline_proto::net::ENTRY)
        .ok_or_else(|| StartError::Graph("no entry module".to_owned()))?;
    Ok(Net {
        device: partner,
        modules: net,
        graph,
        stage_totals,
        entry,
        tcp,
        udp,
        transmit,
        failure: None,
        unwanted: Unwanted::default(),
        flood: Detector::default(),
    })
}
