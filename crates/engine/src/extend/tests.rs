//! The books about threads, and what happens to real ones.

use std::io;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::books::{DROP_ENDED_EVERY, MAX_THREADS, Touched, touch};
use super::*;
use crate::sys::{self, ThreadPolicy};

/// Nothing is ever undone here: no thread's policy is changed.
pub(super) struct NoLog;

impl UndoLog for NoLog {
    fn note(&self, _: &ThreadBefore) -> io::Result<()> {
        Ok(())
    }
    fn forget(&self, _: &ThreadBefore) {}
    fn note_group(&self, _: &ThreadGroup) -> io::Result<()> {
        Ok(())
    }
    fn forget_group(&self, _: &ThreadGroup) {}
}

fn threads() -> Arc<Threads> {
    Threads::new(Some(ExtensionSettings::default()), Some(Box::new(NoLog)))
}

fn books() -> (Books, Arc<Region>) {
    let books = Books::new(Some(ExtensionSettings::default()), Some(Arc::new(NoLog)), Notices::default());
    (books, Arc::new(Region::create().unwrap().0))
}

#[test]
fn a_program_has_no_say_about_a_thread_of_another() {
    let (mut books, region) = books();
    let own = std::process::id();
    let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
    assert!(books.keep((&region, 0), (own, own), at(1)));
    let other = Arc::new(Region::create().unwrap().0);
    assert!(!books.keep((&other, 0), (own, 1), at(2)));
    let known = &books.threads[&own];
    assert!(known.process == own && Arc::ptr_eq(&known.region, &region));
    assert!(books.keep((&region, 0), (own, own), at(3)));
}

#[test]
fn threads_that_have_ended_make_room_in_the_books() {
    let (mut books, region) = books();
    let own = std::process::id();
    assert!(books.keep((&region, 0), (own, own), Time::ZERO));
    let before = books.threads[&own].before;
    // Beyond the largest id that Linux gives (PID_MAX_LIMIT).
    for thread in (1 << 23)..(1 << 23) + MAX_THREADS as u32 {
        let ended = touch(&NoLog, &region, 0, (own, own), Time::ZERO).unwrap();
        books.threads.insert(thread, Touched { before: ThreadBefore { thread, ..before }, ..ended });
    }
    books.threads.remove(&own);
    assert!(books.keep((&region, 0), (own, own), Time::ZERO + DROP_ENDED_EVERY));
    assert_eq!(books.threads.len(), 1);
}

/// A process of one thread that waits for its end, and does nothing else.
pub(super) struct Idler(Child);

impl Idler {
    pub(super) fn start() -> Idler {
        let waits = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let idler = Idler(waits.expect("cat starts"));
        // What is given before `exec` has begun is the same thread's, but its start is read from /proc.
        assert!(sys::is_thread_of(idler.id(), idler.id()));
        idler
    }

    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    fn policy(&self) -> i32 {
        ThreadPolicy::of(self.id()).unwrap().policy & !libc::SCHED_RESET_ON_FORK
    }
}

impl Drop for Idler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An engine's, and a region on whose sets 0, 1, … these wait.
fn serving(idlers: &[&Idler]) -> (Extension, Arc<Region>) {
    let (extension, region) = (Extension::new(threads(), 0), Arc::new(Region::create().unwrap().0));
    for (set, idler) in idlers.iter().enumerate() {
        region.set(set as u32).unwrap().thread.store(idler.id(), Ordering::SeqCst);
    }
    (extension, region)
}

fn at_ms(ms: u64) -> Time {
    Time::ZERO + Duration::from_millis(ms)
}

fn duty(priority: u8, share: Share) -> Duty {
    Duty { level: Level::Priority(priority), share }
}

/// Lets the calling thread raise others, or not: the kernel's capabilities are each thread's own.
fn set_privileged(on: bool) {
    const CAP_SYS_NICE: u32 = 23;
    const VERSION_3: u32 = 0x2008_0522;
    let mut header = [VERSION_3, 0];
    // Effective, permitted, inheritable; the lower 32 first.
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: version 3 has a header of two words and two times three words of sets.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()), 0);
        sets[0][0] = sets[0][0] & !(1 << CAP_SYS_NICE) | u32::from(on) << CAP_SYS_NICE;
        let done = libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr());
        assert_eq!(done, 0, "this test needs root: {}", io::Error::last_os_error());
    }
}

