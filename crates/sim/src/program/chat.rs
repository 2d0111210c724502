//! Datagrams: sent by plan, sent back by the other host's program, each held against the oracle.

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use scoutline_abi::datagram::{HEADER_LEN, Record};
use scoutline_base::{Address, Time};

use super::Next;
use crate::model::Socket;
use crate::oracle::Oracle;
use crate::plan::ECHO_PORT;

/// How long an answer is waited for, after the last datagram.
const PATIENCE: Duration = Duration::from_secs(2);

/// The asking end.
pub(super) struct Chat {
    chat: usize,
    /// Where to; `None`: the socket is connected.
    to: Option<Address>,
    count: u32,
    gap: Duration,
    next: u32,
    may_send: Time,
}

impl Chat {
    /// Opens one; `connect` connects its socket, or binds it.
    pub(super) fn open(
        chat: usize,
        to: Address,
        oracle: &Oracle,
        connect: impl FnOnce(bool) -> Result<u32, i32>,
    ) -> Result<Chat, i32> {
        let plan = oracle.chat_plan(chat);
        connect(plan.connected)?;
        Ok(Chat {
            chat,
            to: (!plan.connected).then_some(to),
            count: plan.count,
            gap: Duration::from_micros(plan.gap_us),
            next: 0,
            may_send: Time::ZERO,
        })
    }

    pub(super) fn look(
        &mut self,
        socket: Socket<'_>,
        now: Time,
        oracle: &mut Oracle,
    ) -> Result<Next, String> {
        // Of an error (nobody listens just now) the socket takes no harm.
        socket.take_error();
        while let Some((_, bytes)) = receive(socket)? {
            oracle.on_datagram(&bytes, true)?;
        }
        while self.next < self.count && now >= self.may_send {
            let bytes = oracle.datagram(self.chat, self.next, false);
            let (address, port) = self.to.map_or((Address::UNSPECIFIED_V4, 0), |to| (to, ECHO_PORT));
            if send(socket, address, port, &bytes) {
                oracle.on_datagram_sent(self.chat, self.next, false);
            }
            self.next += 1;
            self.may_send = now + self.gap;
        }
        if self.next < self.count {
            return Ok(Next::At(self.may_send));
        }
        let until = self.may_send + PATIENCE;
        Ok(if now >= until { Next::Close(false) } else { Next::At(until) })
    }
}

/// Sends back what has come.
pub(super) fn echo(socket: Socket<'_>, oracle: &mut Oracle) -> Result<(), String> {
    socket.take_error();
    while let Some((from, bytes)) = receive(socket)? {
        let (chat, number) = oracle.on_datagram(&bytes, false)?;
        let back = oracle.datagram(chat, number, true);
        if send(socket, from.address, from.port, &back) {
            oracle.on_datagram_sent(chat, number, true);
        }
    }
    Ok(())
}

/// Takes the datagram in front.
fn receive(socket: Socket<'_>) -> Result<Option<(Record, Vec<u8>)>, String> {
    let held = socket.received();
    if held == 0 {
        return Ok(None);
    }
    let head = socket.slot.receive_head.load(Relaxed);
    let header: [u8; HEADER_LEN] = socket.copy_out(head, HEADER_LEN).try_into().expect("a header");
    let record = Record::from_bytes(header);
    let whole = Record::ring_len(record.len as usize);
    if whole > held {
        return Err(format!("a datagram of {} bytes in {held}", record.len));
    }
    let bytes = socket.copy_out(head + HEADER_LEN as u64, record.len as usize);
    socket.slot.receive_head.store(head + whole, Release);
    Ok(Some((record, bytes)))
}

/// Puts a datagram into the send ring, if there is room.
fn send(socket: Socket<'_>, address: Address, port: u16, payload: &[u8]) -> bool {
    let mut bytes =
        Record { len: payload.len() as u32, address, port, ..Record::default() }.to_bytes().to_vec();
    bytes.extend(payload);
    bytes.resize(Record::ring_len(payload.len()) as usize, 0);
    let fits = socket.sendable() >= bytes.len() as u64;
    if fits {
        socket.put(&bytes, None);
        socket.tell();
    }
    fits
}
