//! A plan out of a seed.

use scoutline_base::Random;

use super::{
    ChatPlan, DUAL_PORT, Event, FlowPlan, HostPlan, NOBODY_PORT, Plan, Side, Stop, V4_PORT, Weather, What,
};

/// Wires are fair from then on, at the latest: well before connections give up.
const LAST_FAULT_MS: u64 = 20_000;
/// A wire that carries nothing, or nothing long, does so for so long at most.
const LONGEST_BLACKOUT_MS: u64 = 5_000;
/// How long the pauses of one slow reader or writer may add up to.
const LONGEST_PAUSES_US: u64 = 20_000_000;
/// Apart from the generators of wires and engines, which begin with the seed itself.
const STREAM: u64 = 0x5c0 << 48;

struct Draw(Random);

impl Plan {
    /// The plan of a seed.
    pub fn draw(seed: u64) -> Plan {
        let mut draw = Draw(Random::new(seed ^ STREAM));
        let router = draw.one_in(4);
        let whole = draw.one_in(3);
        let links = if router { 2 } else { 1 };
        let hosts = [draw.host(), draw.host()];
        let weather = (0..links).flat_map(|link| draw.weathers(link)).collect();
        let flows = (0..draw.between(1, 8)).map(|_| draw.flow()).collect();
        let chats = (0..draw.between(0, 2)).map(|_| draw.chat()).collect();
        let events = (0..draw.between(0, 3)).map(|_| draw.event()).collect();
        let mut plan = Plan { seed, router, whole, hosts, weather, flows, chats, events };
        if plan.may_fast_open() && draw.one_in(2) {
            plan.flows.iter_mut().for_each(|flow| flow.fast_open = draw.one_in(2));
        }
        plan
    }
}

impl Draw {
    fn one_in(&mut self, n: u32) -> bool {
        self.0.below(n) == 0
    }

    /// Both ends included.
    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + u64::from(self.0.below((most - least + 1) as u32))
    }

    /// Below 2^`most_bits`, every number of bits as likely.
    fn size(&mut self, most_bits: u64) -> u64 {
        let bits = self.between(0, most_bits);
        self.0.next_u64() & ((1 << bits) - 1)
    }

    fn part(&mut self, most: f64) -> f64 {
        most * f64::from(self.0.below(1000)) / 1000.0
    }

    fn host(&mut self) -> HostPlan {
        HostPlan {
            receive_buffer: 1 << self.between(12, 18),
            send_buffer: 1 << self.between(12, 18),
            rate_kbit: self.one_in(4).then(|| self.between(2_000, 100_000)),
            pacing: self.one_in(6),
            ecn: self.one_in(3),
            time_wait_s: self.between(1, 60),
        }
    }

    /// Up to three kinds of bad weather, and a fair end.
    fn weathers(&mut self, link: usize) -> Vec<Weather> {
        let delay_us = self.between(1, 60_000);
        let mut all = Vec::new();
        let mut at_ms = 0;
        for _ in 0..self.between(0, 3) {
            let weather = Weather { at_ms, ..self.weather(link, delay_us) };
            let is_blackout = weather.loss >= 1.0 || weather.mtu < 1500;
            let longest = if is_blackout { LONGEST_BLACKOUT_MS } else { LAST_FAULT_MS / 3 };
            at_ms = (at_ms + self.between(1, longest)).min(LAST_FAULT_MS);
            all.push(weather);
        }
        all.push(Weather::fair(at_ms, link, delay_us));
        all
    }

    fn weather(&mut self, link: usize, delay_us: u64) -> Weather {
        let mut weather = Weather::fair(0, link, delay_us);
        if self.one_in(10) {
            weather.loss = 1.0;
            return weather;
        }
        if self.one_in(2) {
            weather.loss = self.part(0.2);
        }
        if self.one_in(2) {
            weather.reorder = self.part(0.3);
        }
        if self.one_in(3) {
            weather.duplicate = self.part(0.1);
        }
        if self.one_in(3) {
            weather.corrupt = self.part(0.05);
        }
        if self.one_in(2) {
            weather.jitter_us = self.between(0, 20_000);
        }
        if self.one_in(3) {
            weather.rate_kbit = Some(self.between(500, 50_000));
            weather.queue = self.between(5, 100) as usize;
        }
        if self.one_in(4) {
            weather.mtu = self.between(600, 1500) as u32;
        }
        weather
    }

    fn flow(&mut self) -> FlowPlan {
        let ip6 = self.one_in(2);
        let port = match self.0.below(8) {
            0 => NOBODY_PORT,
            1..=3 if !ip6 => V4_PORT,
            _ => DUAL_PORT,
        };
        FlowPlan {
            at_ms: self.between(0, 6_000),
            from: self.0.below(2) as usize,
            ip6,
            port,
            no_delay: self.one_in(2),
            fast_open: false,
            congestion: if self.one_in(3) { self.between(1, 4) as u8 } else { 0 },
            priority: self.one_in(4).then(|| self.between(0, 2) as u8),
            client: self.side(),
            server: self.side(),
        }
    }

    fn side(&mut self) -> Side {
        // The first bytes say which connection it is.
        let bytes = 8 + self.size(18);
        let (write, read) = (1 + self.size(17) as u32, 1 + self.size(17) as u32);
        let write_pause_us = self.pause(bytes, write);
        let read_pause_us = self.pause(1 << 18, read);
        let stop = match self.0.below(10) {
            0 => Stop::Close,
            1 => Stop::Reset,
            _ => Stop::Finish,
        };
        Side { bytes, write, write_pause_us, read, read_pause_us, stop }
    }

    /// A pause after each `chunk` of `bytes`, not too long in all; mostly none.
    fn pause(&mut self, bytes: u64, chunk: u32) -> u64 {
        if !self.one_in(3) {
            return 0;
        }
        let times = bytes / u64::from(chunk) + 1;
        self.between(1, 300_000).min(LONGEST_PAUSES_US / times)
    }

    fn chat(&mut self) -> ChatPlan {
        ChatPlan {
            at_ms: self.between(0, 6_000),
            from: self.0.below(2) as usize,
            ip6: self.one_in(2),
            count: self.between(1, 30) as u32,
            size: 12 + self.size(13) as u32,
            gap_us: self.between(0, 100_000),
            connected: self.one_in(2),
        }
    }

    fn event(&mut self) -> Event {
        let what = match self.0.below(8) {
            0 => What::Kill,
            1 => What::Restart { down_ms: self.between(0, 3_000), orderly: self.one_in(2) },
            2 => What::Relisten,
            _ => What::Classes(self.between(0, 3) as u8),
        };
        Event { at_ms: self.between(0, 12_000), host: self.0.below(2) as usize, what }
    }
}
