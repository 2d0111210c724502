//! `SOL_SCOUT`: what a program asks of the path of a socket (`scoutline.h`). The engine decides; nothing is kept here.

use std::ffi::{c_int, c_void};

use libc::socklen_t;
use scoutline_abi::layout::{CLASS_NAME_LEN, call_op, slot_option};
use scoutline_scout::{
    CLASS_MAX, SO_BACKGROUND, SO_SCOUT_CLASS, SO_SCOUT_DEADLINE, SO_SCOUT_EXTEND, SO_SCOUT_PRIORITY,
    SO_SCOUT_WEIGHT,
};

use crate::call;
use crate::options::{give, tell, value};
use crate::real::err;
use crate::slot::Socket;

const _: () = assert!(CLASS_MAX == CLASS_NAME_LEN);

/// `setsockopt` of this level on a socket of ours.
pub(crate) fn set(socket: Socket, name: c_int, from: *const c_void, len: socklen_t) -> Result<isize, isize> {
    let option = match name {
        SO_SCOUT_CLASS => return set_class(socket, from, len),
        SO_SCOUT_PRIORITY => slot_option::PRIORITY,
        SO_BACKGROUND => slot_option::BACKGROUND,
        SO_SCOUT_EXTEND => slot_option::EXTEND,
        SO_SCOUT_DEADLINE => slot_option::DEADLINE,
        SO_SCOUT_WEIGHT => slot_option::WEIGHT,
        _ => return Err(err(libc::ENOPROTOOPT)),
    };
    let given: c_int = value(from, len)?;
    // The engine knows the ranges.
    let as_class = given == -1 && name != SO_BACKGROUND;
    if given < 0 && !as_class {
        return Err(err(libc::EINVAL));
    }
    Ok(tell(socket, option, u64::try_from(given).unwrap_or(slot_option::AS_CLASS)))
}

fn set_class(socket: Socket, from: *const c_void, len: socklen_t) -> Result<isize, isize> {
    if from.is_null() && len > 0 {
        return Err(err(libc::EFAULT));
    }
    let given = if len == 0 {
        &[]
    } else {
        // What is longer is no name, wherever it ends.
        let len = (len as usize).min(CLASS_NAME_LEN + 1);
        // SAFETY: the program vouches for its bytes.
        unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len) }
    };
    let end = given.iter().position(|&byte| byte == 0).unwrap_or(given.len());
    let mut name = [0; CLASS_NAME_LEN];
    name.get_mut(..end).ok_or(err(libc::EINVAL))?.copy_from_slice(&given[..end]);
    Ok(call::call(call_op::SET_CLASS, socket.index, words(&name)).min(0) as isize)
}

/// `getsockopt` of this level on a socket of ours.
pub(crate) fn get(socket: Socket, name: c_int, to: *mut c_void, len: *mut socklen_t) -> isize {
    let option = match name {
        SO_SCOUT_CLASS => slot_option::CLASS,
        SO_SCOUT_PRIORITY => slot_option::PRIORITY,
        SO_BACKGROUND => slot_option::BACKGROUND,
        SO_SCOUT_EXTEND => slot_option::EXTEND,
        SO_SCOUT_DEADLINE => slot_option::DEADLINE,
        SO_SCOUT_WEIGHT => slot_option::WEIGHT,
        _ => return err(libc::ENOPROTOOPT),
    };
    let (result, arguments) = call::call_for(call_op::GET_OPTION, socket.index, [option, 0, 0, 0]);
    if result < 0 {
        return result as isize;
    }
    match name {
        SO_SCOUT_CLASS => {
            let mut name = [0; CLASS_NAME_LEN + 1];
            for (to, word) in name.chunks_exact_mut(8).zip(arguments) {
                to.copy_from_slice(&word.to_ne_bytes());
            }
            give(name, to, len)
        }
        SO_SCOUT_DEADLINE | SO_SCOUT_WEIGHT if result == slot_option::NONE => give::<c_int>(-1, to, len),
        SO_SCOUT_PRIORITY if result == slot_option::NO_PRIORITY => give::<c_int>(-1, to, len),
        _ => give::<c_int>(result, to, len),
    }
}

fn words(name: &[u8; CLASS_NAME_LEN]) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(name.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
    }
    words
}
