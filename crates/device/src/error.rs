//! Why a device cannot be opened, each with its remedy.

use std::io;

/// Why a device cannot be opened: one clear line with the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no such interface.
    #[error("no interface {name} here; {hint}")]
    NoSuchInterface {
        /// What was asked for.
        name: String,
        /// Near misses, or what there is.
        hint: String,
    },
    /// Interface names have at most 15 bytes and no slash or space.
    #[error("{name:?} is no interface name: 1 to 15 characters, without '/' and spaces")]
    BadName {
        /// What was asked for.
        name: String,
    },
    /// A network on another device was opened without that.
    #[error("{name} is a network on another device, which must be opened first")]
    NoParent {
        /// The network.
        name: String,
    },
    /// The interface is down.
    #[error("{name} is down: bring it up with `ip link set {name} up`")]
    Down {
        /// The interface.
        name: String,
    },
    /// The interface carries no Ethernet frames.
    #[error("{name} is no Ethernet interface (its hardware type is {kind}); a veth, tap or NIC is needed")]
    NotEthernet {
        /// The interface.
        name: String,
        /// ARPHRD_ number.
        kind: u16,
    },
    /// The caller lacks a privilege.
    #[error("{name}: no permission to {action}: run as root, or grant {capability}")]
    NotPermitted {
        /// The interface.
        name: String,
        /// What was tried.
        action: &'static str,
        /// The capability that is missing.
        capability: &'static str,
    },
    /// The kernel was built without AF_XDP.
    #[error("{name}: this kernel has no AF_XDP (CONFIG_XDP_SOCKETS): use driver \"packet\"")]
    NoXdp {
        /// The interface.
        name: String,
    },
    /// The kernel cannot give us packets in several parts.
    #[error(
        "{name}: its MTU of {mtu} is too large for AF_XDP on this kernel: `ip link set {name} mtu {most}`, or use driver \
         \"packet\""
    )]
    LongFrames {
        /// The interface.
        name: String,
        /// Its MTU.
        mtu: u32,
        /// The largest that would do.
        most: u32,
    },
    /// The program that gives us the interface's packets cannot be there.
    #[error("{name}: its packets cannot be taken by XDP: {source}; or use driver \"packet\"")]
    Hook {
        /// The interface.
        name: String,
        /// Why.
        source: scoutline_bpf::AttachError,
    },
    /// The interface is in use by another program.
    #[error("{name} is in use by another program: stop it or choose another name")]
    Busy {
        /// The interface.
        name: String,
    },
    /// The kernel lacks something, or refused.
    #[error("{name}: cannot {action}: {source}")]
    System {
        /// The interface or file.
        name: String,
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A capture file cannot be used.
    #[error("{name}: {source}")]
    File {
        /// The file.
        name: String,
        /// What is wrong with it.
        source: crate::pcap::FileError,
    },
}

impl OpenError {
    /// The error that a failed system call means.
    pub(crate) fn system(name: &str, action: &'static str, source: io::Error) -> OpenError {
        let name = name.to_owned();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                let capability = if action.contains("raw") { "CAP_NET_RAW" } else { "CAP_NET_ADMIN" };
                OpenError::NotPermitted { name, action, capability }
            }
            Some(libc::EBUSY) => OpenError::Busy { name },
            Some(libc::ENETDOWN) => OpenError::Down { name },
            _ => OpenError::System { name, action, source },
        }
    }
}
