//! The handoff: what one program image leaves to the next, in a file in memory that nobody can change any more.
//!
//! ```text
//! head           magic, version, connection, region, doorbells, record, descriptors that follow
//! descriptor     number, what: a slot; CANDIDATE; EPOLL | place among the epolls
//! epoll          see `epoll::handover`, one after another
//! ```
//! The variable that names it may go through programs without the shim, which may damage it, hand it to several others, or
//! put something else at its numbers. So it is looked at as what a stranger says: the file is sealed, the descriptors are
//! several, none of the standard streams and of the kinds that they should be, the record is alive and nobody has taken it
//! yet, its sockets are those that the record holds. Where one of these does not hold, what is certainly the handoff's is
//! closed, so that the daemon gives the record back, and the image attaches by itself.

use std::collections::HashSet;
use std::ffi::{CStr, c_int};
use std::sync::atomic::Ordering;

use scoutline_abi::layout::ENGINE_COUNT;
use scoutline_abi::{Region, VERSION};

use super::actions::Numbers;
use super::{Staying, VARIABLE};
use crate::attach::{self, ForImage};
use crate::slot::Socket;
use crate::table::Entry;
use crate::{epoll, ip_options, limits, options, own, real, slot, stdio, table};

/// The first word of a handoff.
const MAGIC: u32 = u32::from_le_bytes(*b"SLEX");
/// Descriptors in a handoff, at most: what is beyond stays open, but unknown.
const MOST: usize = 1 << 16;
/// Words in a handoff, at most: as many descriptors, and each of them in a thousand epolls.
const MOST_WORDS: usize = 16 << 20;
/// In a handoff: a socket of the kernel's that may become ours.
const CANDIDATE: u32 = u32::MAX;
/// In a handoff: an epoll.
const EPOLL: u32 = 1 << 31;
/// Where the handoff's own descriptors stand, in every version; and what follows them.
const NUMBERS: usize = 2;
const RECORD: usize = NUMBERS + 2 + ENGINE_COUNT;
const COUNT: usize = RECORD + 1;
/// Words before the descriptors.
const HEAD: usize = COUNT + 1;
/// What nobody can do to a handoff any more.
const SEALS: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE | libc::F_SEAL_SEAL;
/// Standard streams are never a handoff's.
pub(super) const LEAST_NUMBER: c_int = 3;

/// A handoff with the descriptors that it names, all without FD_CLOEXEC.
pub(super) struct Handoff {
    file: c_int,
    image: ForImage,
}

/// The epolls that go on, and the words about each of them.
type Epolls = (Vec<u32>, Vec<u32>);

/// See [`Epolls`]. Before the locks for a fork are taken: an epoll's come before those.
pub(super) fn epolls_of(staying: &[Staying]) -> Epolls {
    let staying = &staying[..staying.len().min(MOST)];
    let (mut epolls, mut slots) = (Vec::new(), HashSet::new());
    for (_, entry) in staying {
        match *entry {
            Entry::Epoll(number) if !epolls.contains(&number) => epolls.push(number),
            Entry::Socket(slot) => {
                slots.insert(slot);
            }
            _ => {}
        }
    }
    let mut words = Vec::new();
    for &number in &epolls {
        epoll::hand_over(number, |slot| slots.contains(&slot), &epolls, &mut words);
    }
    (epolls, words)
}

impl Handoff {
    /// `None` when no socket is to be handed over, or nothing can be: then the sockets end with this image.
    pub(super) fn new(staying: &[Staying], region: &'static Region) -> Option<Handoff> {
        if !staying.iter().any(|(_, entry)| matches!(entry, Entry::Socket(_))) {
            return None;
        }
        let made = || Handoff::made(staying, region);
        made().or_else(|| if attach::dead() { None } else { limits::beyond(made) })
    }

    fn made(staying: &[Staying], region: &'static Region) -> Option<Handoff> {
        let image = attach::for_image()?;
        for (_, entry) in staying {
            // What is on its way to be closed may be gone, and the slot another's; from here on it would stay.
            if let Entry::Socket(index) = entry
                && Socket::at(*index).is_some_and(Socket::is_in_record)
            {
                slot::share_one(region, image.process, *index);
            }
        }
        // SAFETY: a terminated name.
        let file = unsafe { libc::memfd_create(c"scoutline-exec".as_ptr(), libc::MFD_ALLOW_SEALING) };
        let handoff = Handoff { file: own::move_up_open(file), image };
        if handoff.file < 0 {
            handoff.close();
            return None;
        }
        Some(handoff)
    }

