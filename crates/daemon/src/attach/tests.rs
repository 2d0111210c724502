//! The protocol over a real socket, with a fake shim on one side and a fake engine on the other.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{self, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use scoutline_abi::Region;
use scoutline_abi::attach::{MESSAGE_LEN, Message, flag, kind};
use scoutline_abi::interest::LEFT;

use super::program::Program;
use super::{AttachServer, Owners, parse_cgroups};
use crate::alone;
use crate::engine::{Command, fake::FakeEngine};

struct Bed {
    server: AttachServer,
    engine: FakeEngine,
    path: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Bed {
    fn new(name: &str) -> Bed {
        let alone = alone();
        let path = std::env::temp_dir().join(format!("scoutline-attach-{name}-{}", std::process::id()));
        let owners = Owners { uid: rustix::process::geteuid().as_raw(), group: None };
        Bed {
            server: AttachServer::bind(&path, 0o600, owners).unwrap(),
            engine: FakeEngine::new(),
            path,
            _alone: alone,
        }
    }

    fn connect(&mut self) -> OwnedFd {
        let address = SocketAddrUnix::new(&self.path).unwrap();
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        self.server.on_connect();
        socket
    }

    /// Lets the server see what has come for every connection, twice: a fork makes new ones.
    fn turn(&mut self) {
        for _ in 0..2 {
            let ids: Vec<u32> = self.server.connections().map(|(id, _)| id).collect();
            for id in ids {
                self.server.on_input(id, &self.engine);
            }
            self.server.on_round(&self.engine);
        }
    }

    fn ask(&mut self, socket: &OwnedFd, message: &Message) -> Option<(Message, Vec<OwnedFd>)> {
        rustix::net::send(socket, &message.to_bytes(), SendFlags::empty()).unwrap();
        self.turn();
        receive(socket)
    }

    fn attach(&mut self) -> (OwnedFd, Region, OwnedFd) {
        let socket = self.connect();
        let hello = Message::new(kind::ATTACH, scoutline_abi::VERSION).named(b"claims-to-be-nginx");
        let (answer, mut fds) = self.ask(&socket, &hello).unwrap();
        assert_eq!((answer.kind, answer.value, fds.len()), (kind::OK, 0, 2));
        let doorbell = fds.pop().unwrap();
        (socket, Region::map(fds[0].as_fd()).unwrap(), doorbell)
    }
}

fn receive(socket: &OwnedFd) -> Option<(Message, Vec<OwnedFd>)> {
    let mut bytes = [0; MESSAGE_LEN];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT;
    let got = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags).ok()?;
    let fds = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let fds = fds.collect();
    Message::from_bytes(&bytes[..got.bytes]).map(|message| (message, fds))
}

#[test]
fn a_program_says_that_it_is_background() {
    for background in [false, true] {
        let mut bed = Bed::new("background");
        let socket = bed.connect();
        let mut hello = Message::new(kind::ATTACH, scoutline_abi::VERSION).named(b"backup");
        hello.flags = u32::from(background);
        bed.ask(&socket, &hello).unwrap();
        let Some(Command::AddRegion { program, .. }) = bed.engine.next() else { panic!("no region") };
        assert_eq!(program.background, background);
    }
}

