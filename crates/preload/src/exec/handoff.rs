//! The handoff: what one program image leaves to the next, in a file in memory.
//!
//! ```text
//! head           magic, version, record, connection, region, doorbells, mark of epolls (2), descriptors that follow
//! descriptor     number, what: a slot; CANDIDATE; EPOLL | place among the epolls
//! epoll          see `epoll::handover`, one after another
//! ```

use std::collections::HashSet;
use std::ffi::{CStr, c_int};
use std::os::fd::BorrowedFd;

use scoutline_abi::layout::ENGINE_COUNT;
use scoutline_abi::{Region, VERSION};

use super::actions::Numbers;
use super::{Staying, VARIABLE};
use crate::attach::{self, ForImage};
use crate::slot::Socket;
use crate::table::Entry;
use crate::{epoll, ip_options, options, own, real, slot, stdio, table};

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
/// Words before the descriptors.
const HEAD: usize = 8 + ENGINE_COUNT;
/// Where the doorbells stand among them, and what follows.
const DOORBELLS: usize = 5;
const MARKS: usize = DOORBELLS + ENGINE_COUNT;

/// A handoff with the descriptors that it names, all without FD_CLOEXEC.
pub(super) struct Handoff {
    file: c_int,
    image: ForImage,
}

impl Handoff {
    /// `None` when no socket is to be handed over, or nothing can be: then the sockets end with this image.
    pub(super) fn new(staying: &[Staying], region: &'static Region) -> Option<Handoff> {
        if !staying.iter().any(|(_, entry)| matches!(entry, Entry::Socket(_))) {
            return None;
        }
        let image = attach::for_image()?;
        for (_, entry) in staying {
            if let Entry::Socket(index) = entry {
                slot::share_one(region, image.process, *index);
            }
        }
        // SAFETY: a terminated name.
        let file = unsafe { libc::memfd_create(c"scoutline-exec".as_ptr(), 0) };
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
    pub(super) fn write(&self, staying: &[Staying], numbers: Numbers) -> bool {
        let staying = &staying[..staying.len().min(MOST)];
        let mut epolls: Vec<u32> = Vec::new();
        let mut words = vec![MAGIC, VERSION, self.image.process];
        words.extend(numbers[1..].iter().map(|number| number.cast_unsigned()));
        words.extend(epoll::marks());
        words.push(staying.len() as u32);
        for (fd, entry) in staying {
            let what = match *entry {
                Entry::Socket(index) => index,
                Entry::Epoll(number) => {
                    let known = epolls.iter().position(|other| *other == number);
                    EPOLL
                        | known.unwrap_or_else(|| {
                            epolls.push(number);
                            epolls.len() - 1
                        }) as u32
                }
                _ => CANDIDATE,
            };
            words.extend([fd.cast_unsigned(), what]);
        }
        let slots: HashSet<u32> = staying
            .iter()
            .filter_map(|(_, entry)| if let Entry::Socket(slot) = entry { Some(*slot) } else { None })
            .collect();
        for &number in &epolls {
            epoll::hand_over(number, |slot| slots.contains(&slot), &epolls, &mut words);
        }
        let len = words.len() * size_of::<u32>();
        words.len() <= MOST_WORDS && real::write(self.file, words.as_ptr().cast(), len) == len as isize
    }

    /// Closes our copies. Without a new image that has them the daemon sees the end of its connection.
    pub(super) fn close(self) {
        for fd in self.numbers() {
            if fd >= 0 {
                real::close(fd);
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
    real::close(file);
    let (process, connection, memory) = (words[2], words[3].cast_signed(), words[4].cast_signed());
    let doorbells = std::array::from_fn(|engine| words[DOORBELLS + engine].cast_signed());
    // SAFETY: named by the image before us, and closed by nobody; a number that is not open is an error to `map`.
    let Ok(region) = Region::map(unsafe { BorrowedFd::borrow_raw(memory) }) else { return false };
    if region.process(process).is_none() || !table::create() {
        return false;
    }
    let region = attach::go_on(region, ForImage { process, connection, doorbells, memory });
    epoll::strip_marks([words[MARKS], words[MARKS + 1]]);
    let (descriptors, epolls) =
        words[HEAD..].split_at((2 * words[MARKS + 2] as usize).min(words.len() - HEAD));
    let mut numbers: Vec<Option<u32>> = Vec::new();
    for pair in descriptors.chunks_exact(2) {
        let (fd, what) = (pair[0].cast_signed(), pair[1]);
        // Another thread may have closed it in the meantime.
        let is_open = real::fcntl(fd, libc::F_GETFD, 0) >= 0;
        if what == CANDIDATE {
            if is_open {
                table::put(fd, Entry::Candidate { watched: false });
                // What was set on it the image before this one knew.
                options::note_any();
                ip_options::note_any();
            }
        } else if what & EPOLL != 0 {
            let place = (what & !EPOLL) as usize;
            if place == numbers.len() {
                numbers.push(None);
            }
            if let Some(number) = numbers.get_mut(place).filter(|_| is_open) {
                *number = epoll::named(fd, *number);
            }
        } else if let Some(socket) = Socket::at(what).filter(|_| is_open) {
            table::put(fd, Entry::Socket(what));
            socket.hold(true);
        }
    }
    slot::drop_unheld(region);
    epoll::take_over(&numbers, epolls);
    if stdio::is_standard() {
        stdio::tell_if_not_served();
    }
    true
}

/// The words of a handoff; `None` for any other file.
fn read(file: c_int) -> Option<Vec<u32>> {
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
    (words.len() >= HEAD && words[..2] == [MAGIC, VERSION]).then_some(words)
}
