//! What the bytes of every stream and datagram are, what has been done with them, and how each connection must end.

use scoutline_base::Endpoint;

use crate::plan::{ChatPlan, FlowPlan, NOBODY_PORT, Plan, Stop};

/// The client's end of a connection, and its stream; the server's is 1.
pub(crate) const CLIENT: usize = 0;
/// See [`CLIENT`].
pub(crate) const SERVER: usize = 1;
/// The first bytes of a client's stream: which connection it is.
pub(crate) const NAME_LEN: u64 = 8;
const NAME: u64 = 0x5c07_711e << 32;
/// Least bytes of a datagram: which one it is.
pub(crate) const DATAGRAM_NAME_LEN: usize = 12;

/// The fourth repetition of a FIN is waited for so long, in seconds: 3, twice as long each time (RFC 6298 §5.5, §5.7).
const LATE_FIN_S: u64 = 24;

/// How one end of a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All written and acknowledged, all read to the end.
    Complete,
    /// Closed or reset as its plan says.
    Stopped,
    /// With this error.
    Failed(i32),
    /// Its program was killed, or its host switched off.
    Killed,
}

/// A connection as far as it has come.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) plan: FlowPlan,
    pub(crate) started: bool,
    /// Something happened that may have ended it: see [`Oracle::disturb`].
    disturbed: bool,
    /// The client's end and the server's, once the client knows.
    pub(crate) ends: Option<(Endpoint, Endpoint)>,
    written: [u64; 2],
    /// Nothing more is written.
    finished: [bool; 2],
    read: [u64; 2],
    pub(crate) outcome: [Option<Outcome>; 2],
}

/// Datagrams as far as they have come: by direction, by number.
struct Chat {
    plan: ChatPlan,
    sent: [Vec<bool>; 2],
    received: [Vec<u32>; 2],
}

/// See the module.
pub(crate) struct Oracle {
    pub(crate) flows: Vec<Flow>,
    chats: Vec<Chat>,
    duplicates: bool,
    /// Questions may remain without an answer.
    silences: bool,
    /// How long TIME-WAIT lasts on each host, in seconds.
    time_waits: [u64; 2],
    /// See [`Oracle::on_stranger_killed`].
    stranger_killed: bool,
}

/// Spreads bits (the finaliser of MurmurHash3).
fn mix(mut value: u64) -> u64 {
    value ^= value >> 33;
    value = value.wrapping_mul(0xff51_afd7_ed55_8ccd);
    value ^= value >> 33;
    value.wrapping_mul(0xc4ce_b9fe_1a85_ec53) ^ value >> 29
}

/// The bytes of a stream from a position on.
fn fill(stream: u64, from: u64, bytes: &mut [u8]) {
    let mut word = 0;
    for (index, byte) in bytes.iter_mut().enumerate() {
        let at = from + index as u64;
        if index == 0 || at.is_multiple_of(8) {
            word = mix((stream << 40) ^ (at / 8));
        }
        *byte = (word >> (at % 8 * 8)) as u8;
    }
}

/// The bytes that one end of a connection writes, from a position on.
fn stream(flow: usize, side: usize, from: u64, bytes: &mut [u8]) {
    fill((flow * 2 + side) as u64, from, bytes);
    if side == CLIENT {
        let name = (NAME | flow as u64).to_le_bytes();
        for (index, byte) in bytes.iter_mut().enumerate().take(NAME_LEN.saturating_sub(from) as usize) {
            *byte = name[from as usize + index];
        }
    }
}

impl Oracle {
    pub(crate) fn new(plan: &Plan) -> Oracle {
        let flow = |plan: &FlowPlan| Flow {
            plan: plan.clone(),
            started: false,
            disturbed: false,
            ends: None,
            written: [0; 2],
            finished: [false; 2],
            read: [0; 2],
            outcome: [None; 2],
        };
        let chat = |plan: &ChatPlan| Chat {
            plan: plan.clone(),
            sent: [vec![false; plan.count as usize], vec![false; plan.count as usize]],
            received: [vec![0; plan.count as usize], vec![0; plan.count as usize]],
        };
        Oracle {
            flows: plan.flows.iter().map(flow).collect(),
            chats: plan.chats.iter().map(chat).collect(),
            duplicates: plan.duplicates(),
            silences: plan.is_silent_at_times(),
            time_waits: plan.hosts.each_ref().map(|host| host.time_wait_s),
            stranger_killed: false,
        }
    }

