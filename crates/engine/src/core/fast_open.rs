//! Fast open (RFC 7413) as programs ask for it: options of listening sockets, and what goes with a SYN.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use scoutline_abi::layout::{Call, fast_open, slot_kind, slot_option, slot_state};
use scoutline_base::{Endpoint, Time};
use scoutline_path::{Attributes, Name, Value};
use scoutline_proto::tcp::fast_open::{Keys, Policy, Start};
use scoutline_proto::tcp::module::FAST_OPEN;

use super::Core;
use super::calls::Errno;
use crate::socket::{ACCEPT_RING, SocketEnd};

impl Core {
    /// How an active connection begins whose program asks for fast open.
    pub(super) fn fast_start(
        &self,
        end: &SocketEnd,
        net: usize,
        (local, remote): (Endpoint, Endpoint),
        asked: u64,
        now: Time,
    ) -> Result<Option<Start>, Errno> {
        if asked == 0 {
            return Ok(None);
        }
        let segment = Some(u64::from(end.tuning.get().max_segment)).filter(|&most| most != 0);
        let (tcp, ends) = (&self.nets[net].modules.tcp, (local.address, remote.address));
        match tcp.fast_start(self.nets[net].interface(), ends, segment, now) {
            Some(start) => Ok(Some(Start { waits: asked != fast_open::NO_DATA && start.room > 0, ..start })),
            None if asked == fast_open::OPTION => Ok(None),
            None => Err(libc::EOPNOTSUPP),
        }
    }

    pub(super) fn set_fast_open(&self, end: &Rc<SocketEnd>, option: u64, value: u64) -> Result<i32, Errno> {
        if end.kind != slot_kind::STREAM {
            return Err(libc::ENOPROTOOPT);
        }
        let queue = end.fast_open.get_or_init(Rc::default);
        match option {
            // As Linux: no more than may wait to be accepted.
            slot_option::FAST_OPEN => queue.limit.set(value.min(u64::from(ACCEPT_RING / 4)) as u32),
            slot_option::FAST_OPEN_NO_COOKIE => queue.needs_no_cookie.set(value != 0),
            _ if self.settings.tcp.fast_open.contains(Policy::CLIENT) => {}
            _ => return Err(libc::EOPNOTSUPP),
        }
        Ok(0)
    }

    pub(super) fn set_fast_open_key(end: &SocketEnd, call: &Call) {
        let word = |index: usize| call.arguments[index].load(Ordering::Relaxed);
        let before = key(word(1), call.more.load(Ordering::Relaxed));
        let keys = Keys::new(key(word(2), word(3)), Some(before).filter(|key| *key != [0; 16]));
        end.fast_open.get_or_init(Rc::default).keys.set(Some(keys));
    }

    pub(super) fn tell_fast_open(&self, end: &SocketEnd, option: u64, call: &Call) -> Result<i32, Errno> {
        let queue = end.fast_open.get();
        match option {
            slot_option::FAST_OPEN => Ok(queue.map_or(0, |queue| queue.limit.get()) as i32),
            slot_option::FAST_OPEN_NO_COOKIE => {
                Ok(queue.is_some_and(|queue| queue.needs_no_cookie.get()).into())
            }
            slot_option::FAST_OPEN_KEY => {
                let own = queue.and_then(|queue| queue.keys.get());
                let all = self.nets.first().map(|net| net.modules.tcp.fast_open_keys());
                let (primary, before) = own.or(all).ok_or(libc::ENOPROTOOPT)?.words();
                let words = [primary, before.unwrap_or_default()].concat();
                for (cell, word) in call.arguments.iter().zip(words) {
                    cell.store(word, Ordering::Relaxed);
                }
                Ok(if before.is_some() { 32 } else { 16 })
            }
            _ => Err(libc::ENOPROTOOPT),
        }
    }
}

/// An active connection is to begin so; how much its SYN takes of what is written first, if it waits for that.
pub(super) fn begin_fast(end: &SocketEnd, start: Start, attributes: &mut Attributes) -> u32 {
    attributes.set(Name::Other(FAST_OPEN), Value::Any(Rc::new(start)));
    if !start.waits {
        return 0;
    }
    end.shared().mtu.store(start.room, Ordering::Relaxed);
    end.add_state(slot_state::FAST_OPEN);
    start.room
}

fn key(first: u64, second: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&first.to_ne_bytes());
    key[8..].copy_from_slice(&second.to_ne_bytes());
    key
}
