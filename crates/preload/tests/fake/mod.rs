//! A daemon for tests: the attach server and an engine whose network is itself. `connect` to a listening slot of any
//! attached program makes a peer slot there; bytes go from the send ring of one to the receive ring of the other.
//!
//! It keeps to what the real engine promises the shim, and nothing more: see `notify`, `open_slot`, `process_gone`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem::{size_of, zeroed};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::sync::{Arc, Mutex};

use scoutline_abi::attach::{MESSAGE_LEN, Message, kind};
use scoutline_abi::datagram::{HEADER_LEN, Record};
use scoutline_abi::layout::{
    CALL_COUNT, Call, EXCLUSIVE, PROCESS_COUNT, SET_COUNT, SLOT_COUNT, Slot, call_op, call_state,
    engine_state, slot_kind, slot_request as ask, slot_state as is,
};
use scoutline_abi::served::Network;
use scoutline_abi::{Region, Span2};
use scoutline_base::Address;

const RING: u32 = 256 << 10;

/// Region and slot.
type Key = (usize, u32);

struct World {
    address: Address,
    doorbell: OwnedFd,
    regions: Vec<Arc<Region>>,
    /// Write ends, and how many processes know the set: a child knows its parent's.
    pipes: HashMap<(usize, u32), (OwnedFd, u32)>,
    records: HashSet<(usize, u32)>,
    used: HashSet<Key>,
    peers: HashMap<Key, Key>,
    /// Connections for which no room was in the accept queue.
    waiting: VecDeque<(Key, Key)>,
    closing: HashSet<Key>,
    finished: HashSet<Key>,
    next_port: u16,
}

/// Runs the daemon at this path until the process ends; calls `ready` when programs can attach.
pub(crate) fn serve(path: &str, address: Ipv4Addr, ready: impl FnOnce()) {
    // SAFETY: plain system calls on descriptors made here.
    unsafe {
        let mut ends = [0; 2];
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK), 0);
        let (bell, doorbell) = (ends[0], OwnedFd::from_raw_fd(ends[1]));
        let world = Arc::new(Mutex::new(World {
            address: address.into(),
            doorbell,
            regions: Vec::new(),
            pipes: HashMap::new(),
            records: HashSet::new(),
            used: HashSet::new(),
            peers: HashMap::new(),
            waiting: VecDeque::new(),
            closing: HashSet::new(),
            finished: HashSet::new(),
            next_port: 40_000,
        }));
        let listener = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        let mut name: libc::sockaddr_un = zeroed();
        name.sun_family = libc::AF_UNIX as u16;
        for (to, from) in name.sun_path.iter_mut().zip(path.bytes()) {
            *to = from.cast_signed();
        }
        assert_eq!(libc::bind(listener, (&raw const name).cast(), size_of::<libc::sockaddr_un>() as u32), 0);
        assert_eq!(libc::listen(listener, 100), 0);
        ready();
        let engine = Arc::clone(&world);
        std::thread::spawn(move || run(&engine, bell));
        loop {
            let connection =
                libc::accept4(listener, std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC);
            let world = Arc::clone(&world);
            std::thread::spawn(move || talk(&world, &OwnedFd::from_raw_fd(connection), None, Vec::new()));
        }
    }
}

fn reply(to: RawFd, answer: Message, fds: &[RawFd]) {
    // SAFETY: the message points to locals; the control buffer is large enough for two descriptors.
    unsafe {
        let bytes = answer.to_bytes();
        let mut control = [0u64; 8];
        let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            let data = size_of_val(fds) as u32;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(data) as _;
            let head = libc::CMSG_FIRSTHDR(&raw const message);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(data) as _;
            std::ptr::copy_nonoverlapping(fds.as_ptr(), libc::CMSG_DATA(head).cast(), fds.len());
        }
        libc::sendmsg(to, &raw const message, libc::MSG_NOSIGNAL);
    }
}

