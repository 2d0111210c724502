//! Segments whose bytes are gone when they are to be stored.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use scoutline_path::{Body, Checksum, DropReason, Path, Tail};
use scoutline_ring::{Spans, StreamMemory};

use super::*;

/// Longer than what carries no data.
const HEADERS: u32 = 14 + 20 + 60;

/// A device that keeps what is behind the headers of long packets, and loses it while this says so.
struct Losing(Polled, Rc<Cell<bool>>);

struct Nothing;

impl StreamMemory for Nothing {
    fn spans(&self, _range: Range<u64>) -> Spans {
        Spans::default()
    }
}

impl Partner for Losing {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn facts(&self) -> &DeviceFacts {
        self.0.facts()
    }
    fn pull(&mut self, burst: &mut Burst, limit: usize, now: Time) -> Result<usize, DeviceError> {
        let taken = self.0.pull(burst, limit, now)?;
        for message in burst.iter_mut().filter(|_| self.1.get()) {
            if let Body::Block { range, tail, .. } = &mut message.body
                && range.len() > HEADERS as usize
            {
                let rest = range.len() as u64 - u64::from(HEADERS);
                range.end = range.start + HEADERS;
                *tail = Some(Box::new(Tail { range: 0..rest, memory: Rc::new(Nothing) }));
                message.facts.checksum = Checksum::Verified;
            }
        }
        Ok(taken)
    }
    fn has_input(&self) -> bool {
        self.0.has_input()
    }
    fn push(&mut self, burst: &mut Burst) -> Result<usize, DeviceError> {
        self.0.push(burst)
    }
    fn room(&self) -> usize {
        self.0.room()
    }
    fn poll_fd(&self) -> Option<RawFd> {
        None
    }
    fn next_event(&self) -> Option<Time> {
        self.0.next_event()
    }
    fn counters(&self) -> DeviceCounters {
        self.0.counters()
    }
}

/// The program hears that its connection failed, as its peer does, and reads nothing that never came; also if the peer
/// had finished with it.
#[test]
fn a_program_hears_that_bytes_are_lost() {
    for finishes in [false, true] {
        let mut pair = Pair::new(23, WireConfig::default());
        let (device, other) = wire(23, WireConfig::default());
        pair.client = Host::new([10, 0, 0, 2], other, RINGS);
        let loses = Rc::new(Cell::new(false));
        let settings = EngineSettings {
            devices: vec![device_settings(0, [10, 0, 0, 1])],
            receive_buffer: RINGS,
            send_buffer: RINGS,
            max_paths: 1000,
            spin: Duration::ZERO,
            ..EngineSettings::default()
        };
        let device = Box::new(Losing(Polled(device), Rc::clone(&loses)));
        pair.server = Host::over(device, ProgramFacts::default(), settings);
        let (_, client, server) = pair.established(80);
        pair.client.write(client, &pattern(1_000, 1));
        let mut read = Vec::new();
        pair.until("what is there", |pair| {
            read.extend(pair.server.read(server, usize::MAX));
            read.len() == 1_000
        });
        loses.set(true);
        pair.client.write(client, &pattern(1_000, 2));
        if finishes {
            pair.client.request(client, slot_request::SHUTDOWN);
        }
        pair.until("failed", |pair| {
            pair.server.state(server) & slot_state::FAILED != 0
                && pair.client.state(client) & slot_state::FAILED != 0
        });
        assert_eq!(pair.server.slot(server).error.load(Ordering::Relaxed), libc::ECONNRESET);
        assert_eq!(pair.server.state(server) & slot_state::PEER_FINISHED, 0, "an end that is none");
        assert!(pair.server.read(server, usize::MAX).is_empty(), "of what never came");
        let core = &pair.server.core;
        let living: u32 = core.paths.iter().map(|path: &Path| path.account.drops(DropReason::Lost)).sum();
        let finished: u32 = core.finished.iter().map(|class| class.account.drops(DropReason::Lost)).sum();
        assert_eq!(living + finished, 1);
    }
}
