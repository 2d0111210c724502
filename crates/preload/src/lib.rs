//! The socket shim that LD_PRELOAD puts under an unmodified program.
//!
//! Every socket stays a real kernel descriptor, so that numbers, `dup`, close-on-exec and `fstat` keep their
//! meaning. A process-local table says which descriptors are served by paths; their state and their rings lie in
//! memory shared with the daemon ([`scoutline_abi::layout`]). On `read`, `write`, `accept` and `close` nothing is
//! asked of the daemon: the shim moves bytes and marks the slot, and rings a doorbell only when the engine sleeps.
//!
//! ```text
//! export   the C functions: is the descriptor ours? else the real function
//! reach    where paths lead: is a socket ours?
//! adopt    from the kernel's to ours, and back
//! family   what is adopted in one process, and others have, too
//! life     connect, shutdown, close, dup: who holds which socket
//! bind     bind, listen: which addresses are ours
//! accept   connections out of a listening socket's queue
//! exec     sockets that go on in a new program image
//! passing  sockets that go to another process through a Unix socket
//! stream, datagram, sendfile   bytes between user memory and rings
//! stdio    the C library's own streams
//! control, errors, ip_options, groups   what stands beside datagrams, errors about them
//! headers  what a stream says of network headers
//! zero_copy   notices that a send is complete
//! slot     readiness, errors, locks of the two directions
//! epoll, poll   many sockets, ours and the kernel's, at once
//! wait     sleeping on a poll set's pipe; a bounded spin before
//! fruitless   programs that ask instead of waiting
//! call     questions to the engine (open, bind, listen, connect, options)
//! attach   the connection to the daemon, the region
//! own      descriptors of our own
//! dispatch  system calls that go past the C library
//! rings    io_uring: what its operations name is the kernel's, or has a stand-in
//! table, real, lock, address   what the above stand on
//! ```
//!
//! Nothing here locks a process-wide lock or logs while data moves, nor allocates, but for `dprintf`'s text and what
//! `sendfile` reads of a file that is not in memory.
#![allow(unsafe_code)] // the C interface and shared memory are this crate's subject; blocks say why they hold

mod accept;
mod address;
mod adopt;
mod attach;
mod bind;
mod call;
mod cancel;
mod control;
mod datagram;
#[cfg(target_arch = "x86_64")]
mod dispatch;
#[cfg(not(target_arch = "x86_64"))]
#[path = "dispatch/absent.rs"]
mod dispatch;
mod engines;
mod epoll;
mod errors;
mod exec;
mod export;
mod extent;
mod family;
mod fast_open;
mod fruitless;
mod groups;
mod headers;
mod held;
mod ip_options;
mod life;
mod limits;
mod lock;
mod memory;
mod options;
mod own;
mod passing;
mod poll;
mod privilege;
mod reach;
mod real;
mod rings;
mod scout;
mod sendfile;
mod serve;
mod slot;
mod stdio;
mod stream;
mod table;
mod under_way;
mod urgent;
mod wait;
mod zero_copy;