#[test]
fn a_program_attaches_waits_and_goes() {
    let mut bed = Bed::new("basic");
    let (socket, region, doorbell) = bed.attach();
    assert_eq!(region.process(0).unwrap().alive.load(Ordering::Relaxed), 1);
    assert_eq!(region.process(0).unwrap().pid.load(Ordering::Relaxed), std::process::id());
    assert_eq!(region.header().served_count.load(Ordering::Relaxed), 1);
    assert_eq!(region.header().served[0].prefix.load(Ordering::Relaxed), 96 + 24);

    let Some(Command::AddRegion { program, pid, bells, .. }) = bed.engine.next() else { panic!("no region") };
    let [bell] = &bells[..] else { panic!("one engine, one bell") };
    let mut rung = [0; 16];
    assert_eq!(rustix::io::read(bell, &mut rung), Err(rustix::io::Errno::AGAIN));
    rustix::io::write(&doorbell, &1u64.to_ne_bytes()).unwrap();
    assert_eq!(rustix::io::read(bell, &mut rung), Ok(8), "what the program writes, the engine reads");
    assert!(rustix::io::read(&doorbell, &mut rung).is_err(), "a program cannot take rings away");
    assert_eq!(pid, std::process::id());
    // This process runs the daemon's own executable, which speaks for others (`run --trap`) and is believed.
    assert_eq!(program.name, "claims-to-be-nginx");
    assert_eq!(program.user, Some(rustix::process::geteuid().as_raw()));
    let ours = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    assert!(program.cgroups.iter().all(|path| ours.contains(path.as_str())), "{:?}", program.cgroups);

    let (answer, fds) = bed.ask(&socket, &Message::new(kind::NEW_SET, 0)).unwrap();
    assert_eq!((answer.kind, answer.value, fds.len()), (kind::OK, 0, 1));
    let Some(Command::AddSet { set: 0, pipe, .. }) = bed.engine.next() else { panic!("no set") };
    rustix::io::write(&pipe, b"!").unwrap();
    assert_eq!(rustix::io::read(&fds[0], &mut [0u8; 8]), Ok(1));
    assert!(rustix::io::read(&fds[0], &mut [0u8; 8]).is_err(), "draining never waits");
    drop(pipe);
    assert_eq!(rustix::io::read(&fds[0], &mut [0u8; 8]), Ok(0), "end of file when the daemon is gone");

    assert!(bed.ask(&socket, &Message::new(kind::FREE_SET, 0)).is_none());
    assert!(matches!(bed.engine.next(), Some(Command::RemoveSet { set: 0, .. })));
    drop(socket);
    bed.turn();
    assert!(matches!(bed.engine.next(), Some(Command::ProcessGone { process: 0, .. })));
    assert!(matches!(bed.engine.next(), Some(Command::RemoveRegion(_))));
    assert!(bed.engine.next().is_none());
    assert_eq!(bed.server.connections().count(), 0);
}

/// Set for the process that [`what_another_program_calls_itself_is_not_believed`] starts: where it attaches.
const ATTACH_AT: &str = "SCOUTLINE_TEST_ATTACH_AT";

/// Whoever asks hears of it behind those that had ended before, and once the engine has released what they held.
#[test]
fn a_process_that_has_ended_is_released_before_a_question_is_answered() {
    let mut bed = Bed::new("settle");
    let (asks, _region, _doorbell) = bed.attach();
    let (later, gone, _bell) = bed.attach();
    while bed.engine.next().is_some() {}
    rustix::net::send(&asks, &Message::new(kind::SETTLE, 0).to_bytes(), SendFlags::empty()).unwrap();
    drop(later);
    let (first, _) = bed.server.connections().next().unwrap();
    bed.server.on_input(first, &bed.engine);
    bed.server.on_round(&bed.engine);
    assert!(bed.server.is_settling(), "the other's end is there to be seen");
    bed.turn();
    assert!(matches!(bed.engine.next(), Some(Command::ProcessGone { process: 0, .. })));
    assert!(bed.server.is_settling(), "the engine knows, and has not released it");
    gone.process(0).unwrap().alive.store(0, Ordering::Release);
    bed.server.on_round(&bed.engine);
    assert_eq!(receive(&asks).unwrap().0.kind, kind::OK);
    assert!(!bed.server.is_settling());
}

/// Policy must not rest on what a program says of itself. The other program is this very test, started through the
/// dynamic loader, whose executable the kernel then shows.
#[test]
fn what_another_program_calls_itself_is_not_believed() {
    let claim = Message::new(kind::ATTACH, scoutline_abi::VERSION).named(b"claims-to-be-nginx");
    if let Some(path) = std::env::var_os(ATTACH_AT) {
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(path.as_os_str()).unwrap()).unwrap();
        rustix::net::send(&socket, &claim.to_bytes(), SendFlags::empty()).unwrap();
        // Until the daemon has looked at us.
        rustix::net::recv(&socket, &mut [0; MESSAGE_LEN][..], RecvFlags::empty()).unwrap();
        return;
    }
    let mut bed = Bed::new("claim");
    let loader = loader();
    let mut other = process::Command::new(&loader)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "attach::tests::what_another_program_calls_itself_is_not_believed"])
        .env(ATTACH_AT, &bed.path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for(bed.server.listener().as_fd());
    bed.server.on_connect();
    for (_, connection) in bed.server.connections() {
        wait_for(connection);
    }
    bed.turn();
    let Some(Command::AddRegion { program, pid, .. }) = bed.engine.next() else { panic!("no region") };
    assert_eq!(pid, other.id());
    assert_eq!(Some(program.name.as_ref()), loader.file_name().and_then(|name| name.to_str()));
    assert!(other.wait().unwrap().success());
}

/// The dynamic loader of this process.
fn loader() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut files = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).map(PathBuf::from);
    let is_loader = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("ld-"))
    };
    files.find(is_loader).expect("a program that is linked dynamically")
}

fn wait_for(fd: BorrowedFd<'_>) {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, None).unwrap();
}

