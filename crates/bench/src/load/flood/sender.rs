//! How the flood's frames are sent: by a program in the kernel where that works, else by a packet socket.
//!
//! A packet socket is not held up by a socket of its own, by routes or by neighbours, and takes many frames a system call,
//! past the queueing discipline; but each is a socket buffer, and it ends at some 1.3 million a second on a core. The
//! kernel's [`Generator`] makes none: it wants a kernel (5.18), a device that takes such frames, and on a veth an
//! other end with NAPI (GRO switched on). Whether all of that is so is seen by whether a few of them leave the device.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use scoutline_base::Random;
use scoutline_bpf::{Frames, Generator};
use serde::{Deserialize, Serialize};

use super::{BATCH, FORGED_FROM, Sent, TELL_EVERY, forge};
use crate::sys;

/// Frames that are sent to see whether they leave.
const TRIED: u32 = 64;
/// How long they may take.
const PATIENCE: Duration = Duration::from_millis(500);

/// Who sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Means {
    /// A program in the kernel.
    #[default]
    LiveFrames,
    /// A packet socket.
    Socket,
}

impl Means {
    /// For people.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Means::LiveFrames => "a program in the kernel (live XDP frames)",
            Means::Socket => "a packet socket, 64 frames a system call",
        }
    }
}

/// What is to be sent, and how fast.
pub(super) struct Order<'a> {
    pub(super) device: &'a str,
    pub(super) template: &'a [u8],
    /// Each is a SYN from another.
    pub(super) forged: bool,
    pub(super) rate: Option<f64>,
    pub(super) seconds: f64,
}

impl Order<'_> {
    /// Sends by these means, or says on standard error why by others. Prints `sending` once it does, and then, now and then,
    /// how many it has sent.
    pub(super) fn carry_out(&self, means: Means) -> Result<()> {
        if means == Means::LiveFrames {
            match self.generator() {
                Ok(generator) => return self.generate(&Arc::new(generator)),
                Err(error) => eprintln!("flood: {error:#}; {} sends", Means::Socket.describe()),
            }
        }
        self.send_by_socket()
    }

    fn tell(means: Means, count: u64) -> Result<()> {
        println!("{}", serde_json::to_string(&Sent { count, at_ns: sys::monotonic_ns(), means })?);
        Ok(())
    }

    /// A generator whose frames leave the device.
    fn generator(&self) -> Result<Generator> {
        let Order { device, template, .. } = *self;
        let index = sys::interface_index(device).with_context(|| format!("no interface {device}"))?;
        let forged_from = self.forged.then_some(FORGED_FROM);
        let trial = Generator::new(index, &Frames { template, forged_from, rate: None })
            .context("no program can send")?;
        let before = left(device)?;
        trial.run(TRIED).context("the kernel has no live frames")?;
        // A receiver with a thread of its own counts them when that has run.
        let until = Instant::now() + PATIENCE;
        while left(device)? < before + u64::from(TRIED) {
            if Instant::now() > until {
                bail!("live frames do not leave {device} (a veth's other end needs GRO)");
            }
            thread::yield_now();
        }
        Ok(Generator::new(index, &Frames { template, forged_from, rate: self.rate })?)
    }

    /// The program runs on a thread; the end of this process ends it.
    fn generate(&self, generator: &Arc<Generator>) -> Result<()> {
        generator.begin(sys::monotonic_ns());
        let sending = Arc::clone(generator);
        let thread = thread::Builder::new().name("flood".into());
        let thread = thread.spawn(move || -> std::io::Result<()> {
            loop {
                sending.run(u32::MAX)?;
            }
        })?;
        println!("sending");
        let end = Instant::now() + Duration::from_secs_f64(self.seconds);
        while Instant::now() < end {
            if thread.is_finished() {
                let ended = thread.join().expect("it does not panic");
                return ended.context("the program in the kernel has ended");
            }
            Order::tell(Means::LiveFrames, generator.sent())?;
            thread::sleep(TELL_EVERY);
        }
        Ok(())
    }

    fn send_by_socket(&self) -> Result<()> {
        let Order { device, template, .. } = *self;
        let sender =
            sys::FrameSender::open(device).with_context(|| format!("cannot send frames at {device}"))?;
        println!("sending");
        let mut random = Random::new(u64::from(std::process::id()));
        let mut frames = vec![template.to_vec(); BATCH];
        let begin = Instant::now();
        let (mut count, mut tell_at) = (0, Duration::ZERO);
        loop {
            let now = begin.elapsed();
            if now.as_secs_f64() >= self.seconds {
                return Ok(());
            }
            if now >= tell_at {
                Order::tell(Means::Socket, count)?;
                tell_at = now + TELL_EVERY;
            }
            if self.rate.is_some_and(|rate| count as f64 >= rate * now.as_secs_f64()) {
                // To sleep would take longer than a batch is worth of time.
                std::hint::spin_loop();
                continue;
            }
            if self.forged {
                for frame in &mut frames {
                    forge(frame, &mut random);
                }
            }
            let batch: [&[u8]; BATCH] = std::array::from_fn(|at| frames[at].as_slice());
            count += sender.send(batch).with_context(|| format!("cannot send at {device}"))?;
        }
    }
}

/// Packets that a device of this thread's namespace has sent.
fn left(device: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/thread-self/net/dev")?;
    let [_, _, sent, _] = crate::flood::device(&text, device).with_context(|| format!("no {device}"))?;
    Ok(sent)
}