    /// The numbers of its descriptors here.
    pub(super) fn numbers(&self) -> Numbers {
        let ForImage { connection, memory, doorbells, .. } = self.image;
        let mut numbers = [-1; 3 + ENGINE_COUNT];
        numbers[..3].copy_from_slice(&[self.file, connection, memory]);
        numbers[3..].copy_from_slice(&doorbells);
        numbers
    }

    /// Writes what the next image finds, where it finds the descriptors at these numbers. False: it could not be written.
    pub(super) fn write(&self, staying: &[Staying], (epolls, of_epolls): &Epolls, numbers: Numbers) -> bool {
        let staying = &staying[..staying.len().min(MOST)];
        let mut words = vec![MAGIC, VERSION];
        words.extend(numbers[1..].iter().map(|number| number.cast_unsigned()));
        words.extend([self.image.process, staying.len() as u32]);
        for (fd, entry) in staying {
            let what = match *entry {
                Entry::Socket(index) => index,
                Entry::Epoll(number) => {
                    EPOLL | epolls.iter().position(|other| *other == number).unwrap_or(epolls.len()) as u32
                }
                _ => CANDIDATE,
            };
            words.extend([fd.cast_unsigned(), what]);
        }
        words.extend(of_epolls);
        let len = words.len() * size_of::<u32>();
        words.len() <= MOST_WORDS
            && real::write(self.file, words.as_ptr().cast(), len) == len as isize
            && real::fcntl(self.file, libc::F_ADD_SEALS, SEALS as usize) == 0
    }

    /// Closes our copies. Without a new image that has them the daemon sees the end of its connection.
    pub(super) fn close(self) {
        for fd in self.numbers() {
            if fd >= 0 {
                real::close_uncancelled(fd);
            }
        }
    }
}

/// In a new image: what the one before handed over, entered. False when there is nothing, or nothing usable.
pub(crate) fn take_over() -> bool {
    let value = real::getenv(VARIABLE.as_ptr());
    if value.is_null() {
        return false;
    }
    // SAFETY: `getenv` answers a terminated string.
    let text = unsafe { CStr::from_ptr(value) }.to_str().unwrap_or_default();
    let file = text.parse().unwrap_or(-1);
    // SAFETY: a terminated name; no other thread runs yet.
    unsafe { libc::unsetenv(VARIABLE.as_ptr()) };
    let Some(words) = read(file) else { return false };
    let image = image_of(&words);
    let region = image_is_sound(file, &image).then(|| map(&words, &image)).flatten();
    real::close_uncancelled(file);
    let Some(region) = region.filter(|_| table::create()) else {
        close_sound(file, &image);
        real::say(&[
            b"what the program before this one left cannot be taken over: its sockets are lost here",
        ]);
        return false;
    };
    let region = attach::go_on(region, image);
    let (descriptors, epolls) =
        words[HEAD..].split_at((2 * words[COUNT] as usize).min(words.len() - HEAD) & !1);
    let mut numbers: Vec<Option<u32>> = Vec::new();
    for pair in descriptors.chunks_exact(2) {
        enter(pair[0].cast_signed(), pair[1], &mut numbers);
    }
    slot::drop_unheld(region);
    epoll::take_over(&numbers, epolls);
    if stdio::is_standard() {
        stdio::tell_if_not_served();
    }
    true
}

/// Enters a descriptor, if it is what it is said to be: another thread of the image before may have closed it in the
/// meantime, and its number may be another file's. `numbers`: those of the epolls, by their place.
fn enter(fd: c_int, what: u32, numbers: &mut Vec<Option<u32>>) {
    // Named twice, or one of ours.
    let is_free = table::covers(fd) && table::look(fd) == Entry::Kernel;
    if what == CANDIDATE {
        if is_free && kind_of(fd) == Kind::Socket {
            table::put(fd, Entry::Candidate { watched: false });
            table::note_shared(fd);
            // What was set on it the image before this one knew.
            options::note_any();
            ip_options::note_any();
        }
    } else if what & EPOLL != 0 {
        let place = (what & !EPOLL) as usize;
        if place == numbers.len() {
            numbers.push(None);
        }
        let is_epoll = is_free && kind_of(fd) == Kind::Nameless && epoll::is_one(fd);
        if let Some(number) = numbers.get_mut(place).filter(|_| is_epoll) {
            *number = epoll::named(fd, *number);
        }
    } else if let Some(socket) = Socket::at(what).filter(|_| is_free && kind_of(fd) == Kind::Socket)
        && socket.is_in_record()
    {
        table::put(fd, Entry::Socket(what));
        socket.hold(true);
    }
}