#[test]
fn a_new_image_has_a_record_and_none_of_the_sets() {
    let mut bed = Bed::new("image");
    let (old, region, _) = bed.attach();
    bed.ask(&old, &Message::new(kind::NEW_SET, 0)).unwrap();
    let mut message = Message::new(kind::FORK, 0);
    message.flags = flag::NEW_IMAGE;
    let (answer, mut fds) = bed.ask(&old, &message).unwrap();
    assert_eq!((answer.kind, answer.value, fds.len()), (kind::OK, 1, 1));
    let new = fds.pop().unwrap();
    assert_eq!(region.process(1).unwrap().alive.load(Ordering::Relaxed), 1);
    bed.engine.clear();

    drop(old);
    bed.turn();
    assert!(matches!(bed.engine.next(), Some(Command::ProcessGone { process: 0, .. })));
    assert!(
        matches!(bed.engine.next(), Some(Command::RemoveSet { set: 0, .. })),
        "only the old image knew it"
    );
    assert!(bed.engine.next().is_none(), "the program lives on");
    drop(new);
    bed.turn();
    assert!(matches!(bed.engine.next(), Some(Command::ProcessGone { process: 1, .. })));
    assert!(matches!(bed.engine.next(), Some(Command::RemoveRegion(_))));
}

#[test]
fn a_child_has_its_record_and_shares_the_sets() {
    let mut bed = Bed::new("fork");
    let (parent, region, _) = bed.attach();
    bed.ask(&parent, &Message::new(kind::NEW_SET, 0)).unwrap();
    let (answer, mut fds) = bed.ask(&parent, &Message::new(kind::FORK, 0)).unwrap();
    assert_eq!((answer.kind, answer.value, fds.len()), (kind::OK, 1, 1));
    let set = region.set(0).unwrap();
    assert_eq!(set.holders.load(Ordering::SeqCst), 2, "told before the child can be there");
    let child = fds.pop().unwrap();
    let mut message = Message::new(kind::NEW_SET, 0);
    message.pid = 4711;
    let (answer, _) = bed.ask(&child, &message).unwrap();
    assert_eq!(answer.value, 1);
    assert_eq!(region.process(1).unwrap().pid.load(Ordering::Relaxed), 4711);
    assert_eq!(bed.server.processes_of(std::process::id()), Some(2));
    bed.engine.clear();

    assert!(bed.ask(&child, &Message::new(kind::WAKE_SET, 0)).is_none());
    assert!(matches!(bed.engine.next(), Some(Command::WakeSet { set: 0, .. })));
    set.signalled.store(1, Ordering::SeqCst);
    let list = region.interests(0).unwrap();
    list.lock.store(1, Ordering::SeqCst); // record 0 is in it
    drop(parent);
    bed.turn();
    assert!(matches!(bed.engine.next(), Some(Command::ProcessGone { process: 0, .. })));
    assert!(
        matches!(bed.engine.next(), Some(Command::WakeSet { set: 0, .. })),
        "the child still knows set 0, whose byte the parent may have taken"
    );
    assert_eq!((set.signalled.load(Ordering::SeqCst), set.holders.load(Ordering::SeqCst)), (0, 1));
    assert_eq!(list.lock.load(Ordering::SeqCst), LEFT, "whoever has record 0 next is not in it");
    assert!(bed.engine.next().is_none());

    // Record 0 is free again only once the engine has let go of it.
    let (answer, grandchild) = bed.ask(&child, &Message::new(kind::FORK, 0)).unwrap();
    assert_eq!(answer.value, 2);
    drop(grandchild);
    region.process(0).unwrap().alive.store(0, Ordering::Release);
    let (answer, grandchild) = bed.ask(&child, &Message::new(kind::FORK, 0)).unwrap();
    assert_eq!(answer.value, 0);
    drop(grandchild);
    bed.turn();
    bed.engine.clear();

    drop(child);
    bed.turn();
    let mut rest: Vec<&str> = Vec::new();
    while let Some(command) = bed.engine.next() {
        rest.push(match command {
            Command::ProcessGone { .. } => "process",
            Command::RemoveSet { .. } => "set",
            Command::RemoveRegion(_) => "region",
            _ => "other",
        });
    }
    assert_eq!(rest, ["process", "set", "set", "region"]);
}

