//! One end of a connection: writes and reads by its plan, and holds what comes against the oracle.

use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::sync::atomic::fence;
use std::time::Duration;

use scoutline_abi::layout::{slot_request as ask, slot_state as is};
use scoutline_base::{Endpoint, Time};

use super::{DECIDED, Next, part};
use crate::model::Socket;
use crate::oracle::{CLIENT, NAME_LEN, Oracle, Outcome, SERVER};
use crate::plan::{Side, Stop};

/// How often an end that is done looks whether all that it wrote has arrived: as SIOCOUTQ is used. Nobody is woken for
/// that.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// See the module.
pub(super) struct Talk {
    /// Which connection; a server learns it from the first bytes.
    pub(super) flow: Option<usize>,
    pub(super) side: usize,
    plan: Option<Side>,
    /// Whom a server has accepted.
    remote: Option<Endpoint>,
    name: Vec<u8>,
    written: u64,
    shut: bool,
    ended: bool,
    may_write: Time,
    may_read: Time,
}

impl Talk {
    pub(super) fn client(flow: usize, plan: Side) -> Talk {
        Talk { flow: Some(flow), side: CLIENT, plan: Some(plan), ..Talk::server_of(None) }
    }

    /// Its SYN waits for the first that is written.
    pub(super) fn write_with_syn(&mut self, socket: Socket<'_>, oracle: &mut Oracle) {
        let (Some(flow), Some(plan)) = (self.flow, self.plan.clone()) else { return };
        let bytes = oracle.to_write(flow, self.side, 0, plan.write as usize);
        let put = socket.put(&bytes, None);
        self.written += put as u64;
        oracle.on_written(flow, self.side, put);
        socket.tell();
    }

    pub(super) fn server(remote: Endpoint) -> Talk {
        Talk::server_of(Some(remote))
    }

    fn server_of(remote: Option<Endpoint>) -> Talk {
        Talk {
            flow: None,
            side: SERVER,
            plan: None,
            remote,
            name: Vec::new(),
            written: 0,
            shut: false,
            ended: false,
            may_write: Time::ZERO,
            may_read: Time::ZERO,
        }
    }

    pub(super) fn look(
        &mut self,
        socket: Socket<'_>,
        now: Time,
        oracle: &mut Oracle,
    ) -> Result<Next, String> {
        if socket.state() & DECIDED == 0 {
            return Ok(Next::Wait);
        }
        if let (Some(flow), CLIENT) = (self.flow, self.side) {
            let slot = socket.slot;
            let end = |address: &scoutline_abi::layout::AtomicAddress,
                       port: &std::sync::atomic::AtomicU32| {
                Endpoint::new(address.load(), port.load(Acquire) as u16)
            };
            let ends =
                (end(&slot.local_address, &slot.local_port), end(&slot.remote_address, &slot.remote_port));
            oracle.flows[flow].ends = Some(ends);
        }
        self.read(socket, now, oracle)?;
        // After the reading: data that came before an error is still there.
        if socket.state() & is::FAILED != 0 {
            return Ok(self.over(oracle, Outcome::Failed(socket.take_error()), false));
        }
        let Some(plan) = self.plan.clone() else {
            // Nobody has said which connection this is, and nobody will.
            return Ok(if self.ended { Next::Close(false) } else { self.until_read(socket, now) });
        };
        self.write(socket, now, &plan, oracle);
        if self.written < plan.bytes {
            return Ok(self.until_either(socket, now));
        }
        match plan.stop {
            Stop::Close => return Ok(self.over(oracle, Outcome::Stopped, false)),
            Stop::Reset => return Ok(self.over(oracle, Outcome::Stopped, true)),
            Stop::Finish => {}
        }
        if !self.shut {
            self.shut = true;
            self.tell_finished(oracle);
            socket.request(ask::SHUTDOWN);
        }
        if !self.ended {
            return Ok(self.until_read(socket, now));
        }
        let slot = socket.slot;
        if slot.send_head.load(Acquire) != slot.send_tail.load(Acquire) {
            return Ok(Next::At(now + LOOK_AGAIN));
        }
        Ok(self.over(oracle, Outcome::Complete, false))
    }

