//! Our stack as a plug-in for google/packetdrill: `--so_filename=libscoutline_packetdrill.so --so_flags=FLAGS`.
//!
//! packetdrill runs scripts against whatever fills its table of functions ([`interface`]): the socket calls, a device
//! that takes and gives packets of the network layer, and a clock. Behind the table stands the whole engine in virtual
//! time with a model program, as our own packet scripts have it (`scoutline_conformance::stack::ours`): no device, no
//! privilege, and a script of minutes takes milliseconds.
//!
//! ```text
//!  packetdrill ── table ──► calls.rs ── orders ──► host.rs (own thread) ──► engine (Driven)
//!    main thread: usleep, netdev_*, calls          plugin.rs: who waits for whom
//!    call thread: calls that block
//! ```
//! The clock moves only when packetdrill asks for it: by `usleep`, while `netdev_receive` waits for a packet, and by a
//! microsecond with each `gettimeofday`, because packetdrill spins on that before each event.
//!
//! What the interface leaves out goes past the table to the C library: `sendfile`, and the `getsockopt` of scripts'
//! code blocks. With `LD_PRELOAD=libscoutline_packetdrill.so` beside the two options those come here too ([`preload`]).
#![allow(unsafe_code)] // a table of C functions, and memory of whoever calls them; each block says why it holds

mod calls;
pub mod flags;
mod host;
pub mod interface;
mod memory;
mod neighbours;
mod plugin;
pub mod preload;
mod sysctls;

use std::ffi::{CStr, c_char};
use std::process::exit;

use flags::Flags;
use interface::Interface;
use plugin::Plugin;

/// What packetdrill looks up and calls once, before the script's own set-up: fills its table.
///
/// # Safety
/// `flags` is null or a C string, `table` an [`Interface`] that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(flags: *const c_char, table: *mut Interface) {
    let text = if flags.is_null() {
        String::new()
    } else {
        // SAFETY: not null, so a C string.
        unsafe { CStr::from_ptr(flags) }.to_string_lossy().into_owned()
    };
    let flags = text.parse::<Flags>().unwrap_or_else(|error| {
        eprintln!("scoutline: --so_flags: {error}");
        exit(2);
    });
    // SAFETY: takes no arguments in memory. packetdrill has locked all memory to come, for the sake of its timing; of a
    // region of 8 GiB, most of which is never touched, that would be all.
    unsafe { libc::munlockall() };
    let plugin = Plugin::start(flags);
    preload::serve(&plugin);
    // SAFETY: the caller's promise.
    unsafe { table.write(calls::table(plugin)) };
}
