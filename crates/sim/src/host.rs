//! A simulated host: a whole engine over observed wires, with its program; or a router, without one. It can be switched
//! off and starts again knowing nothing.

use std::cell::RefCell;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use scoutline_abi::Region;
use scoutline_abi::api::{Answer, Request, Stat};
use scoutline_base::{DeviceId, Time};
use scoutline_device::Partner;
use scoutline_engine::{
    ClassSettings, Command, DeviceSettings, Driven, EngineSettings, Forward, Host6Config, Pacing, RegionId,
    TcpSettings,
};
use scoutline_path::Burst;
use scoutline_sched::Level;
use scoutline_sched::transmit::BitRate;

use crate::model::{self, End};
use crate::oracle::Oracle;
use crate::plan::{DUAL_PORT, HostPlan};
use crate::program::Program;
use crate::shared::Shared;
use crate::tap::Tap;

/// The router's number.
pub(crate) const ROUTER: usize = 2;
const PREFIX: u8 = 24;
/// Classes of their own get at most this, where they get a rate.
const CLASS_RATE: BitRate = BitRate::new(5_000_000);

/// See the module.
pub(crate) struct Host {
    pub(crate) number: usize,
    plan: Option<HostPlan>,
    routed: bool,
    seed: u64,
    ends: Vec<End>,
    shared: Rc<Shared>,
    oracle: Rc<RefCell<Oracle>>,
    pub(crate) engine: Option<Driven>,
    pub(crate) program: Option<Program>,
    /// Regions of programs that were killed: their memory has to return.
    pub(crate) graves: Vec<Arc<Region>>,
    /// Its classes are not those that it started with.
    pub(crate) has_changed_classes: bool,
    /// Changes of classes that have not been confirmed.
    unconfirmed: Vec<Receiver<Answer>>,
    /// When it is switched on again.
    pub(crate) up_at: Option<Time>,
    /// How often it was switched on.
    pub(crate) starts: u64,
    regions: u32,
    serves: bool,
}

/// The address of a host (0 or 1) in IPv4.
pub(crate) fn address4(host: usize, routed: bool) -> Ipv4Addr {
    if routed { Ipv4Addr::new(10, 0, host as u8, 1) } else { Ipv4Addr::new(10, 0, 0, host as u8 + 1) }
}

/// And in IPv6.
pub(crate) fn address6(host: usize, routed: bool) -> Ipv6Addr {
    let network = if routed { host as u16 } else { 0 };
    Ipv6Addr::new(0x2001, 0xdb8, network, 0, 0, 0, 0, host as u16 + 1)
}

/// The router's on the link of this host.
fn gateway6(host: usize) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, host as u16, 0, 0, 0, 0, 0xfe)
}

fn ip6(address: Ipv6Addr, gateway: Option<Ipv6Addr>) -> Host6Config {
    Host6Config { addresses: vec![(address, 64)], gateway, autoconfigure: false }
}

/// Sets of classes to change between.
fn classes(number: u8) -> Vec<ClassSettings> {
    let web = ClassSettings { local_ports: vec![DUAL_PORT..=DUAL_PORT], ..ClassSettings::new("web") };
    let all = ClassSettings::new("default");
    match number {
        0 => vec![all],
        1 => {
            let (level, listen_level) = (Level::Priority(2), Level::Priority(3));
            vec![ClassSettings { level, listen_level, queue_packets: Some(32), ..web }, all]
        }
        2 => vec![ClassSettings { level: Level::Idle, ..web }, all],
        _ => {
            let slow =
                ClassSettings { remote_ports: vec![DUAL_PORT..=DUAL_PORT], ..ClassSettings::new("slow") };
            vec![
                ClassSettings { rate: Some(CLASS_RATE), ..slow },
                ClassSettings { mark: Some(10), ..web },
                all,
            ]
        }
    }
}

impl Host {
    /// A host that is off. `plan`: `None` for the router.
    pub(crate) fn new(
        number: usize,
        plan: Option<HostPlan>,
        routed: bool,
        seed: u64,
        ends: Vec<End>,
        (shared, oracle): (Rc<Shared>, Rc<RefCell<Oracle>>),
    ) -> Host {
        Host {
            number,
            plan,
            routed,
            seed,
            ends,
            shared,
            oracle,
            engine: None,
            program: None,
            graves: Vec::new(),
            has_changed_classes: false,
            unconfirmed: Vec::new(),
            up_at: Some(Time::ZERO),
            starts: 0,
            regions: 0,
            serves: true,
        }
    }

    fn settings(&self) -> EngineSettings {
        let gateway = self.routed.then(|| Ipv4Addr::new(10, 0, self.number as u8, 254));
        let mut settings = EngineSettings {
            max_paths: 1000,
            spin: Duration::ZERO,
            extension: None,
            seed: Some(self.seed.wrapping_add(self.starts << 32 | self.number as u64)),
            ..EngineSettings::default()
        };
        let Some(plan) = &self.plan else {
            let at = |id: u16| DeviceSettings {
                ip6: Some(ip6(gateway6(usize::from(id)), None)),
                ..model::device(id, Ipv4Addr::new(10, 0, id as u8, 254), PREFIX, None)
            };
            settings.devices = vec![at(0), at(1)];
            let way = |from, to| Forward { from: DeviceId(from), to: DeviceId(to) };
            settings.forwards = vec![way(0, 1), way(1, 0)];
            return settings;
        };
        let mut device = model::device(0, address4(self.number, self.routed), PREFIX, gateway);
        let gateway = self.routed.then(|| gateway6(self.number));
        device.ip6 = Some(ip6(address6(self.number, self.routed), gateway));
        device.rate = plan.rate_kbit.map(|rate| BitRate::new(rate * 1000));
        settings.devices = vec![device];
        settings.receive_buffer = plan.receive_buffer;
        settings.send_buffer = plan.send_buffer;
        settings.time_wait = Duration::from_secs(plan.time_wait_s);
        settings.tcp = TcpSettings {
            pacing: if plan.pacing { Pacing::Always } else { Pacing::default() },
            fast_open: scoutline_engine::FastOpen::CLIENT | scoutline_engine::FastOpen::SERVER,
            ..TcpSettings::default()
        };
        if plan.ecn {
            settings.tcp.ecn = scoutline_engine::Ecn::Offer;
        }
        settings
    }