/// What a descriptor is, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Of IP.
    Socket,
    /// One whose borders of messages stay, on this machine.
    Connection,
    /// Of a file system, memory among them.
    File,
    /// A pipe's end.
    Pipe,
    /// Of the kernel's without a name, as epolls are.
    Nameless,
    Other,
}

fn kind_of(fd: c_int) -> Kind {
    // SAFETY: zeros are a valid structure to fill.
    let mode = unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &raw mut about) < 0 {
            return Kind::Other;
        }
        about.st_mode & libc::S_IFMT
    };
    let option = |name| {
        let (mut value, mut len) = (-1, size_of::<c_int>() as u32);
        real::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len);
        value
    };
    match mode {
        0 => Kind::Nameless,
        libc::S_IFREG => Kind::File,
        libc::S_IFIFO => Kind::Pipe,
        libc::S_IFSOCK => match (option(libc::SO_DOMAIN), option(libc::SO_TYPE)) {
            (libc::AF_UNIX, libc::SOCK_SEQPACKET) => Kind::Connection,
            (libc::AF_INET | libc::AF_INET6, _) => Kind::Socket,
            _ => Kind::Other,
        },
        _ => Kind::Other,
    }
}

/// The record and the descriptors that a handoff names.
fn image_of(words: &[u32]) -> ForImage {
    let number = |at: usize| words[NUMBERS + at].cast_signed();
    ForImage {
        process: words[RECORD],
        connection: number(0),
        memory: number(1),
        doorbells: std::array::from_fn(|engine| number(2 + engine)),
    }
}

/// The descriptors of an image that are certainly a handoff's: of the right kind, and none that has another meaning.
fn sound(file: c_int, image: &ForImage) -> impl Iterator<Item = c_int> {
    let wanted = [(image.connection, Kind::Connection), (image.memory, Kind::File)]
        .into_iter()
        .chain(image.doorbells.map(|doorbell| (doorbell, Kind::Pipe)));
    let mut seen = vec![file];
    wanted.filter_map(move |(fd, kind)| {
        let is_sound = fd >= LEAST_NUMBER && !seen.contains(&fd) && kind_of(fd) == kind;
        seen.push(fd);
        is_sound.then_some(fd)
    })
}

fn image_is_sound(file: c_int, image: &ForImage) -> bool {
    let bells = image.doorbells.iter().filter(|&&doorbell| doorbell != -1).count();
    sound(file, image).count() == 2 + bells
}

/// Gives back what a handoff names that cannot be used.
fn close_sound(file: c_int, image: &ForImage) {
    let descriptors: Vec<c_int> = sound(file, image).collect();
    for fd in descriptors {
        real::close_uncancelled(fd);
    }
}

/// The region of a handoff, if its record is there for us.
fn map(words: &[u32], image: &ForImage) -> Option<Region> {
    if words[1] != VERSION {
        return None;
    }
    // SAFETY: a file that is open, and closed by nobody here.
    let region = unsafe { limits::map(image.memory) }?;
    let bells = image.doorbells.get(..region.engines())?;
    let record = region.process(image.process)?;
    // A program without the shim may have started several: the first one is the image that was meant.
    // SAFETY: no arguments.
    let own = unsafe { libc::getpid() } as u32;
    let is_ours = bells.iter().all(|&bell| bell >= 0)
        && record.alive.load(Ordering::Acquire) != 0
        && record.pid.compare_exchange(0, own, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    is_ours.then_some(region)
}

/// The words of a handoff; `None` for any other file, and one that somebody could still change.
fn read(file: c_int) -> Option<Vec<u32>> {
    if file < LEAST_NUMBER || real::fcntl(file, libc::F_GET_SEALS, 0) & SEALS != SEALS {
        return None;
    }
    // SAFETY: zeros are a valid structure to fill.
    let len = unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        if libc::fstat(file, &raw mut about) == 0 { about.st_size } else { 0 }
    };
    let count = usize::try_from(len).ok()? / size_of::<u32>();
    if !(HEAD..=MOST_WORDS).contains(&count) {
        return None;
    }
    let mut words = vec![0u32; count];
    let room = words.len() * size_of::<u32>();
    // SAFETY: room for so many bytes.
    let got = unsafe { libc::pread(file, words.as_mut_ptr().cast(), room, 0) };
    words.truncate(usize::try_from(got).ok()? / size_of::<u32>());
    (words.len() >= HEAD && words[0] == MAGIC).then_some(words)
}
