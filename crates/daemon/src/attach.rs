//! The attach server (protocol: `scoutline_abi::attach`).
//!
//! One connection is one process. What the server keeps for a program is little: which process records are in use,
//! and for each poll set how many processes know it. Sockets are the engine's.
//!
//! ```text
//! record:  Free ──ATTACH, FORK──▶ Used ──hang-up, ProcessGone sent──▶ Leaving ──engine clears `alive`──▶ Free
//! set:     free ──NEW_SET──▶ held by 1 ──FORK──▶ held by more ──FREE_SET, hang-up──▶ … 0: RemoveSet ──▶ free
//! ```
//! A set made before a fork is the child's too (prefork servers share an epoll set), so it lives until the last of
//! them lets go.

mod complaints;
mod program;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::pipe::PipeFlags;
use scoutline_abi::Region;
use scoutline_abi::attach::{MESSAGE_LEN, Message, flag, kind};
use scoutline_abi::layout::ENGINE_COUNT;
use scoutline_abi::privilege;
use scoutline_abi::served::Network;
use scoutline_engine::{FileMap, ProgramFacts};

use crate::engine::{Command, EngineLink, RegionId};
use crate::sockets::{Listener, SocketError};
use complaints::Complaints;
use program::Program;

/// Programs attached at a time: each may map gigabytes of address space.
const MAX_PROGRAMS: usize = 64;
/// SETTLE is answered after that in any case: what engines release, programs can write as well.
const SETTLE_PATIENCE: Duration = Duration::from_millis(50);
/// Connections that have not attached yet.
const MAX_STRANGERS: usize = 64;

/// Who may attach, besides root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owners {
    /// The daemon's own user.
    pub(crate) uid: u32,
    /// Members of this group.
    pub(crate) group: Option<u32>,
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
struct Peer {
    pid: u32,
    uid: u32,
}

/// A connection.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    peer: Peer,
    attached: Option<Process>,
}

/// Which process a connection stands for.
#[derive(Debug)]
struct Process {
    region: RegionId,
    record: u32,
    /// Poll sets that it knows.
    sets: Vec<u32>,
}

/// Why a connection ends before its process does. One line in the log.
type Fault = String;

/// The server.
pub(crate) struct AttachServer {
    listener: Listener,
    owners: Owners,
    connections: BTreeMap<u32, Connection>,
    programs: BTreeMap<RegionId, Program>,
    next_connection: u32,
    next_region: u32,
    complaints: Complaints,
    /// Processes that are gone, as long as an engine has not released what they held.
    leaving: Vec<(Arc<Region>, u32)>,
    /// Connections that asked for SETTLE, and when.
    settling: Vec<(u32, Instant)>,
}

impl AttachServer {
    /// Listens beside the control socket.
    pub(crate) fn bind(path: &Path, mode: u32, owners: Owners) -> Result<AttachServer, SocketError> {
        Ok(AttachServer {
            listener: Listener::bind(path, SocketType::SEQPACKET, mode, owners.group)?,
            owners,
            connections: BTreeMap::new(),
            programs: BTreeMap::new(),
            next_connection: 0,
            next_region: 1,
            complaints: Complaints::default(),
            leaving: Vec::new(),
            settling: Vec::new(),
        })
    }

    /// The listening socket.
    pub(crate) fn listener(&self) -> &Listener {
        &self.listener
    }

    /// The connections, to wait for.
    pub(crate) fn connections(&self) -> impl Iterator<Item = (u32, BorrowedFd<'_>)> {
        self.connections.iter().map(|(&id, connection)| (id, connection.socket.as_fd()))
    }

    /// Live processes of the program that attached as `pid`.
    pub(crate) fn processes_of(&self, pid: u32) -> Option<u64> {
        self.programs.values().find(|program| program.pid == pid).map(|program| program.live() as u64)
    }

