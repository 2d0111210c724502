//! The attach socket: SOCK_SEQPACKET, fixed-size messages, descriptors beside them (SCM_RIGHTS).
//!
//! A connection stands for one process: when it closes, the process is gone (or has called `exec`: what goes on in the
//! new image has a connection of its own), and the daemon releases what it held.
//!
//! ```text
//! shim                            daemon
//! ATTACH name, pid, flags   →
//!                           ←     OK value = process record       + region memfd, doorbell eventfd
//! NEW_SET                   →
//!                           ←     OK value = set number           + read end of its pipe
//! FREE_SET set              →     (no answer)
//! WAKE_SET set              →     (no answer)
//! FILE                      →     + the file
//!                           ←     OK value = file number
//! SETTLE                    →
//!                           ←     OK once what ended processes held is released
//! FORK                      →
//!                           ←     OK value = child's record       + a connection for the child
//! ```

/// Bytes of a request or an answer.
pub const MESSAGE_LEN: usize = 96;

/// Requests and answers by number.
pub mod kind {
    /// First message: `value` is the protocol version, `name` the program.
    pub const ATTACH: u32 = 1;
    /// A poll set with its pipe.
    pub const NEW_SET: u32 = 2;
    /// `value` is the set to give back.
    pub const FREE_SET: u32 = 3;
    /// A record and a connection for a child about to be forked. The daemon copies nothing: the parent writes the
    /// child's `holds` itself. With [`super::flag::NEW_IMAGE`] the child is what this process becomes by `exec`, or
    /// starts by `posix_spawn`.
    pub const FORK: u32 = 4;
    /// A file to send from, readable and regular, as the descriptor beside the message. Answer: its number.
    pub const FILE: u32 = 5;
    /// `value` is the set that whoever sleeps on it is to look at: an epoll that several processes have was changed.
    pub const WAKE_SET: u32 = 6;
    /// A port is taken, perhaps by a process that has ended: the answer comes when the engines have released what those held.
    pub const SETTLE: u32 = 7;
    /// Answer: done.
    pub const OK: u32 = 100;
    /// Answer: refused; `value` is an errno, `name` says why.
    pub const REFUSED: u32 = 101;
}

/// What a program says of itself.
pub mod flag {
    /// It is background: its paths are served in idle time only.
    pub const BACKGROUND: u32 = 1;
    /// Beside FORK: for a new program image, which knows none of the poll sets.
    pub const NEW_IMAGE: u32 = 2;
}

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// See [`kind`].
    pub kind: u32,
    /// By kind.
    pub value: u32,
    /// Process id of the sender as it sees itself.
    pub pid: u32,
    /// Program name or reason, padded with zeros.
    pub name: [u8; 80],
    /// See [`flag`].
    pub flags: u32,
}

impl Message {
    /// A message without a name.
    pub fn new(kind: u32, value: u32) -> Message {
        Message { kind, value, pid: 0, name: [0; 80], flags: 0 }
    }

    /// Sets the name, cut to fit.
    #[must_use]
    pub fn named(mut self, name: &[u8]) -> Message {
        let len = name.len().min(self.name.len());
        self.name[..len].copy_from_slice(&name[..len]);
        self
    }

    /// The name as text.
    pub fn name(&self) -> String {
        let len = self.name.iter().position(|&b| b == 0).unwrap_or(self.name.len());
        String::from_utf8_lossy(&self.name[..len]).into_owned()
    }

    /// As sent.
    pub fn to_bytes(&self) -> [u8; MESSAGE_LEN] {
        let mut bytes = [0; MESSAGE_LEN];
        bytes[0..4].copy_from_slice(&self.kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.value.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.pid.to_le_bytes());
        bytes[12..92].copy_from_slice(&self.name);
        bytes[92..96].copy_from_slice(&self.flags.to_le_bytes());
        bytes
    }

    /// As received; `None` when the length is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<Message> {
        if bytes.len() != MESSAGE_LEN {
            return None;
        }
        let word = |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        let mut name = [0; 80];
        name.copy_from_slice(&bytes[12..92]);
        Some(Message { kind: word(0), value: word(4), pid: word(8), name, flags: word(92) })
    }
}
