//! Modules and stages for the tests of this crate: layers with a header of one byte.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;

use scoutline_base::{PathId, Time};
use scoutline_ring::{Block, Pool};

use crate::{
    Arity, Attributes, Body, Budget, Burst, Context, CreateError, DropReason, Facts, Grant, Limits, Message,
    Module, NewPath, Next, Path, Service, ServiceKind, Side, Stage, Stages, Step, Verdict, View,
};

/// What happened, in order.
pub(crate) type Log = Rc<RefCell<Vec<String>>>;

pub(crate) const UP: Service = Service {
    name: "up",
    kind: ServiceKind::Net,
    side: Side::Upper,
    arity: Arity::Many,
    initialise_first: false,
};
pub(crate) const DOWN: Service =
    Service { name: "down", side: Side::Lower, arity: Arity::One, initialise_first: true, ..UP };

/// A module whose answers a test chooses.
pub(crate) struct Fake {
    pub(crate) name: &'static str,
    pub(crate) services: &'static [Service],
    pub(crate) protocol: Option<u32>,
    pub(crate) next: Next,
    pub(crate) log: Log,
    pub(crate) stage: fn(&Fake) -> Option<Box<dyn Stage>>,
    pub(crate) initialise: Result<(), CreateError>,
}

impl Fake {
    /// A module between others: one header byte, the first letter of its name.
    pub(crate) fn new(name: &'static str, log: &Log) -> Fake {
        Fake {
            name,
            services: &[UP, DOWN],
            protocol: Some(u32::from(name.as_bytes()[0])),
            next: Next::Through("down"),
            log: Rc::clone(log),
            stage: |fake| Some(Box::new(Layer::new(fake.name, &fake.log))),
            initialise: Ok(()),
        }
    }

    /// A module next to the device.
    pub(crate) fn leaf(name: &'static str, log: &Log) -> Fake {
        Fake { services: &[UP], next: Next::End, ..Fake::new(name, log) }
    }
}

impl Module for Fake {
    fn name(&self) -> &'static str {
        self.name
    }

    fn services(&self) -> &'static [Service] {
        self.services
    }

    fn protocol(&self) -> Option<u32> {
        self.protocol
    }

    fn initialise(&mut self) -> Result<(), CreateError> {
        self.log.borrow_mut().push(format!("initialise {}", self.name));
        self.initialise.clone()
    }

    fn create_stage(&self, _attributes: &mut Attributes) -> Result<Step, CreateError> {
        self.log.borrow_mut().push(format!("create {}", self.name));
        Ok(Step { stage: (self.stage)(self), next: self.next })
    }

    /// Checks its own byte and names the next one; a zero behind it is path 7, nothing behind it no path.
    fn demux(&self, view: &mut View<'_>) -> Verdict {
        let bytes = &view.bytes[view.offset..view.end];
        if bytes.first() != Some(&self.name.as_bytes()[0]) {
            return Verdict::Drop(DropReason::Malformed);
        }
        view.offset += 1;
        view.key.protocol += 1;
        match bytes.get(1) {
            None => Verdict::NoPath,
            Some(0) => Verdict::Path(PathId { index: 7, generation: 0 }),
            // For a test: claims to have moved past the end.
            Some(0xff) => {
                view.offset = view.end + 1;
                Verdict::Up(0)
            }
            Some(&next) => Verdict::Up(u32::from(next)),
        }
    }
}

/// A stage with a header of one byte, the first letter of its module's name.
pub(crate) struct Layer {
    pub(crate) module: &'static str,
    pub(crate) log: Log,
    /// Answers each packet that comes inward with an empty one outward.
    pub(crate) answers: bool,
    /// Turns everything around.
    pub(crate) mirror: bool,
    /// Sends one packet in both directions when this is due.
    pub(crate) timeout: Option<Time>,
    pub(crate) fails: bool,
}

impl Layer {
    pub(crate) fn new(module: &'static str, log: &Log) -> Layer {
        let log = Rc::clone(log);
        Layer { module, log, answers: false, mirror: false, timeout: None, fails: false }
    }

    fn note(&self, what: &str, count: usize) {
        self.log.borrow_mut().push(format!("{} {what} {count}", self.module));
    }
}

impl Drop for Layer {
    fn drop(&mut self) {
        self.log.borrow_mut().push(format!("drop {}", self.module));
    }
}

