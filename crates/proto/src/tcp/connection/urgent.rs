//! Urgent data (RFC 9293 §3.8.5, §3.10.4, §3.10.7.4 sixth), as Linux has it: the pointer points to the byte behind the
//! last urgent one, whatever the standard says (RFC 6093 §3.1), and programs get that one byte out of band.
//!
//! A connection has this part once urgent data was sent or came.

use scoutline_wire::tcp::{Flags, Header};

use super::Connection;
use crate::tcp::segment::{Events, Input};

/// Where urgent data ends in both directions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Urgent {
    /// RFC 9293 SND.UP as a unit: what is before it is urgent. 0: nothing ever was.
    up: u64,
    /// RFC 9293 RCV.UP: stream position of the peer's urgent byte.
    mark: Option<u64>,
}

impl Connection {
    /// `send` with MSG_OOB: what is written up to this stream position is urgent.
    pub fn set_urgent(&mut self, position: u64) {
        let urgent = self.urgent.get_or_insert_default();
        urgent.up = urgent.up.max(position.saturating_add(1));
    }

    /// Stream position of the last urgent byte that the peer told of. It may not have come yet.
    pub fn urgent_mark(&self) -> Option<u64> {
        self.urgent.as_ref()?.mark
    }

    /// Something urgent is not acknowledged: it waits for nothing but windows.
    #[inline]
    pub(super) fn is_urgent(&self) -> bool {
        self.urgent.as_ref().is_some_and(|urgent| urgent.up > self.send.una)
    }

    /// RFC 9293 §3.7.1: every segment before the end of urgent data tells of it.
    #[inline(never)]
    pub(super) fn mark_urgent(&self, unit: u64, header: &mut Header) {
        if let Some(urgent) = &self.urgent
            && urgent.up > self.send.una
            && urgent.up > unit
        {
            // What is farther than the field can say is told when it is nearer.
            header.urgent = (urgent.up - unit).min(u64::from(u16::MAX)) as u16;
            header.flags |= Flags::URG;
        }
    }

    /// RFC 9293 §3.10.7.4, sixth: the segment, `offset` from RCV.NXT, says where the peer's urgent data ends.
    pub(super) fn take_urgent(&mut self, header: &Header, offset: i64, input: &mut Input) {
        let last = i64::from(header.urgent).max(1) - 1;
        let Some(mark) = self.receive.next.checked_add_signed(offset + last) else { return };
        let urgent = self.urgent.get_or_insert_default();
        // Linux: not one that has come before, and not one before the last that is still to be read.
        if mark >= self.receive.next && urgent.mark.is_none_or(|before| mark > before) {
            urgent.mark = Some(mark);
            input.events |= Events::URGENT;
        }
    }
}
