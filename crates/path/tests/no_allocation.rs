//! The data plane allocates nothing: a run, an offer, a look-up (DESIGN.md §10, STYLE.md "Speed").
#![allow(unsafe_code)] // a counting allocator cannot be written without

use std::alloc::{GlobalAlloc, Layout, System};
use std::any::Any;
use std::cell::Cell;

use scoutline_base::{DeviceId, PathId, Time};
use scoutline_path::{
    Attributes, Budget, Burst, Context, FlowKey, FlowTable, Grant, Limits, Message, NewPath, PathTable,
    Runner, Stage,
};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps `GlobalAlloc`'s rules.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Passes everything on; the one at the program's end turns all of it around.
struct Layer {
    turns: bool,
}

impl Stage for Layer {
    fn module(&self) -> &'static str {
        "LAYER"
    }
    fn inward(&mut self, burst: &mut Burst, turned: &mut Burst, _context: &mut Context<'_>) {
        if self.turns {
            turned.append(burst);
        }
    }
    fn outward(&mut self, burst: &mut Burst, _turned: &mut Burst, _context: &mut Context<'_>) {
        for message in burst {
            message.head.prepend(8).fill(1);
        }
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

#[test]
fn a_run_allocates_nothing() {
    let mut table = PathTable::new(Budget::default());
    let new_path = || {
        let stages = [false, false, true].map(|turns| Box::new(Layer { turns }) as Box<dyn Stage>);
        NewPath { stages: stages.into(), attributes: Attributes::new() }
    };
    let ids = [(); 3].map(|()| table.insert(new_path(), Limits::default()).unwrap());
    let mut flows = FlowTable::new(1);
    let key = FlowKey { device: DeviceId(1), ..FlowKey::default() };
    flows.insert(&key, ids[0]);
    let mut runner = Runner::new();
    let grant = Grant::new(Time::ZERO, 64, 64);
    let mut round = |id: PathId| {
        let path = table.get_mut(id).unwrap();
        for _ in 0..200 {
            path.offer(Message::default()).unwrap();
        }
        while path.run_inward(&mut runner, grant).more {}
        path.run_outward(&mut runner, grant, &mut Burst::new());
        path.on_timeout(&mut runner, grant);
        assert_eq!(runner.out.len(), 200);
        runner.out.clear();
        assert!(flows.lookup(&key).is_some());
    };
    round(ids[0]);
    let before = ALLOCATIONS.get();
    for _ in 0..10 {
        for id in ids {
            round(id);
        }
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
}