impl Stage for Layer {
    fn module(&self) -> &'static str {
        self.module
    }

    fn establish(&mut self, _attributes: &mut Attributes) -> Result<(), CreateError> {
        self.log.borrow_mut().push(format!("establish {}", self.module));
        if self.fails { Err(CreateError::InUse) } else { Ok(()) }
    }

    fn inward(&mut self, burst: &mut Burst, turned: &mut Burst, context: &mut Context<'_>) {
        self.note("in", burst.len());
        if self.mirror {
            turned.append(burst);
            return;
        }
        for mut message in std::mem::replace(burst, Burst::with_capacity(burst.len())) {
            if matches!(message.body, Body::Control(_) | Body::Empty) {
                burst.push(message);
            } else if message.bytes().first() == Some(&self.module.as_bytes()[0]) {
                message.advance(1);
                burst.push(message);
                if self.answers {
                    turned.push(Message::default());
                }
            } else {
                context.drop_message(message, DropReason::Malformed);
            }
        }
    }

    fn outward(&mut self, burst: &mut Burst, turned: &mut Burst, _context: &mut Context<'_>) {
        self.note("out", burst.len());
        if self.mirror {
            turned.append(burst);
            return;
        }
        for message in burst.iter_mut().filter(|message| !matches!(message.body, Body::Control(_))) {
            message.head.prepend(1)[0] = self.module.as_bytes()[0];
        }
    }

    fn next_timeout(&self) -> Option<Time> {
        self.timeout
    }

    fn on_timeout(&mut self, inward: &mut Burst, outward: &mut Burst, context: &mut Context<'_>) {
        self.note("timeout", 1);
        context.more |= context.transmit_room == 0;
        self.timeout = Some(Time::from_nanos(context.now.as_nanos() + 100));
        inward.push(Message::control(crate::Control::Connected));
        outward.push(Message::default());
    }

    fn describe(&self, facts: &mut Vec<(&'static str, String)>) {
        facts.push(("header", self.module[..1].to_owned()));
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

/// The program's end: keeps what it gets, and answers each packet.
pub(crate) struct Program {
    pub(crate) got: Vec<Message>,
}

impl Stage for Program {
    fn module(&self) -> &'static str {
        "PROGRAM"
    }

    fn inward(&mut self, burst: &mut Burst, turned: &mut Burst, _context: &mut Context<'_>) {
        for message in burst.drain(..) {
            if let Body::Block { .. } = message.body {
                let answer = Block::from_bytes(message.bytes().iter().rev().copied().collect());
                let range = 0..answer.len() as u32;
                turned.push(Message::received(answer, range, Facts::default()));
            }
            self.got.push(message);
        }
    }

    fn outward(&mut self, _burst: &mut Burst, _turned: &mut Burst, _context: &mut Context<'_>) {}

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

/// Layers A (at the device), B, C in one path.
pub(crate) fn three_layers(log: &Log, change: impl FnOnce(&mut [Layer; 3])) -> Stages {
    let mut layers = ["A", "B", "C"].map(|name| Layer::new(name, log));
    change(&mut layers);
    layers.into_iter().map(|layer| Box::new(layer) as Box<dyn Stage>).collect()
}

pub(crate) fn path_of(stages: Stages) -> Path {
    let id = PathId { index: 0, generation: 0 };
    let new = NewPath { stages, attributes: Attributes::new() };
    Path::new(id, new, Limits::default(), Budget::default())
}

pub(crate) fn packet(bytes: &[u8]) -> Message {
    Message::received(Block::from_bytes(bytes.into()), 0..bytes.len() as u32, Facts::default())
}

/// A packet in a buffer of this pool.
pub(crate) fn pooled(pool: &Pool, bytes: &[u8]) -> Message {
    let mut block = pool.take().expect("the pool has a buffer");
    block[..bytes.len()].copy_from_slice(bytes);
    Message::received(block, 0..bytes.len() as u32, Facts::default())
}

pub(crate) fn grant() -> Grant {
    Grant::new(Time::from_nanos(1_000), 64, 64)
}

/// Everything that a message is on the wire.
pub(crate) fn wire(message: &Message) -> Vec<u8> {
    [message.head.as_slice(), message.bytes()].concat()
}

/// Takes what was logged so far.
pub(crate) fn logged(log: &Log) -> Vec<String> {
    std::mem::take(&mut *log.borrow_mut())
}