    /// Takes the connections that wait.
    pub(crate) fn on_connect(&mut self) {
        self.complaints.tell_the_rest();
        while let Some(socket) = self.listener.accept() {
            let peer = match rustix::net::sockopt::socket_peercred(&socket) {
                Ok(peer) => {
                    Peer { pid: peer.pid.as_raw_nonzero().get().cast_unsigned(), uid: peer.uid.as_raw() }
                }
                Err(error) => {
                    log::warn!("attach: a connection without credentials is closed: {error}");
                    continue;
                }
            };
            tell_senders(&socket);
            let connection = Connection { socket, peer, attached: None };
            if !self.may_attach(peer) {
                let Peer { pid, uid } = peer;
                self.complaints.add(|| format!("pid {pid} of user {uid} is refused: not our user or group"));
                refuse(
                    connection.socket.as_fd(),
                    Errno::ACCESS,
                    "your user may not attach; see [control] group",
                );
                continue;
            }
            if self.connections.values().filter(|other| other.attached.is_none()).count() >= MAX_STRANGERS {
                let pid = peer.pid;
                let line = || format!("pid {pid} is refused: {MAX_STRANGERS} connections have not attached");
                self.complaints.add(line);
                refuse(
                    connection.socket.as_fd(),
                    Errno::AGAIN,
                    "too many connections that have not attached",
                );
                continue;
            }
            let id = self.fresh_connection();
            self.connections.insert(id, connection);
        }
    }

    fn may_attach(&self, peer: Peer) -> bool {
        peer.uid == 0
            || peer.uid == self.owners.uid
            || self.owners.group.is_some_and(|group| groups_of(peer.pid).contains(&group))
    }

    fn fresh_connection(&mut self) -> u32 {
        self.next_connection = self.next_connection.wrapping_add(1);
        self.next_connection
    }