#[test]
fn garbage_is_disconnected_and_others_go_on() {
    let mut bed = Bed::new("garbage");
    let (good, _, _) = bed.attach();
    for bytes in [&[0xFF; MESSAGE_LEN][..], &[1, 2, 3], &[0; 200]] {
        let bad = bed.connect();
        rustix::net::send(&bad, bytes, SendFlags::empty()).unwrap();
        bed.turn();
        assert_eq!(bed.server.connections().count(), 1, "{bytes:?}");
    }
    let orders = [
        Message::new(kind::NEW_SET, 0), // before it attaches
        Message::new(kind::WAKE_SET, 0),
        Message::new(kind::FORK, 0),    // the same
        Message::new(kind::ATTACH, 99), // another version
    ];
    for order in orders {
        let bad = bed.connect();
        let answer = bed.ask(&bad, &order);
        assert!(answer.is_none_or(|(answer, _)| answer.kind == kind::REFUSED));
        assert_eq!(bed.server.connections().count(), 1, "{order:?}");
    }
    assert!(bed.ask(&good, &Message::new(kind::NEW_SET, 0)).is_some(), "it goes on");
    assert!(bed.ask(&good, &Message::new(kind::FREE_SET, 77)).is_none());
    assert_eq!(bed.server.connections().count(), 0, "a set that it does not hold");
}

#[test]
fn who_reads_no_answers_is_disconnected() {
    let mut bed = Bed::new("deaf");
    let (socket, _, _) = bed.attach();
    let mut asked = 0;
    while bed.server.connections().count() == 1 {
        asked += 1;
        assert!(asked < 3_000, "bounded");
        let _ = rustix::net::send(&socket, &Message::new(kind::NEW_SET, 0).to_bytes(), SendFlags::DONTWAIT);
        bed.turn();
    }
}

#[test]
fn sets_run_out_with_an_answer_and_strangers_are_bounded() {
    let mut bed = Bed::new("limits");
    let (socket, _, _) = bed.attach();
    let mut refused = None;
    for _ in 0..=scoutline_abi::layout::SET_COUNT {
        let (answer, _) = bed.ask(&socket, &Message::new(kind::NEW_SET, 0)).unwrap();
        bed.engine.clear();
        if answer.kind == kind::REFUSED {
            refused = Some(answer);
            break;
        }
    }
    assert_eq!(refused.map(|answer| answer.name()).as_deref(), Some("too many poll sets"));
    let strangers: Vec<OwnedFd> = (0..70).map(|_| bed.connect()).collect();
    assert_eq!(bed.server.connections().count(), 1 + super::MAX_STRANGERS);
    drop(strangers);
    bed.turn();
    assert_eq!(bed.server.connections().count(), 1);
}

#[test]
fn records_and_sets_are_cleared_as_far_as_slots_were_used() {
    let (region, memory) = Region::create().unwrap();
    let region = Arc::new(region);
    let mut program = Program::new(Arc::clone(&region), 1);
    let bytes = || rustix::fs::fstat(&memory).unwrap().st_blocks * 512;
    let mut come_and_go = || {
        let records: Vec<u32> = (0..8).map_while(|pid| program.take_record(pid)).collect();
        let sets: Vec<u32> = (0..8).map_while(|_| program.take_set()).collect();
        for record in records {
            program.leave(record);
            region.process(record).unwrap().alive.store(0, Ordering::Release);
        }
        sets.into_iter().filter(|&set| program.drop_set(set)).count()
    };
    let before = bytes();
    assert_eq!([come_and_go(), come_and_go()], [8, 8]);
    let more = bytes() - before;
    assert!(more <= 16 * 4096, "{more} bytes for a program without sockets");

    // What an earlier holder has left behind, killed.
    let slot = 50_000;
    let (word, bit) = (slot / 64, 1 << (slot % 64));
    let (holds, set) = (region.holds(0).unwrap(), region.set(3).unwrap());
    let watched = region.slot(slot as u32).unwrap();
    region.header().slots_used[0].store(slot as u32 + 1, Ordering::Release);
    holds[word].store(bit, Ordering::Relaxed);
    region.ready(set).set(slot);
    watched.sets_summary.store(1, Ordering::Relaxed);
    watched.sets[0].store(1 << 3, Ordering::Relaxed);
    assert_eq!(come_and_go(), 8);
    assert_eq!(holds[word].load(Ordering::Relaxed), 0);
    assert!(region.ready(set).is_empty() && set.ready_words[word].load(Ordering::Relaxed) == 0);
    assert_eq!(watched.sets[0].load(Ordering::Relaxed), 0);
}

#[test]
fn cgroups_of_both_versions() {
    let v1 = "12:cpu,cpuacct:/web/one\n4:memory:/web/one\n3:pids:/web:two\n1:name=systemd:/\n";
    assert_eq!(parse_cgroups(v1), ["/web/one", "/web:two"]);
    assert_eq!(parse_cgroups("0::/system.slice/nginx.service\n"), ["/system.slice/nginx.service"]);
    assert!(parse_cgroups("0::/\n").is_empty() && parse_cgroups("").is_empty());
}