    fn tell_finished(&self, oracle: &mut Oracle) {
        if let Some(flow) = self.flow {
            oracle.on_finished(flow, self.side);
        }
    }

    fn over(&mut self, oracle: &mut Oracle, outcome: Outcome, abort: bool) -> Next {
        if let Some(flow) = self.flow {
            oracle.on_over(flow, self.side, outcome);
        }
        Next::Close(abort)
    }

    /// Reads what may be read now.
    fn read(&mut self, socket: Socket<'_>, now: Time, oracle: &mut Oracle) -> Result<(), String> {
        while !self.ended && now >= self.may_read {
            // The end before the data: what comes with it is seen.
            let finished = socket.state() & is::PEER_FINISHED != 0;
            let (limit, pause) =
                self.plan.as_ref().map_or((NAME_LEN as u32, 0), |plan| (plan.read, plan.read_pause_us));
            let limit =
                if self.flow.is_none() { NAME_LEN as usize - self.name.len() } else { limit as usize };
            let bytes = socket.take(limit, false);
            if bytes.is_empty() {
                if finished && socket.received() == 0 {
                    self.ended = true;
                    if let Some(flow) = self.flow {
                        oracle.on_end(flow, self.side)?;
                    }
                }
                return Ok(());
            }
            match self.flow {
                Some(flow) => oracle.on_read(flow, self.side, &bytes)?,
                None => self.learn(&bytes, oracle)?,
            }
            if pause > 0 {
                self.may_read = now + Duration::from_micros(pause);
            }
        }
        Ok(())
    }

    /// The first bytes of the client's stream.
    fn learn(&mut self, bytes: &[u8], oracle: &mut Oracle) -> Result<(), String> {
        self.name.extend(bytes);
        let Ok(name) = self.name.as_slice().try_into() else { return Ok(()) };
        let Some(flow) = oracle.named(name) else {
            return Err(format!("a stream begins with {:02x?}", self.name));
        };
        let state = &oracle.flows[flow];
        if let Some((client, _)) = state.ends
            && Some(client) != self.remote
        {
            return Err(format!("flow {flow} comes from {:?}, not {client}", self.remote));
        }
        self.flow = Some(flow);
        self.plan = Some(part(&state.plan, SERVER).clone());
        oracle.on_read(flow, SERVER, &name)
    }

    /// Writes what may be written now.
    fn write(&mut self, socket: Socket<'_>, now: Time, plan: &Side, oracle: &mut Oracle) {
        let Some(flow) = self.flow else { return };
        while self.written < plan.bytes && now >= self.may_write {
            let bytes = oracle.to_write(flow, self.side, self.written, plan.write as usize);
            let put = socket.put(&bytes, None);
            if put == 0 {
                return;
            }
            oracle.on_written(flow, self.side, put);
            self.written += put as u64;
            socket.tell();
            if plan.write_pause_us > 0 {
                self.may_write = now + Duration::from_micros(plan.write_pause_us);
            }
        }
    }

    /// The next look when only reading goes on.
    fn until_read(&self, socket: Socket<'_>, now: Time) -> Next {
        let unread = socket.received() > 0 || socket.state() & is::PEER_FINISHED != 0;
        if unread && self.may_read > now { Next::At(self.may_read) } else { Next::Wait }
    }

    /// The next look when there is more to write.
    fn until_either(&self, socket: Socket<'_>, now: Time) -> Next {
        if self.may_write > now {
            return Next::At(self.may_write);
        }
        // The ring is full: register, then look again, or the engine and we miss each other.
        socket.slot.send_wanted.store(1, SeqCst);
        fence(SeqCst);
        if socket.sendable() > 0 && socket.roomy() {
            return Next::At(now);
        }
        self.until_read(socket, now)
    }
}