    /// One message of a connection, or its end. At most one, so that no program keeps the others waiting.
    pub(crate) fn on_input(&mut self, id: u32, engine: &impl EngineLink) {
        self.complaints.tell_the_rest();
        let Some(connection) = self.connections.get(&id) else { return };
        let mut bytes = [0; MESSAGE_LEN + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC | RecvFlags::CMSG_CLOEXEC;
        let received = rustix::net::recvmsg(
            &connection.socket,
            &mut [std::io::IoSliceMut::new(&mut bytes)],
            &mut control,
            flags,
        );
        // Whatever descriptor comes is ours to close, wanted or not.
        let (mut file, mut sender) = (None, 0);
        for message in control.drain() {
            match message {
                RecvAncillaryMessage::ScmRights(mut fds) => file = fds.next(),
                // The kernel's word (SO_PASSCRED), not the program's.
                RecvAncillaryMessage::ScmCredentials(who) => {
                    sender = who.pid.as_raw_nonzero().get().cast_unsigned();
                }
                _ => {}
            }
        }
        match received.map(|received| received.bytes) {
            Ok(0) => self.disconnect(id, engine),
            Ok(len) => {
                let message = bytes.get(..len).and_then(Message::from_bytes);
                let done = match message {
                    Some(message) if message.kind == kind::FILE => self.on_file(id, file, engine),
                    Some(message) => self.on_message(id, &message, sender, engine),
                    None => Err(format!("a message of {len} bytes instead of {MESSAGE_LEN}")),
                };
                if let Err(fault) = done {
                    let peer = self.connections.get(&id).map_or(0, |connection| connection.peer.pid);
                    self.complaints.add(|| format!("pid {peer} is disconnected: {fault}"));
                    self.disconnect(id, engine);
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.disconnect(id, engine),
        }
    }

    fn on_message(
        &mut self,
        id: u32,
        message: &Message,
        sender: u32,
        engine: &impl EngineLink,
    ) -> Result<(), Fault> {
        match message.kind {
            kind::ATTACH => self.on_attach(id, message, engine),
            kind::NEW_SET => self.on_new_set(id, message, sender, engine),
            kind::FREE_SET => self.on_free_set(id, message.value, engine),
            kind::FORK => self.on_fork(id, message),
            kind::WAKE_SET => self.on_wake_set(id, message.value, engine),
            kind::SETTLE => {
                self.settling.push((id, Instant::now()));
                Ok(())
            }
            other => Err(format!("a message of unknown kind {other}")),
        }
    }

    fn on_attach(&mut self, id: u32, message: &Message, engine: &impl EngineLink) -> Result<(), Fault> {
        let connection = self.connections.get_mut(&id).ok_or("no such connection")?;
        if connection.attached.is_some() {
            return Err("it attached twice".into());
        }
        if message.value != scoutline_abi::VERSION {
            refuse(
                connection.socket.as_fd(),
                Errno::PROTO,
                "shim and daemon are of different versions; reinstall both",
            );
            return Err(format!("its version is {}, ours {}", message.value, scoutline_abi::VERSION));
        }
        if self.programs.len() >= MAX_PROGRAMS {
            // The shim says by this number what is wrong.
            refuse(connection.socket.as_fd(), Errno::USERS, "too many programs are attached");
            return Err(format!("{MAX_PROGRAMS} programs are attached"));
        }
        let (region, memory) = match Region::create() {
            Ok(made) => made,
            Err(error) => {
                refuse(connection.socket.as_fd(), Errno::NOMEM, &error.to_string());
                return Err(error.to_string());
            }
        };
        // Its doorbells: pipes of its own, one to each engine, of which it gets the writing ends only.
        let pipe = |_| rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
        let pipes = (0..engine.count()).map(pipe).collect::<Result<Vec<_>, _>>();
        let (bells, rings): (Vec<OwnedFd>, Vec<OwnedFd>) = match pipes {
            Ok(pipes) => pipes.into_iter().unzip(),
            Err(error) => {
                refuse(connection.socket.as_fd(), error, "no descriptor for the doorbell");
                return Err(error.to_string());
            }
        };
        // The executable's own name, where we can see it: policy must not rest on what a program says of itself.
        // Only the supervisor of a trapped program, which is this very executable, speaks for another one.
        let Peer { pid, uid } = connection.peer;
        let facts = ProgramFacts {
            name: executable_of(pid).filter(|_| !is_ours(pid)).unwrap_or_else(|| message.name()),
            user: Some(uid),
            cgroups: cgroups_of(pid),
            background: message.flags & flag::BACKGROUND != 0,
            first_port: first_port_of(pid),
        };
        let region = Arc::new(region);
        region.header().engine_count.store(engine.count() as u32, Ordering::Relaxed);
        region.header().cookie_base.store(scoutline_engine::random_key(), Ordering::Relaxed);
        fill_served(&region, engine);
        let mut program = Program::new(Arc::clone(&region), connection.peer.pid);
        let record = program.take_record(connection.peer.pid).ok_or("no process record")?;
        let fds: Vec<BorrowedFd<'_>> =
            std::iter::once(memory.as_fd()).chain(rings.iter().map(AsFd::as_fd)).collect();
        let id = RegionId(self.next_region);
        self.next_region += 1;
        connection.attached = Some(Process { region: id, record, sets: Vec::new() });
        self.programs.insert(id, program);
        log::debug!("attach: {} (pid {pid}, user {uid}, cgroups {})", facts.name, facts.cgroups.join(" "));
        // Every engine knows the program before it can ask one, which may tell the others.
        let key = Some(scoutline_engine::random_key());
        engine.send(Command::AddRegion { id, region, program: facts, pid, key, bells });
        send(connection.socket.as_fd(), &Message::new(kind::OK, record), &fds)
    }

    fn on_new_set(
        &mut self,
        id: u32,
        message: &Message,
        sender: u32,
        engine: &impl EngineLink,
    ) -> Result<(), Fault> {
        let (socket, process, program) = self.parts(id)?;
        program.learn_pid(process.record, message.pid);
        let Some(set) = program.take_set() else {
            refuse(socket, Errno::MFILE, "too many poll sets");
            return Ok(());
        };
        let (read, write) = match rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK) {
            Ok(ends) => ends,
            Err(error) => {
                program.drop_set(set);
                refuse(socket, error, "no descriptor for the pipe of a poll set");
                return Ok(());
            }
        };
        process.sets.push(set);
        // The engine knows the set before the program does.
        engine.send(Command::AddSet { region: process.region, set, pipe: Arc::new(write), process: sender });
        send(socket, &Message::new(kind::OK, set), &[read.as_fd()])
    }

    fn on_free_set(&mut self, id: u32, set: u32, engine: &impl EngineLink) -> Result<(), Fault> {
        let (_, process, program) = self.parts(id)?;
        let at = process.sets.iter().position(|&held| held == set);
        let at = at.ok_or_else(|| format!("it gave back set {set}, which it does not hold"))?;
        process.sets.swap_remove(at);
        if program.drop_set(set) {
            engine.send(Command::RemoveSet { region: process.region, set });
        }
        Ok(())
    }

    fn on_wake_set(&mut self, id: u32, set: u32, engine: &impl EngineLink) -> Result<(), Fault> {
        let (_, process, _) = self.parts(id)?;
        if !process.sets.contains(&set) {
            return Err(format!("it wakes set {set}, which it does not hold"));
        }
        engine.send(Command::WakeSet { region: process.region, set });
        Ok(())
    }

    /// Whether somebody waits until the engines have released what ended processes held.
    pub(crate) fn is_settling(&self) -> bool {
        !self.settling.is_empty()
    }

    /// Answers who asked for SETTLE, once no end of a process is left that the engines do not know.
    pub(crate) fn on_round(&mut self, engine: &impl EngineLink) {
        self.forget_left();
        if self.settling.is_empty() {
            return;
        }
        let settled = self.leaving.is_empty() && !self.has_hung_up();
        for (id, since) in std::mem::take(&mut self.settling) {
            if !settled && since.elapsed() < SETTLE_PATIENCE {
                self.settling.push((id, since));
                continue;
            }
            let Some(connection) = self.connections.get(&id) else { continue };
            if send(connection.socket.as_fd(), &Message::new(kind::OK, 0), &[]).is_err() {
                self.disconnect(id, engine);
            }
        }
    }

    fn forget_left(&mut self) {
        self.leaving.retain(|(region, record)| {
            region.process(*record).is_some_and(|process| process.alive.load(Ordering::Acquire) != 0)
        });
    }

    /// Of one that is gone, messages may still be there to be read, one in each round.
    fn has_hung_up(&self) -> bool {
        let mut fds: Vec<_> = self
            .connections
            .values()
            .map(|connection| PollFd::from_borrowed_fd(connection.socket.as_fd(), PollFlags::empty()))
            .collect();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|count| count > 0)
    }

    /// A file to send from. Refusals are ordinary: the shim copies then.
    fn on_file(&mut self, id: u32, file: Option<OwnedFd>, engine: &impl EngineLink) -> Result<(), Fault> {
        let (socket, process, program) = self.parts(id)?;
        let file = file.ok_or("a FILE message without a file")?;
        if !engine.served().iter().all(Network::takes_extents) {
            // Some device reads memory in this process, where a file that shrinks is SIGBUS.
            refuse(socket, Errno::OPNOTSUPP, "this device sends no files");
            return Ok(());
        }
        let Some(number) = program.next_file() else {
            refuse(socket, Errno::MFILE, "too many files");
            return Ok(());
        };
        match FileMap::new(file.as_fd()) {
            Ok(map) if !program.has_room_for(map.len()) => {
                refuse(socket, Errno::NOMEM, "its files are too large together");
                Ok(())
            }
            Ok(map) => {
                program.on_file(map.len());
                engine.send(Command::AddFile { region: process.region, file: number, map: Arc::new(map) });
                send(socket, &Message::new(kind::OK, number), &[])
            }
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
                refuse(socket, errno, "the file cannot be mapped");
                Ok(())
            }
        }
    }

