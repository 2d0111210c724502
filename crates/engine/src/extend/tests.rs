//! The books about threads.

use std::io;

use super::*;

/// Nothing is ever undone here: no thread's policy is changed.
struct NoLog;

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

fn books() -> (Extension, Arc<Region>) {
    let extension = Extension::new(Some(ExtensionSettings::default()), Some(Box::new(NoLog)));
    (extension, Arc::new(Region::create().unwrap().0))
}

#[test]
fn a_program_has_no_say_about_a_thread_of_another() {
    let (extension, region) = books();
    let mut threads = HashMap::new();
    let own = std::process::id();
    let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
    assert!(extension.keep_books(&mut threads, (&region, 0), (own, own), at(1)));
    let other = Arc::new(Region::create().unwrap().0);
    assert!(!extension.keep_books(&mut threads, (&other, 0), (own, 1), at(2)));
    assert!(
        threads.get(&own).is_some_and(|known| known.process == own && Arc::ptr_eq(&known.region, &region))
    );
    assert!(extension.keep_books(&mut threads, (&region, 0), (own, own), at(3)));
}

#[test]
fn threads_that_have_ended_make_room_in_the_books() {
    let (extension, region) = books();
    let mut threads = HashMap::new();
    let own = std::process::id();
    assert!(extension.keep_books(&mut threads, (&region, 0), (own, own), Time::ZERO));
    let before = threads[&own].before;
    // Beyond the largest id that Linux gives (PID_MAX_LIMIT).
    for thread in (1 << 23)..(1 << 23) + MAX_THREADS as u32 {
        let ended = touch(&NoLog, &region, 0, (own, own), Time::ZERO).unwrap();
        threads.insert(thread, Touched { before: ThreadBefore { thread, ..before }, ..ended });
    }
    threads.remove(&own);
    assert!(extension.keep_books(&mut threads, (&region, 0), (own, own), Time::ZERO + DROP_ENDED_EVERY));
    assert_eq!(threads.len(), 1);
}
