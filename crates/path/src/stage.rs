//! The stage: what one module contributes to one path (Scout §3.2).

use std::any::Any;

use scoutline_base::{PathId, Time};

use crate::{Account, Attributes, Burst, CreateError, DropReason, FlowKey, Measurements, Message};

/// What is both path- and module-specific, with one interface per direction.
///
/// A stage takes a burst, keeps or changes what concerns it, and leaves in `burst` what goes on in the same
/// direction. What it puts into `turned` goes the other way, starting at its neighbour. Controls that are not its
/// own it leaves in place. A packet that it refuses goes through [`Context::drop_message`], never a panic.
pub trait Stage: Any {
    /// The module's name, as in the graph.
    fn module(&self) -> &'static str;

    /// Called once, device side first, when the whole path is known.
    fn establish(&mut self, _attributes: &mut Attributes) -> Result<(), CreateError> {
        Ok(())
    }

    /// From the device towards the program.
    fn inward(&mut self, burst: &mut Burst, turned: &mut Burst, context: &mut Context<'_>);

    /// From the program towards the device.
    ///
    /// When the path is kicked from the program's end, the burst may be empty: a stage that had stopped early goes
    /// on, and every other has nothing to do.
    fn outward(&mut self, burst: &mut Burst, turned: &mut Burst, context: &mut Context<'_>);

    /// When [`Stage::on_timeout`] wants to be called next.
    fn next_timeout(&self) -> Option<Time> {
        None
    }

    /// A time-out is due. What it gives goes on from here in either direction.
    fn on_timeout(&mut self, _inward: &mut Burst, _outward: &mut Burst, _context: &mut Context<'_>) {}

    /// Facts for people: `ps` and `graph` show them as they are (`("state", "ESTABLISHED")`).
    fn describe(&self, _facts: &mut Vec<(&'static str, String)>) {}

    /// What this stage has cost, when a measuring rule wrapped it.
    fn measurements(&self) -> Option<&Measurements> {
        None
    }

    /// For transformation rules, which take stages apart.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;

    /// For the engine and rules, which look for a stage that they know.
    fn as_any(&self) -> &dyn Any;

    /// See `as_any`.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

/// Consecutive stages of a path, device side first.
pub type Stages = Vec<Box<dyn Stage>>;

/// What a stage may use while it runs: the time, its path's account, and the way out.
pub struct Context<'a> {
    /// The time of this run.
    pub now: Time,
    /// The path that runs.
    pub path: PathId,
    /// Its account: drops, packets and bytes are charged here.
    pub account: &'a mut Account,
    /// The DSCP that its packets leave with ([`Path::set_mark`](crate::Path::set_mark)); the network stage obeys.
    pub mark: Option<u8>,
    /// Messages that left the outermost stage; the device takes them.
    pub out: &'a mut Burst,
    /// How many more messages the device can take now; a long one may count as several. A stage that makes packets
    /// stops at 0 and sets `more`.
    pub transmit_room: usize,
    /// How many more bytes on the wire the device can take now. Small packets without data may go beyond it.
    pub transmit_len: u64,
    /// Bytes on the wire of one message at most. Small ones, and datagrams that cannot be cut, may exceed it.
    pub segment_len: u32,
    /// Set by a stage that stopped early: the path stays ready.
    pub more: bool,
    /// What the engine shall do after this run.
    pub effects: &'a mut Vec<Effect>,
}

impl Context<'_> {
    /// The type-of-service octet that a packet leaves with which has `tos` by itself: ECN stays.
    #[inline]
    pub fn marked(&self, tos: u8) -> u8 {
        self.mark.map_or(tos, |dscp| dscp << 2 | tos & 0b11)
    }

    /// Refuses a message: it is counted under its reason, and its memory returns.
    pub fn drop_message(&mut self, message: Message, reason: DropReason) {
        self.account.on_drop(reason);
        drop(message);
    }
}

/// What a stage asks of the engine. Effects happen in order, after the run that asked.
#[derive(Debug)]
pub enum Effect {
    /// Create a path (a listen path met a SYN). `first` is then given to it as its first inward message.
    Create {
        /// The module at which creation starts.
        module: &'static str,
        /// The invariants of the new path.
        attributes: Attributes,
        /// The message that caused it.
        first: Option<Message>,
    },
    /// This path is finished.
    Destroy,
    /// The handshake of this path's connection is complete: its peer is who it says.
    Established,
    /// This path has nothing left to do but to wait (TIME-WAIT): it may go when its place is needed.
    Spare,
    /// The end of this path has no room: its device may drop what comes of a flow.
    Full {
        /// What there was no room for, counted already. If it came whole, its headers stand in front of its body.
        message: Message,
        /// Until then.
        until: Time,
    },
    /// By the rules, what was asked on this path puts it into another class: what is spent on it next is charged there.
    SetClass {
        /// Its number.
        class: u16,
        /// Requests that were read and are to be counted there.
        requests: u64,
    },
    /// What was asked on this path would have put it into a class that cannot carry it: counted there.
    NotAdmitted {
        /// The number of the class.
        class: u16,
        /// Why not.
        reason: DropReason,
    },
    /// Classify this whole datagram afresh (its fragments have been put together).
    Reclassify(Message),
    /// This came to a listen path behind what asked for a path of this flow: it is that path's, if it could be made.
    Follow(FlowKey, Message),
    /// A listen path does not want this: it is for the path of its flow, if there is one by now, or a stray.
    Stray(FlowKey, Message),
    /// This datagram went out to a group or to everybody: sockets of this machine that want it get it, too. Its data, with
    /// who sent it to whom.
    Loop(Message),
    /// This message, as the program gave it, leaves by another device: by the path of the same socket there.
    Elsewhere(Message),
    /// Tell the path of this flow something (an ICMP error found its cause): queued inward on it, if it exists.
    Notify(FlowKey, crate::Control),
}
