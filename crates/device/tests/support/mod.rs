//! Network namespaces for tests, packets as literals, and a source of stream memory.
#![allow(dead_code)] // each test file uses its part

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A network namespace of its own, removed on drop.
pub(crate) struct Namespace {
    pub(crate) name: String,
}

impl Namespace {
    /// # Panics
    /// Loudly, without the privilege: a test that cannot run has not passed.
    pub(crate) fn new() -> Namespace {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("scl-t{}-{number}", std::process::id());
        ip(&["netns", "add", &name]);
        let namespace = Namespace { name };
        ip(&["-n", &namespace.name, "link", "set", "lo", "up"]);
        // No router solicitations among the tests' packets.
        namespace.enter(|| {
            std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").expect("quiet namespace");
        });
        namespace
    }

    /// Runs `ip` inside.
    pub(crate) fn ip(&self, arguments: &[&str]) {
        let mut all = vec!["-n", &self.name];
        all.extend(arguments);
        ip(&all);
    }

    /// Runs `work` with this thread inside the namespace. Sockets opened there stay there.
    pub(crate) fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        let home = File::open("/proc/thread-self/ns/net").expect("own namespace");
        let inside = File::open(format!("/run/netns/{}", self.name)).expect("the namespace exists");
        set_namespace(&inside);
        let result = work();
        set_namespace(&home);
        result
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

fn set_namespace(file: &File) {
    // SAFETY: no pointers.
    let status = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(status, 0, "setns: {}", std::io::Error::last_os_error());
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().expect("iproute2 is installed");
    assert!(
        output.status.success(),
        "`ip {}` failed (these tests need root): {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Two namespaces joined by a veth pair, `left` in the first and `right` in the second, both up.
pub(crate) fn veth() -> (Namespace, Namespace) {
    let (first, second) = (Namespace::new(), Namespace::new());
    let peer = second.name.clone();
    first.ip(&["link", "add", "left", "type", "veth", "peer", "name", "right", "netns", &peer]);
    for (namespace, interface) in [(&first, "left"), (&second, "right")] {
        namespace.ip(&["link", "set", interface, "up"]);
    }
    (first, second)
}