    fn on_fork(&mut self, id: u32, message: &Message) -> Result<(), Fault> {
        self.forget_left(); // a record that is free is another's from here on
        let (socket, process, program) = self.parts(id)?;
        let Some(record) = program.take_record(0) else {
            refuse(socket, Errno::AGAIN, "too many processes of one program");
            return Ok(());
        };
        // Not O_NONBLOCK, as the child waits for its answers; we ask not to wait call by call.
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            match rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None) {
                Ok(pair) => pair,
                Err(error) => {
                    program.give_back_unused(record);
                    refuse(socket, error, "no descriptor for the connection of a child");
                    return Ok(());
                }
            };
        let new_image = message.flags & flag::NEW_IMAGE != 0;
        let sets = if new_image { Vec::new() } else { process.sets.clone() };
        // Before the answer: with it the child may be there, and who has an epoll with it has to know.
        for &set in &sets {
            program.share_set(set);
        }
        let sent = send(socket, &Message::new(kind::OK, record), &[theirs.as_fd()]);
        if let Err(fault) = sent {
            program.give_back_unused(record);
            for &set in &sets {
                program.drop_set(set); // the one who asked has it still
            }
            return Err(fault);
        }
        tell_senders(&ours);
        let attached = Some(Process { region: process.region, record, sets });
        let peer = Peer { pid: 0, ..self.connections.get(&id).ok_or("no such connection")?.peer };
        let child = Connection { socket: ours, peer, attached };
        let id = self.fresh_connection();
        self.connections.insert(id, child);
        Ok(())
    }

    /// A connection's socket, the process that it stands for, and that one's program.
    fn parts(&mut self, id: u32) -> Result<(BorrowedFd<'_>, &mut Process, &mut Program), Fault> {
        let connection = self.connections.get_mut(&id).ok_or("no such connection")?;
        let process = connection.attached.as_mut().ok_or("it has not attached")?;
        let program = self.programs.get_mut(&process.region).ok_or("its program is gone")?;
        Ok((connection.socket.as_fd(), process, program))
    }

    /// The process behind a connection is gone.
    fn disconnect(&mut self, id: u32, engine: &impl EngineLink) {
        let Some(connection) = self.connections.remove(&id) else { return };
        let Some(Process { region, record, sets }) = connection.attached else { return };
        let Some(program) = self.programs.get_mut(&region) else { return };
        program.leave(record);
        self.leaving.push((Arc::clone(&program.region), record));
        engine.send(Command::ProcessGone { region, process: record });
        for set in sets {
            if program.drop_set(set) {
                engine.send(Command::RemoveSet { region, set });
            } else {
                // A wake-up may have gone to the dead process alone, and it may have been in the list.
                program.forget_signal(set);
                program.forget_in_list(set, record);
                engine.send(Command::WakeSet { region, set });
            }
        }
        if program.live() == 0 {
            log::debug!("attach: the program of pid {} is gone", program.pid);
            self.programs.remove(&region);
            engine.send(Command::RemoveRegion(region));
        }
    }
}