    /// The next bytes that an end writes.
    pub(crate) fn to_write(&self, flow: usize, side: usize, from: u64, limit: usize) -> Vec<u8> {
        let plan = &self.flows[flow].plan;
        let all = if side == CLIENT { plan.client.bytes } else { plan.server.bytes };
        let mut bytes = vec![0; limit.min((all - from) as usize)];
        stream(flow, side, from, &mut bytes);
        bytes
    }

    /// Which connection a client's stream begins.
    pub(crate) fn named(&self, name: [u8; NAME_LEN as usize]) -> Option<usize> {
        let flow = u64::from_le_bytes(name) ^ NAME;
        self.flows.get(usize::try_from(flow).ok()?).is_some_and(|flow| flow.started).then_some(flow as usize)
    }

    pub(crate) fn on_written(&mut self, flow: usize, side: usize, len: usize) {
        self.flows[flow].written[side] += len as u64;
    }

    pub(crate) fn on_finished(&mut self, flow: usize, side: usize) {
        self.flows[flow].finished[side] = true;
    }

    /// `side` has read these bytes of the other's stream.
    pub(crate) fn on_read(&mut self, flow: usize, side: usize, bytes: &[u8]) -> Result<(), String> {
        let writer = 1 - side;
        let from = self.flows[flow].read[side];
        let mut right = vec![0; bytes.len()];
        stream(flow, writer, from, &mut right);
        if let Some(wrong) = (0..bytes.len()).find(|&index| bytes[index] != right[index]) {
            return Err(format!(
                "flow {flow}: byte {} of stream {writer} is wrong (of {} read at {from})",
                from + wrong as u64,
                bytes.len()
            ));
        }
        let flow_state = &mut self.flows[flow];
        flow_state.read[side] += bytes.len() as u64;
        if flow_state.read[side] > flow_state.written[writer] {
            return Err(format!("flow {flow}: more of stream {writer} is read than was written"));
        }
        Ok(())
    }

    /// `side` has come to the end of the other's stream.
    pub(crate) fn on_end(&mut self, flow: usize, side: usize) -> Result<(), String> {
        let (state, writer) = (&self.flows[flow], 1 - side);
        if state.finished[writer] && state.read[side] == state.written[writer] {
            return Ok(());
        }
        if self.stranger_killed && writer == SERVER && state.written[writer] == 0 && state.read[side] == 0 {
            self.on_over(flow, SERVER, Outcome::Killed);
            return Ok(());
        }
        Err(format!(
            "flow {flow}: stream {writer} ends after {} bytes, of {} written ({})",
            state.read[side],
            state.written[writer],
            if state.finished[writer] { "all" } else { "more to come" }
        ))
    }

    /// A program was killed that had accepted a connection, and not yet read which: that ends before its first byte.
    pub(crate) fn on_stranger_killed(&mut self) {
        self.stranger_killed = true;
    }

    /// One end is over.
    pub(crate) fn on_over(&mut self, flow: usize, side: usize, outcome: Outcome) {
        let state = &mut self.flows[flow];
        state.finished[side] = true;
        state.outcome[side].get_or_insert(outcome);
        // What one end does on purpose, the other may see as an error.
        state.disturbed |= matches!(outcome, Outcome::Stopped | Outcome::Killed);
    }

    /// Something happened that may end connections which are open, and what is under way for them.
    pub(crate) fn disturb(&mut self) {
        for flow in self.flows.iter_mut().filter(|flow| flow.started) {
            flow.disturbed = true;
        }
    }

    /// True when nothing more is to be expected of a connection at its two ends.
    pub(crate) fn is_over(&self, flow: usize) -> bool {
        let state = &self.flows[flow];
        match state.outcome[CLIENT] {
            // The other end may never have been one.
            Some(Outcome::Failed(_)) => true,
            Some(_) => state.outcome[SERVER].is_some() || state.disturbed,
            None => state.disturbed,
        }
    }

    /// For people: what has not ended.
    pub(crate) fn unfinished(&self) -> Vec<String> {
        (0..self.flows.len()).filter(|flow| !self.is_over(*flow)).map(|flow| self.show(flow)).collect()
    }