#[test]
fn a_thread_that_may_not_be_raised_is_tried_again_and_in_nobodys_way() {
    let test = || {
        let (refused, allowed) = (Idler::start(), Idler::start());
        let (extension, region) = serving(&[&refused, &allowed]);
        let raise = |set: u32, idler: &Idler, ms, privileged| {
            set_privileged(privileged);
            extension.raise_at(at_ms(ms), (&region, set), idler.id(), duty(2, Share::Own));
            idler.policy()
        };
        assert_eq!(raise(0, &refused, 0, false), libc::SCHED_OTHER);
        assert_eq!(raise(1, &allowed, 0, true), libc::SCHED_FIFO, "it is another thread");
        assert_eq!(extension.notices().len(), 1, "{:?}", extension.notices());
        assert_eq!(raise(0, &refused, 100, false), libc::SCHED_OTHER, "tried again, in vain");
        assert_eq!(raise(0, &refused, 299, true), libc::SCHED_OTHER, "not yet: it waits twice as long");
        assert_eq!(raise(0, &refused, 300, true), libc::SCHED_FIFO);
        assert_eq!((extension.notices().len(), extension.raises.get()), (1, 2));
    };
    // In a thread of its own: what it may do is no matter of other tests.
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn what_somebody_else_has_given_a_thread_stays() {
    let (raised, lowered) = (Idler::start(), Idler::start());
    let (extension, region) = serving(&[&raised, &lowered]);
    let raise = |set: u32, idler: &Idler, ms| {
        extension.raise_at(at_ms(ms), (&region, set), idler.id(), duty(2, Share::Own));
        idler.policy()
    };
    // As `chrt --rr -p 5` does.
    let given = ThreadPolicy { policy: libc::SCHED_RR, priority: 5 };
    for (set, idler) in [(0, &raised), (1, &lowered)] {
        assert_eq!(raise(set, idler, 0), libc::SCHED_FIFO);
        given.give(idler.id(), false).unwrap();
    }
    region.set(1).unwrap().level.store(0, Ordering::SeqCst); // as the shim does
    assert_eq!(raise(1, &lowered, 101), libc::SCHED_RR, "it has chosen real time");
    extension.restore_all();
    assert_eq!([&raised, &lowered].map(|idler| ThreadPolicy::of(idler.id()).unwrap()), [given; 2]);
}

#[test]
fn a_change_of_classes_takes_back_what_they_gave_and_nothing_else() {
    let (raised, in_time) = (Idler::start(), Idler::start());
    let (extension, region) = serving(&[&raised, &in_time]);
    let deadline = |within_us| Share::Deadline { within_us, budget_us: 1000 };
    extension.raise_at(at_ms(0), (&region, 0), raised.id(), duty(2, Share::Own));
    extension.raise_at(at_ms(0), (&region, 1), in_time.id(), duty(1, deadline(100_000)));
    let policies = || [raised.policy(), in_time.policy()];
    assert_eq!(policies(), [libc::SCHED_FIFO, libc::SCHED_DEADLINE]);
    let take_back = |before| {
        let mut taken = TakenBack::default();
        taken.note(before, Duty::OWN);
        extension.take_back(&taken);
        policies()
    };
    assert_eq!(take_back(Duty::OWN), [libc::SCHED_FIFO, libc::SCHED_DEADLINE]);
    assert_eq!(take_back(duty(0, deadline(200_000))), [libc::SCHED_FIFO, libc::SCHED_DEADLINE]);
    assert_eq!(take_back(duty(2, Share::Own)), [libc::SCHED_OTHER, libc::SCHED_DEADLINE]);
    assert_eq!(take_back(duty(0, deadline(100_000))), [libc::SCHED_OTHER; 2]);
}

#[test]
fn a_thread_that_several_engines_raise_is_raised_once_and_remembered_as_it_was() {
    let idler = Idler::start();
    let threads = threads();
    let [one, other] = [0, 1].map(|engine| Extension::new(Arc::clone(&threads), engine));
    let region = Arc::new(Region::create().unwrap().0);
    let set = region.set(0).unwrap();
    set.thread.store(idler.id(), Ordering::SeqCst);
    let before = ThreadPolicy::of(idler.id()).unwrap();
    let raise = |engine: &Extension, ms, priority| {
        engine.raise_at(at_ms(ms), (&region, 0), idler.id(), duty(priority, Share::Own));
        ThreadPolicy::of(idler.id()).unwrap().priority
    };
    let base = i32::from(ExtensionSettings::default().base);
    assert_eq!(raise(&one, 0, 2), base + 2);
    assert_eq!(raise(&other, 1, 1), base + 2, "less important than what another engine has for it");
    assert_eq!(raise(&other, 2, 3), base + 3);
    assert_eq!((one.raises.get(), other.raises.get()), (1, 1));

    let wanted = || [&one, &other].map(|engine| engine.wanted(at_ms(2)));
    let most = Some(Level::Priority(3));
    assert_eq!(wanted(), [most; 2], "whose core it has nobody knows");
    one.core_was_idle();
    assert_eq!(wanted(), [None, most]);
    assert_eq!(raise(&one, 2, 1), base + 3);
    assert_eq!(wanted(), [most; 2], "it has been woken, and may be anywhere");

    // What one engine gives back is given back for all.
    one.forget_region(&region);
    assert_eq!(ThreadPolicy::of(idler.id()).unwrap(), before);
    assert_eq!((set.level.load(Ordering::SeqCst), other.raised_now(), wanted()), (0, 0, [None; 2]));
    assert_eq!(raise(&other, 3, 1), base + 1);
    other.restore_all();
    assert_eq!(ThreadPolicy::of(idler.id()).unwrap(), before);
}