/// Writes the networks that paths serve into a fresh region.
fn fill_served(region: &Region, engine: &impl EngineLink) {
    region.header().write_served(&engine.served());
}

/// Sends an answer with descriptors. Never waits: who leaves no room for the one answer to its one request is
/// disconnected.
fn send(socket: BorrowedFd<'_>, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<(), Fault> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1 + ENGINE_COUNT))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err("too many descriptors for one message".into());
    }
    let bytes = message.to_bytes();
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[std::io::IoSlice::new(&bytes)], &mut control, flags)
        .map(drop)
        .map_err(|error| format!("it does not take its answer: {error}"))
}

/// Says no. Whether it arrives is the other side's matter.
fn refuse(socket: BorrowedFd<'_>, error: Errno, reason: &str) {
    let message = Message::new(kind::REFUSED, error.raw_os_error().cast_unsigned()).named(reason.as_bytes());
    let _ = send(socket, &message, &[]);
}

/// Last part of the path of a process's executable.
fn executable_of(pid: u32) -> Option<String> {
    let path = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = path.file_name()?.to_string_lossy().into_owned();
    Some(name.strip_suffix(" (deleted)").map_or(name.clone(), str::to_owned))
}

/// Whether a process runs this very executable.
fn is_ours(pid: u32) -> bool {
    let file = |process: &str| {
        let found = std::fs::metadata(format!("/proc/{process}/exe")).ok()?;
        Some((found.dev(), found.ino()))
    };
    file("self").is_some_and(|own| file(&pid.to_string()) == Some(own))
}

/// The control groups of a process: its path in each hierarchy (v2 has one, v1 one for each set of controllers).
fn cgroups_of(pid: u32) -> Vec<String> {
    parse_cgroups(&std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default())
}

/// Reads lines such as `4:memory:/web` and `0::/system.slice/nginx.service` (cgroups(7)). The root says nothing.
fn parse_cgroups(text: &str) -> Vec<String> {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let mut paths: Vec<String> = paths.filter(|&path| path != "/").map(str::to_owned).collect();
    paths.sort();
    paths.dedup();
    paths
}

/// The lowest port to which a process may bind: the kernel's rule for its own sockets, by our network namespace.
fn first_port_of(pid: u32) -> u16 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let users = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user")).ok();
    let is_here = users("self") == users(&pid.to_string());
    if is_here && privilege::may_bind_all(privilege::effective(&status)) {
        0
    } else {
        privilege::first_port()
    }
}

/// All groups of a process.
fn groups_of(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let lines = status.lines().filter_map(|line| line.strip_prefix("Gid:").or(line.strip_prefix("Groups:")));
    lines.flat_map(str::split_whitespace).filter_map(|group| group.parse().ok()).collect()
}

/// Has the kernel say with each message which process has sent it. Where it does not, threads are never raised.
fn tell_senders(socket: &OwnedFd) {
    if let Err(error) = rustix::net::sockopt::set_socket_passcred(socket, true) {
        log::warn!("attach: the senders of messages are not told ({error}): threads keep their own priority");
    }
}