    /// For people: how far a connection came.
    fn show(&self, flow: usize) -> String {
        let Flow { ends, outcome, written, read, .. } = &self.flows[flow];
        format!("flow {flow} ({ends:?}): {outcome:?}, written {written:?}, read {read:?}")
    }

    /// Whether nothing is expected of a connection any more, so that its ends may be given up: who has lost its peer
    /// without a word may wait for it for ever.
    pub(crate) fn is_given_up(&self, flow: Option<usize>) -> bool {
        flow.is_none_or(|flow| self.flows[flow].disturbed)
    }

    /// RFC 9293 §3.6.1: a FIN that comes again after TIME-WAIT is answered by a reset. So who repeats one finds its
    /// connection reset, with all bytes across, where the peer's TIME-WAIT is shorter than the wait for a repetition.
    fn outlived_time_wait(&self, flow: &Flow) -> bool {
        let reset = Some(Outcome::Failed(libc::ECONNRESET));
        let hosts = [flow.plan.from, 1 - flow.plan.from];
        [(CLIENT, SERVER), (SERVER, CLIENT)].iter().any(|&(gone, repeats)| {
            flow.outcome[gone] == Some(Outcome::Complete)
                && flow.outcome[repeats] == reset
                && self.time_waits[hosts[gone]] < LATE_FIN_S
        })
    }

    /// Whether every connection ended as it had to.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        for (index, flow) in self.flows.iter().enumerate() {
            let wrong = || format!("a connection ended wrongly: {}", self.show(index));
            if flow.disturbed {
                continue;
            }
            let plan = &flow.plan;
            // As on Linux: a neighbour that does not answer three times ends an attempt to connect to it.
            if self.silences
                && flow.outcome[CLIENT] == Some(Outcome::Failed(libc::EHOSTUNREACH))
                && flow.written == [0; 2]
            {
                continue;
            }
            if plan.port == NOBODY_PORT {
                if flow.outcome[CLIENT] != Some(Outcome::Failed(libc::ECONNREFUSED)) {
                    return Err(wrong());
                }
            } else if [plan.client.stop, plan.server.stop] == [Stop::Finish; 2]
                && (flow.outcome != [Some(Outcome::Complete); 2] && !self.outlived_time_wait(flow)
                    || flow.read != [plan.server.bytes, plan.client.bytes])
            {
                return Err(wrong());
            }
        }
        Ok(())
    }

    pub(crate) fn chat_plan(&self, chat: usize) -> &ChatPlan {
        &self.chats[chat].plan
    }

    /// The payload of a datagram. `back`: on its way back.
    pub(crate) fn datagram(&self, chat: usize, number: u32, back: bool) -> Vec<u8> {
        let most = self.chats[chat].plan.size as usize - DATAGRAM_NAME_LEN + 1;
        let len = DATAGRAM_NAME_LEN + mix(u64::from(number) << 8 | chat as u64) as usize % most;
        let mut bytes = vec![0; len];
        fill(1 << 20 | (chat as u64) << 8 | u64::from(back), u64::from(number) * 8, &mut bytes);
        bytes[..4].copy_from_slice(&(chat as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..12].copy_from_slice(&u32::from(back).to_le_bytes());
        bytes
    }

    pub(crate) fn on_datagram_sent(&mut self, chat: usize, number: u32, back: bool) {
        self.chats[chat].sent[usize::from(back)][number as usize] = true;
    }

    /// A datagram came; says which it is.
    pub(crate) fn on_datagram(&mut self, bytes: &[u8], back: bool) -> Result<(usize, u32), String> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let named = word(0).zip(word(4)).filter(|&(chat, number)| {
            self.chats.get(chat as usize).is_some_and(|chat| number < chat.plan.count)
        });
        let Some((chat, number)) = named else {
            return Err(format!("a datagram of {} bytes that nobody sent", bytes.len()));
        };
        let index = chat as usize;
        if *bytes != *self.datagram(index, number, back) {
            return Err(format!("chat {chat}: datagram {number} ({} bytes) is wrong", bytes.len()));
        }
        let (chat, way) = (&mut self.chats[index], usize::from(back));
        if !chat.sent[way][number as usize] {
            return Err(format!("chat {index}: datagram {number} was not sent"));
        }
        let times = &mut chat.received[way][number as usize];
        *times += 1;
        if *times > 1 && !self.duplicates {
            return Err(format!("chat {index}: datagram {number} came {times} times"));
        }
        Ok((index, number))
    }
}