    /// Switches it on.
    pub(crate) fn start(&mut self, now: Time) {
        self.up_at = None;
        self.shared.note(self.number, format_args!("starts"), &[20]);
        // What came while it was off is gone.
        for end in &mut self.ends {
            while end.pull(&mut Burst::new(), 64, now).is_ok_and(|taken| taken > 0) {}
        }
        let tap = |end: &End| -> Box<dyn Partner> {
            Box::new(Tap::new(end.clone(), self.number, Rc::clone(&self.shared)))
        };
        let devices = self.ends.iter().map(tap).collect();
        let mut engine = Driven::new(self.settings(), devices, now).expect("settings that fit the graph");
        self.starts += 1;
        if self.plan.is_some() {
            self.program = Some(self.new_program(&mut engine, now));
        }
        self.engine = Some(engine);
    }

    fn new_program(&mut self, engine: &mut Driven, now: Time) -> Program {
        self.regions += 1;
        let id = RegionId(self.regions);
        let region = model::attach(engine, id, "program", now);
        let both = (Rc::clone(&self.shared), Rc::clone(&self.oracle));
        let mut program = Program::new((id, region), self.number, both.0, both.1);
        if self.serves {
            program.serve(engine, now);
        }
        program
    }

    /// Switches it off: all is gone, and nobody is told unless it is done in order.
    pub(crate) fn power_off(&mut self, orderly: bool, up_at: Time, now: Time) {
        self.shared.note(self.number, format_args!("off (orderly: {orderly})"), &[21]);
        if let Some(engine) = self.engine.as_mut().filter(|_| orderly) {
            engine.stop(now);
        }
        if let Some(program) = self.program.take() {
            program.on_killed();
        }
        self.engine = None;
        self.graves.clear();
        self.unconfirmed.clear();
        self.has_changed_classes = false;
        self.up_at = Some(up_at);
    }

    /// The program is killed, and another one starts.
    pub(crate) fn kill_program(&mut self, now: Time) {
        let (Some(mut engine), Some(program)) = (self.engine.take(), self.program.take()) else { return };
        self.shared.note(self.number, format_args!("the program is killed"), &[22]);
        program.on_killed();
        engine.obey(Command::ProcessGone { region: program.id, process: 0 }, now);
        engine.obey(Command::RemoveRegion(program.id), now);
        engine.settle(now);
        self.graves.push(program.region);
        self.program = Some(self.new_program(&mut engine, now));
        self.engine = Some(engine);
    }

    /// Closes what listens, and opens it again unless the run is over.
    pub(crate) fn relisten(&mut self, now: Time) {
        let (Some(engine), Some(program)) = (&mut self.engine, &mut self.program) else { return };
        program.close_services();
        engine.settle(now);
        if self.serves {
            program.serve(engine, now);
        }
    }

    /// From now on nothing is served.
    pub(crate) fn retire(&mut self, now: Time) {
        self.serves = false;
        self.relisten(now);
    }

    pub(crate) fn set_classes(&mut self, number: u8, now: Time) {
        let Some(engine) = &mut self.engine else { return };
        self.shared.note(self.number, format_args!("classes {number}"), &[23, u64::from(number)]);
        let (sender, receiver) = channel();
        engine.obey(Command::SetClasses(classes(number), sender), now);
        self.unconfirmed.push(receiver);
        self.has_changed_classes = true;
    }

    /// Does what there is to do now; true if there was something for the program.
    pub(crate) fn settle(&mut self, now: Time) -> bool {
        let Some(engine) = &mut self.engine else { return false };
        engine.settle(now);
        self.program.as_mut().is_some_and(|program| program.step(engine, now))
    }

    /// When it has something to do again.
    pub(crate) fn next_time(&self, now: Time) -> Option<Time> {
        let engine = self.engine.as_ref().and_then(|engine| engine.next_timeout(now));
        let program = self.program.as_ref().and_then(Program::next_time);
        [engine, program, self.up_at].into_iter().flatten().min()
    }

    /// Its statistics, while it is on.
    pub(crate) fn stat(&self, now: Time) -> Option<Stat> {
        match self.engine.as_ref()?.query(&Request::Stat, now) {
            Answer::Stat(stat) => Some(stat),
            _ => None,
        }
    }

    /// Changes of classes that the engine has not confirmed.
    pub(crate) fn unconfirmed(&mut self) -> usize {
        self.unconfirmed.retain(|receiver| !matches!(receiver.try_recv(), Ok(Answer::Done)));
        self.unconfirmed.len()
    }
}
