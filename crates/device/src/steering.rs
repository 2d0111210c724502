//! Which cores do the receive work of an interface: receive packet steering, RPS
//! (`Documentation/networking/scaling.rst`).
//!
//! Steering hands each packet from the core that was interrupted to another one, by an interrupt between processors. A
//! protocol stack in the kernel wins by it, because its work moves along. An engine does that work where it stands and
//! looks at the ring anyway: all it gets is the interrupts.
//!
//! `rps_cpus` is in sysfs only, and `/sys` shows the network namespace of whoever mounted it. So an instance of our own
//! namespace is made, and mounted nowhere (fsmount(2), Linux 5.2).

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::sys::Interface;

const SYSFS: &CStr = c"sysfs";

/// The cores to which one receive queue hands packets, as the kernel writes them: `0` for none, else a mask in
/// hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steering {
    /// The interface's index.
    pub interface: u32,
    /// The queue: `rx-0`.
    pub queue: String,
    /// The mask.
    pub cores: String,
}

impl Steering {
    /// Hands packets on to nobody.
    pub const NONE: &str = "0";

    /// Of each receive queue of the interface with this name.
    ///
    /// # Errors
    /// No such interface; no privilege (CAP_SYS_ADMIN); or as the kernel says.
    pub fn named(name: &str) -> io::Result<Vec<Steering>> {
        let interface = Interface::find(name).map_err(io::Error::other)?.index;
        let queues = Queues::of(interface)?;
        let mut all = Vec::new();
        for entry in fs::read_dir(queues.path())? {
            let queue = entry?.file_name().to_string_lossy().into_owned();
            if queue.starts_with("rx-") {
                let cores = fs::read_to_string(queues.file(&queue))?.trim().to_owned();
                all.push(Steering { interface, queue, cores });
            }
        }
        Ok(all)
    }

    /// True if packets are handed to other cores.
    pub fn is_on(&self) -> bool {
        self.cores.bytes().any(|byte| !matches!(byte, b'0' | b','))
    }

    /// Sets the cores of one queue.
    ///
    /// # Errors
    /// As for [`Steering::named`]; no such queue.
    pub fn set(interface: u32, queue: &str, cores: &str) -> io::Result<()> {
        fs::write(Queues::of(interface)?.file(queue), cores)
    }
}

/// The queues of an interface, in a sysfs of this thread's network namespace.
struct Queues {
    sysfs: OwnedFd,
    name: String,
}

impl Queues {
    fn of(interface: u32) -> io::Result<Queues> {
        let name = Interface::name_of(interface)?;
        let context = fsopen(SYSFS, FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let sysfs = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        Ok(Queues { sysfs, name })
    }

    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}/class/net/{}/queues", self.sysfs.as_raw_fd(), self.name).into()
    }

    fn file(&self, queue: &str) -> PathBuf {
        self.path().join(queue).join("rps_cpus")
    }
}