/// One connection: one process.
fn talk(world: &Arc<Mutex<World>>, connection: &OwnedFd, mut me: Option<(usize, u32)>, mut sets: Vec<u32>) {
    let fd = connection.as_raw_fd();
    loop {
        let mut bytes = [0u8; MESSAGE_LEN];
        // SAFETY: receives into a local.
        let got = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        let Some(message) = usize::try_from(got).ok().and_then(|n| Message::from_bytes(&bytes[..n])) else {
            break;
        };
        let mut w = world.lock().unwrap();
        match (message.kind, me) {
            (kind::ATTACH, None) => {
                let (region, memory) = Region::create().unwrap();
                let header = region.header();
                let network = Network { address: w.address, prefix_len: 96 + 24, ..Network::default() };
                header.write_served(&[network]);
                region.process(0).unwrap().alive.store(1, Release);
                w.regions.push(Arc::new(region));
                let index = w.regions.len() - 1;
                w.records.insert((index, 0));
                me = Some((index, 0));
                reply(fd, Message::new(kind::OK, 0), &[memory.as_raw_fd(), w.doorbell.as_raw_fd()]);
            }
            (kind::NEW_SET, Some((region, _))) => {
                let free = (0..SET_COUNT as u32).find(|set| !w.pipes.contains_key(&(region, *set))).unwrap();
                let mut ends = [0; 2];
                // SAFETY: fills two descriptors, owned from here on.
                let (read, write) = unsafe {
                    assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
                    libc::fcntl(ends[1], libc::F_SETFL, libc::O_NONBLOCK);
                    (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
                };
                let set = w.regions[region].set(free).unwrap();
                for word in set.ready_words.iter().chain(&set.ready_summary) {
                    word.store(0, Relaxed);
                }
                let memory = &w.regions[region];
                for slot in memory.slots_used().filter_map(|slot| memory.slot(slot)) {
                    slot.sets[free as usize / 64].fetch_and(!(1 << (free % 64)), Relaxed);
                }
                set.sleepers.store(0, SeqCst);
                set.holders.store(1, SeqCst);
                w.regions[region].clear_interests(free);
                set.signalled.store(0, SeqCst);
                w.pipes.insert((region, free), (write, 1));
                sets.push(free);
                reply(fd, Message::new(kind::OK, free), &[read.as_raw_fd()]);
            }
            (kind::FREE_SET, Some((region, _))) => {
                sets.retain(|set| *set != message.value);
                w.forget_set(region, message.value);
            }
            (kind::SETTLE, Some(_)) => reply(fd, Message::new(kind::OK, 0), &[]),
            (kind::WAKE_SET, Some((region, _))) => {
                w.wake(region, message.value);
            }
            (kind::FORK, Some((region, _))) => {
                let free = (0..PROCESS_COUNT as u32).find(|p| !w.records.contains(&(region, *p))).unwrap();
                w.records.insert((region, free));
                let record = w.regions[region].process(free).unwrap();
                record.alive.store(1, Release);
                let mut ends = [0; 2];
                // SAFETY: fills two descriptors, owned from here on.
                let (ours, theirs) = unsafe {
                    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
                    assert_eq!(libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()), 0);
                    (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
                };
                for set in &sets {
                    w.share_set(region, *set);
                }
                reply(fd, Message::new(kind::OK, free), &[theirs.as_raw_fd()]);
                let (world, sets) = (Arc::clone(world), sets.clone());
                std::thread::spawn(move || talk(&world, &ours, Some((region, free)), sets));
            }
            _ => break,
        }
    }
    if let Some((region, process)) = me {
        let mut w = world.lock().unwrap();
        for set in sets {
            w.forget_set(region, set);
            w.regions[region].set(set).unwrap().signalled.store(0, SeqCst);
            w.wake(region, set);
        }
        w.process_gone(region, process);
    }
}

/// The loop: the real one's protocol of sleeping.
fn run(world: &Mutex<World>, doorbell: RawFd) {
    loop {
        let mut idle = true;
        let mut w = world.lock().unwrap();
        for _ in 0..2 {
            for state in [engine_state::POLLING, engine_state::SLEEPING] {
                if state == engine_state::SLEEPING && !idle {
                    break;
                }
                for region in &w.regions {
                    region.header().engines[0].state.store(state, SeqCst);
                }
                fence(SeqCst);
                idle &= !w.work();
            }
        }
        drop(w);
        if idle {
            let mut fds = [libc::pollfd { fd: doorbell, events: libc::POLLIN, revents: 0 }];
            let mut count = 0u64;
            // SAFETY: locals of the right sizes.
            unsafe {
                libc::poll(fds.as_mut_ptr(), 1, 1000);
                if fds[0].revents != 0 {
                    libc::read(doorbell, (&raw mut count).cast(), 8);
                }
            }
        }
    }
}

impl World {
    fn slot(&self, key: Key) -> &Slot {
        self.regions[key.0].slot(key.1).unwrap()
    }

    fn forget_set(&mut self, region: usize, set: u32) {
        if let Some((_, count)) = self.pipes.get_mut(&(region, set)) {
            *count -= 1;
            self.regions[region].set(set).unwrap().holders.store(*count, SeqCst);
            if *count == 0 {
                self.pipes.remove(&(region, set));
            }
        }
    }

    fn share_set(&mut self, region: usize, set: u32) {
        let (_, count) = self.pipes.get_mut(&(region, set)).unwrap();
        *count += 1;
        self.regions[region].set(set).unwrap().holders.store(*count, SeqCst);
    }

    /// Marks the slot in all sets that watch it, and wakes sleepers; of blocking accepts just one.
    fn notify(&self, key: Key) {
        let region = &self.regions[key.0];
        let slot = self.slot(key);
        let one_only = slot.state.load(Relaxed) & is::LISTENING != 0;
        let mut one_woken = false;
        for (word, sets) in slot.sets.iter().enumerate() {
            let mut bits = sets.load(SeqCst);
            while bits != 0 {
                let number = word as u32 * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                let set = region.set(number).unwrap();
                region.ready(set).set(key.1 as usize);
                fence(SeqCst);
                let sleepers = set.sleepers.load(SeqCst);
                let exclusive = one_only && sleepers & EXCLUSIVE != 0;
                if sleepers == 0 || (exclusive && one_woken) {
                    continue;
                }
                if self.wake(key.0, number) && exclusive {
                    one_woken = sets.load(SeqCst) >> (number % 64) & 1 != 0;
                }
            }
        }
    }

    fn wake(&self, region: usize, number: u32) -> bool {
        let set = self.regions[region].set(number).unwrap();
        let Some((pipe, _)) = self.pipes.get(&(region, number)) else { return false };
        if set.signalled.swap(1, SeqCst) != 0 {
            return false;
        }
        // SAFETY: one byte of a constant.
        unsafe { libc::write(pipe.as_raw_fd(), c"w".as_ptr().cast(), 1) == 1 }
    }

    /// A fresh slot: everything zero but its rings.
    fn open_slot(&mut self, region: usize, kind: u32) -> Key {
        let index = (0..SLOT_COUNT as u32).find(|s| !self.used.contains(&(region, *s))).unwrap();
        let key = (region, index);
        self.used.insert(key);
        self.regions[region].header().slots_used[0].fetch_max(index + 1, Release);
        let slot = self.slot(key);
        let generation = slot.generation.load(Relaxed) + 1;
        // SAFETY: a slot is atomics only, and nobody uses this one now.
        unsafe {
            std::ptr::write_bytes(std::ptr::from_ref(slot).cast_mut().cast::<u8>(), 0, size_of::<Slot>());
        };
        slot.receive_offset.store(u64::from(index) * u64::from(RING) * 2, Relaxed);
        slot.send_offset.store(u64::from(index) * u64::from(RING) * 2 + u64::from(RING), Relaxed);
        slot.receive_size.store(RING, Relaxed);
        slot.send_size.store(RING, Relaxed);
        slot.generation.store(generation, Relaxed);
        slot.kind.store(kind, Release);
        key
    }

    fn free(&mut self, key: Key) {
        if let Some(peer) = self.peers.remove(&key) {
            self.peers.remove(&peer);
        }
        self.closing.remove(&key);
        self.finished.remove(&key);
        self.used.remove(&key);
        self.slot(key).state.store(0, Release);
        self.slot(key).kind.store(slot_kind::FREE, Release);
    }

    fn fail(&mut self, key: Key, errno: i32) {
        let slot = self.slot(key);
        if slot.state.load(Relaxed) & is::FAILED == 0 {
            slot.error.store(errno, Release);
            slot.state.fetch_or(is::FAILED, AcqRel);
            self.notify(key);
        }
    }

    fn process_gone(&mut self, region: usize, process: u32) {
        let memory = Arc::clone(&self.regions[region]);
        let record = memory.process(process).unwrap();
        record.alive.store(0, Release);
        let claiming = record.claiming.swap(0, AcqRel);
        let holds = memory.holds(process).unwrap();
        for word in memory.words_used() {
            let mut bits = holds[word].swap(0, AcqRel);
            while bits != 0 {
                let key = (region, word as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
                if self.used.contains(&key) && self.slot(key).references.fetch_sub(1, AcqRel) == 1 {
                    self.slot(key).requests.fetch_or(ask::CLOSE, AcqRel);
                    self.serve(key);
                }
            }
        }
        let _ = claiming; // taken and not held: the real engine looks whether it still stands in the queue
        self.records.remove(&(region, process));
        // The real engine takes calls from whom they name: one that was put back may be another's by then.
        let calls = (0..CALL_COUNT as u32).filter_map(|index| memory.call(index));
        let put_back = |call: &&Call| call.state.load(Acquire) == call_state::FREE;
        assert!(calls.filter(put_back).all(|call| call.process.load(Relaxed) != process + 1));
        // A wake that the dead process got is passed on.
        let listening: Vec<Key> = self.used.iter().copied().collect();
        for key in listening {
            let slot = self.slot(key);
            if slot.state.load(Relaxed) & is::LISTENING != 0
                && slot.receive_tail.load(Relaxed) != slot.receive_head.load(Acquire)
            {
                self.notify(key);
            }
        }
    }

    /// True when there was something to do.
    fn work(&mut self) -> bool {
        let mut any = false;
        for r in 0..self.regions.len() {
            let region = Arc::clone(&self.regions[r]);
            for (w, word) in region.header().calls_pending[0].0.iter().enumerate() {
                let mut bits = word.swap(0, SeqCst);
                while bits != 0 {
                    any = true;
                    self.answer(r, w as u32 * 64 + bits.trailing_zeros());
                    bits &= bits - 1;
                }
            }
            let mut dirty = Vec::new();
            region.dirty().drain(|slot| dirty.push((r, slot as u32)));
            any |= !dirty.is_empty();
            for key in dirty {
                self.serve(key);
                let slot = self.slot(key);
                let listens = slot.state.load(Relaxed) & is::LISTENING != 0;
                if listens && slot.receive_head.load(Acquire) != slot.receive_tail.load(Relaxed) {
                    self.notify(key);
                }
            }
        }
        for _ in 0..self.waiting.len() {
            let (client, listener) = self.waiting.pop_front().unwrap();
            self.establish(client, listener);
        }
        any
    }

    fn answer(&mut self, r: usize, index: u32) {
        let region = Arc::clone(&self.regions[r]);
        let call = region.call(index).unwrap();
        let argument = |i: usize| call.arguments[i].load(Relaxed);
        let key = (r, call.slot.load(Relaxed));
        let address = || Address::from_words([argument(3), argument(0)]);
        let result = match call.op.load(Relaxed) {
            call_op::OPEN => {
                let key = self.open_slot(r, argument(0) as u32);
                self.slot(key).references.store(1, Release);
                key.1 as i32
            }
            call_op::BIND => self.bind(key, address(), argument(1) as u16, argument(2)),
            call_op::LISTEN => {
                self.slot(key).state.fetch_or(is::LISTENING, AcqRel);
                0
            }
            call_op::CONNECT => self.connect(key, address(), argument(1) as u16),
            call_op::DISCONNECT => {
                self.slot(key).state.fetch_and(!is::CONNECTED, AcqRel);
                0
            }
            _ => 0,
        };
        call.result.store(result, Relaxed);
        call.state.store(call_state::DONE, SeqCst);
        let set = call.set.load(Relaxed);
        if set != 0 && region.set(set - 1).unwrap().sleepers.load(SeqCst) != 0 {
            self.wake(r, set - 1);
        }
    }

    fn bind(&mut self, key: Key, address: Address, port: u16, reuse: u64) -> i32 {
        let stream = self.slot(key).kind.load(Relaxed);
        let taken = |port: u16| {
            self.used.iter().any(|other| {
                let slot = self.slot(*other);
                let state = slot.state.load(Relaxed);
                *other != key
                    && slot.kind.load(Relaxed) == stream
                    && slot.local_port.load(Relaxed) == u32::from(port)
                    && state & is::BOUND != 0
                    && (state & is::LISTENING != 0 || stream == slot_kind::DATAGRAM)
            })
        };
        let mut port = port;
        if port != 0 && taken(port) && reuse & 2 == 0 {
            return -libc::EADDRINUSE;
        }
        while port == 0 {
            self.next_port = self.next_port.wrapping_add(1).max(40_000);
            let next = self.next_port;
            let taken = self.used.iter().any(|k| self.slot(*k).local_port.load(Relaxed) == u32::from(next));
            if !taken {
                port = next;
            }
        }
        let slot = self.slot(key);
        slot.local_address.store(address);
        slot.local_port.store(u32::from(port), Relaxed);
        slot.state.fetch_or(is::BOUND, AcqRel);
        0
    }

    fn connect(&mut self, key: Key, address: Address, port: u16) -> i32 {
        if self.slot(key).state.load(Relaxed) & is::BOUND == 0 {
            self.bind(key, self.address, 0, 0);
        }
        let slot = self.slot(key);
        slot.local_address.store(self.address);
        slot.remote_address.store(address);
        slot.remote_port.store(u32::from(port), Relaxed);
        if slot.kind.load(Relaxed) == slot_kind::DATAGRAM {
            slot.state.fetch_or(is::CONNECTED, AcqRel);
            return 0;
        }
        slot.state.fetch_or(is::CONNECTING, AcqRel);
        let listener = self.used.iter().copied().find(|other| {
            let slot = self.slot(*other);
            slot.state.load(Relaxed) & is::LISTENING != 0
                && slot.local_port.load(Relaxed) == u32::from(port)
                && !self.closing.contains(other)
        });
        match listener.filter(|_| address == self.address) {
            Some(listener) => self.establish(key, listener),
            None => self.fail(key, libc::ECONNREFUSED),
        }
        0
    }

    fn establish(&mut self, client: Key, listener: Key) {
        if !self.used.contains(&listener) || !self.used.contains(&client) {
            return;
        }
        let queue = self.slot(listener);
        let (head, tail) = (queue.receive_head.load(Acquire), queue.receive_tail.load(Relaxed));
        if tail - head >= 128 {
            self.waiting.push_back((client, listener));
            return;
        }
        let server = self.open_slot(listener.0, slot_kind::STREAM);
        self.peers.insert(client, server);
        self.peers.insert(server, client);
        let (from, to, queue) = (self.slot(client), self.slot(server), self.slot(listener));
        to.local_address.store(self.address);
        to.local_port.store(queue.local_port.load(Relaxed), Relaxed);
        to.remote_address.store(self.address);
        to.remote_port.store(from.local_port.load(Relaxed), Relaxed);
        to.state.store(is::CONNECTED | is::BOUND, Release);
        let region = &self.regions[listener.0];
        let spans = region.ring_spans(queue.receive_offset.load(Relaxed), RING, tail * 4, 4).unwrap();
        // SAFETY: four mapped, aligned bytes.
        unsafe { spans[0].memory.cast::<u32>().write_volatile(server.1) };
        queue.receive_tail.store(tail + 1, Release);
        from.state.fetch_or(is::CONNECTED, AcqRel);
        from.state.fetch_and(!is::CONNECTING, AcqRel);
        self.notify(listener);
        self.notify(client);
    }

    /// A slot was marked.
    fn serve(&mut self, key: Key) {
        if !self.used.contains(&key) {
            return;
        }
        let requests = self.slot(key).requests.load(Acquire);
        let state = self.slot(key).state.load(Relaxed);
        if requests & ask::SHUTDOWN_READ != 0 {
            self.notify(key);
        }
        if self.slot(key).kind.load(Relaxed) == slot_kind::DATAGRAM {
            self.pump_datagrams(key);
            if requests & ask::CLOSE != 0 {
                self.free(key);
            }
            return;
        }
        if state & is::LISTENING != 0 {
            if requests & ask::CLOSE != 0 {
                let slot = self.slot(key);
                let (head, tail) = (slot.receive_head.load(Acquire), slot.receive_tail.load(Relaxed));
                let offset = slot.receive_offset.load(Relaxed);
                for at in head..tail {
                    let spans = self.regions[key.0].ring_spans(offset, RING, at * 4, 4).unwrap();
                    // SAFETY: four mapped, aligned bytes.
                    let queued = (key.0, unsafe { spans[0].memory.cast::<u32>().read_volatile() });
                    if let Some(peer) = self.peers.get(&queued).copied() {
                        self.fail(peer, libc::ECONNRESET);
                    }
                    self.free(queued);
                }
                self.free(key);
            }
            return;
        }
        if requests & ask::CLOSE != 0 {
            self.close(key, requests & ask::ABORT != 0);
            return;
        }
        self.pump(key);
        if let Some(peer) = self.peers.get(&key).copied() {
            self.pump(peer);
        }
    }

    fn close(&mut self, key: Key, abort: bool) {
        let slot = self.slot(key);
        let unread = slot.receive_tail.load(Relaxed) != slot.receive_head.load(Acquire);
        match self.peers.get(&key).copied() {
            // Linux resets what is closed with unread bytes.
            Some(peer) if abort || unread => {
                self.fail(peer, libc::ECONNRESET);
                self.free(key);
            }
            Some(_) => {
                self.closing.insert(key);
                self.pump(key);
            }
            None => self.free(key),
        }
    }

    /// Moves what fits from this slot to its peer, and its end.
    fn pump(&mut self, key: Key) {
        let Some(peer) = self.peers.get(&key).copied() else {
            // Nobody is there: a reset answers what was sent.
            let slot = self.slot(key);
            let state = slot.state.load(Relaxed);
            if state & is::CONNECTED != 0 && slot.send_tail.load(Acquire) != slot.send_head.load(Relaxed) {
                let finished = state & is::PEER_FINISHED != 0;
                self.fail(key, if finished { libc::EPIPE } else { libc::ECONNRESET });
            }
            return;
        };
        let (from, to) = (self.slot(key), self.slot(peer));
        let mut moved = false;
        let (mut head, tail) = (from.send_head.load(Relaxed), from.send_tail.load(Acquire));
        let mut at = to.receive_tail.load(Relaxed);
        if self.closing.contains(&peer) && tail != head {
            let finished = from.state.load(Relaxed) & is::PEER_FINISHED != 0;
            self.fail(key, if finished { libc::EPIPE } else { libc::ECONNRESET });
            self.free(peer);
            return;
        }
        while head < tail {
            let room = u64::from(RING) - (at - to.receive_head.load(Acquire));
            let len = room.min(tail - head).min(65_536) as usize;
            if len == 0 {
                break;
            }
            let out =
                self.regions[key.0].ring_spans(from.send_offset.load(Relaxed), RING, head, len).unwrap();
            let into =
                self.regions[peer.0].ring_spans(to.receive_offset.load(Relaxed), RING, at, len).unwrap();
            let bytes = copy_out(&out, len);
            copy_in(&bytes, &into);
            head += len as u64;
            at += len as u64;
            moved = true;
        }
        to.receive_tail.store(at, Release);
        from.send_head.store(head, Release);
        if moved {
            self.notify(peer);
            fence(SeqCst);
            if from.send_wanted.load(SeqCst) != 0 && u64::from(RING) - (tail - head) >= u64::from(RING) / 3 {
                from.send_wanted.store(0, SeqCst);
                self.notify(key);
            }
        }
        // A close that `serve` has not seen yet may have to be a reset: its mark comes.
        let over = from.requests.load(Acquire) & ask::SHUTDOWN != 0 || self.closing.contains(&key);
        if over && head == from.send_tail.load(Acquire) && !self.finished.contains(&key) {
            to.state.fetch_or(is::PEER_FINISHED, AcqRel);
            self.finished.insert(key);
            self.notify(peer);
        }
        // Closed, everything delivered, and the other side has ended too (or does not matter any more).
        if self.closing.contains(&key) && self.finished.contains(&key) && self.finished.contains(&peer) {
            let both = self.closing.contains(&peer);
            self.free(key);
            if both {
                self.free(peer);
            }
        }
    }

    fn pump_datagrams(&mut self, key: Key) {
        if self.slot(key).state.load(Relaxed) & is::BOUND == 0 {
            self.bind(key, self.address, 0, 0);
        }
        let region = Arc::clone(&self.regions[key.0]);
        let slot = region.slot(key.1).unwrap();
        let (mut head, tail) = (slot.send_head.load(Relaxed), slot.send_tail.load(Acquire));
        let offset = slot.send_offset.load(Relaxed);
        while head < tail {
            let header = copy_out(&region.ring_spans(offset, RING, head, HEADER_LEN).unwrap(), HEADER_LEN);
            let record = Record::from_bytes(header.try_into().unwrap());
            let len = record.len as usize;
            let start = head + HEADER_LEN as u64;
            let payload = copy_out(&region.ring_spans(offset, RING, start, len).unwrap(), len);
            head += Record::ring_len(len);
            let port = if record.port == 0 { slot.remote_port.load(Relaxed) } else { u32::from(record.port) };
            let target = self.used.iter().copied().find(|other| {
                let slot = self.slot(*other);
                slot.kind.load(Relaxed) == slot_kind::DATAGRAM && slot.local_port.load(Relaxed) == port
            });
            let Some(target) = target else {
                if slot.state.load(Relaxed) & is::CONNECTED != 0 {
                    slot.error.store(libc::ECONNREFUSED, Release);
                    self.notify(key);
                }
                continue;
            };
            let to = self.slot(target);
            let at = to.receive_tail.load(Relaxed);
            let need = Record::ring_len(len);
            if u64::from(RING) - (at - to.receive_head.load(Acquire)) < need {
                continue;
            }
            let from = Record {
                len: len as u32,
                address: self.address,
                port: slot.local_port.load(Relaxed) as u16,
                ..Record::default()
            };
            let ring = to.receive_offset.load(Relaxed);
            let memory = &self.regions[target.0];
            copy_in(&from.to_bytes(), &memory.ring_spans(ring, RING, at, HEADER_LEN).unwrap());
            copy_in(&payload, &memory.ring_spans(ring, RING, at + HEADER_LEN as u64, len).unwrap());
            to.receive_tail.store(at + need, Release);
            self.notify(target);
        }
        slot.send_head.store(head, Release);
        if slot.send_wanted.swap(0, SeqCst) != 0 {
            self.notify(key);
        }
    }
}

fn copy_out(spans: &Span2, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: the spans are mapped and together `len` long.
    unsafe {
        spans[0].copy_to(&mut bytes[..spans[0].len]);
        spans[1].copy_to(&mut bytes[spans[0].len..]);
    }
    bytes
}

fn copy_in(bytes: &[u8], spans: &Span2) {
    let (first, second) = bytes.split_at(spans[0].len);
    // SAFETY: the spans are mapped and together as long as `bytes`.
    unsafe {
        std::ptr::copy_nonoverlapping(first.as_ptr(), spans[0].memory.as_ptr(), first.len());
        std::ptr::copy_nonoverlapping(second.as_ptr(), spans[1].memory.as_ptr(), second.len());
    }
}
