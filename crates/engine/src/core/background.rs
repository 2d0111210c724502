//! Idle-time service of a device: background waits while foreground uses the device, in both directions, and makes
//! room for it (DESIGN.md §5; Eggert, Touch: "End-System Support for Idle-Time Networking").
//!
//! ```text
//!   inward    packet ─► path queue ─► [suspended? wait] ─► stages       displaced when buffers run out
//!   outward   socket's ring ─► [suspended? wait] ─► stages ─► idle queue ─► one frame below
//! ```
//! Background is what stands at the idle level, foreground all else. Whether foreground is active is one moment for
//! each device (`scoutline_sched::transmit::Activity`), which its engines have in common ([`LinkUse`]), looked at before any protocol work is done for a background
//! path. What a suspended program sends waits in its socket's ring, where back-pressure is as on any full socket
//! (EAGAIN, or the call blocks); what it is sent waits in its path's queue, and is dropped from there, as `displaced`,
//! when foreground needs the buffers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use scoutline_base::{PathId, Time};
use scoutline_path::{DropReason, Path};
use scoutline_proto::tcp::TcpStage;
use scoutline_sched::Level;
use scoutline_sched::transmit::{Activity, Preemption};

use super::Core;
use crate::link_use::LinkUse;

/// Round trips for which a connection is believed to wait for the network.
const WAITING_TRIPS: u32 = 2;

/// The list of paths that hold packets is looked through for those that are gone from so many on.
const LISTED_LEAST: usize = 64;

/// Background of one device.
pub(crate) struct Background {
    activity: Activity,
    /// What other engines know of the link.
    link_use: Option<Arc<LinkUse>>,
    /// Paths at the idle level; while there are none, nothing here costs anything.
    paths: u32,
    /// Chosen to run while foreground was active.
    suspended: Vec<PathId>,
    since: Option<Time>,
    /// For how long paths were suspended.
    suspended_for: Duration,
    /// Paths that have had something in their queues, oldest first; some have been emptied since, or are gone.
    waiting: VecDeque<PathId>,
    displaced: u64,
    ended: bool,
}

impl Background {
    pub(super) fn new(activity: Activity) -> Background {
        Background {
            activity,
            link_use: None,
            paths: 0,
            suspended: Vec::new(),
            since: None,
            suspended_for: Duration::ZERO,
            waiting: VecDeque::new(),
            displaced: 0,
            ended: false,
        }
    }

    /// There are other engines with paths on this link.
    pub(super) fn share(&mut self, link_use: Option<Arc<LinkUse>>) {
        self.link_use = link_use;
    }

    /// Whether foreground matters to anybody.
    #[inline]
    fn is_anywhere(&self) -> bool {
        self.paths > 0 || self.link_use.as_ref().is_some_and(|link| link.has_background())
    }

    /// Background keeps away for another time after a foreground packet.
    pub(super) fn set_preemption(&mut self, preemption: Preemption) {
        self.activity.set_preemption(preemption);
    }

    /// For how long it does now.
    pub(super) fn interval(&self) -> Duration {
        self.activity.interval()
    }

    /// From when on background may be sent, if no foreground comes before.
    #[inline]
    pub(super) fn quiet_at(&self) -> Time {
        let quiet_at = self.activity.quiet_at();
        self.link_use.as_ref().map_or(quiet_at, |link| quiet_at.max(link.quiet_at()))
    }

    /// A foreground packet came, or was made.
    fn on_foreground(&mut self, now: Time) {
        self.activity.on_foreground(now);
        self.tell();
    }

    /// A foreground connection waits for acknowledgments.
    fn on_waiting(&mut self, now: Time, time: Duration) {
        self.activity.on_waiting(now, time);
        self.tell();
    }

    fn tell(&self) {
        if let Some(link) = &self.link_use {
            link.on_foreground(self.activity.quiet_at());
        }
    }

    /// Paths at the idle level.
    pub(super) fn paths(&self) -> u32 {
        self.paths
    }

    /// A path is suspended no more.
    pub(super) fn forget(&mut self, id: PathId) {
        self.suspended.retain(|&other| other != id);
    }

    /// Whether paths are suspended.
    pub(super) fn has_suspended(&self) -> bool {
        !self.suspended.is_empty()
    }

    /// Nothing waits any more.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// For how long background was suspended so far.
    pub(super) fn suspended_for(&self, now: Time) -> Duration {
        self.suspended_for + self.since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Packets of background that made room for foreground.
    pub(super) fn displaced(&self) -> u64 {
        self.displaced
    }
}

impl Core {
    /// True while background of a device has to wait.
    #[inline]
    pub(super) fn is_background_suspended(&self, net: usize, now: Time) -> bool {
        let side = &self.nets[net].transmit;
        side.background.paths > 0
            && !side.background.ended
            && (now < side.background.quiet_at() || side.queues.presses(now))
    }

    /// A background path was chosen to run, and has to wait.
    pub(super) fn suspend(&mut self, net: usize, id: PathId, now: Time) {
        if std::mem::replace(&mut self.extras[id.index].suspended, true) {
            return;
        }
        let background = &mut self.nets[net].transmit.background;
        background.since.get_or_insert(now);
        background.suspended.push(id);
    }

    /// Background may go on.
    pub(super) fn resume_background(&mut self, net: usize, now: Time) {
        let background = &mut self.nets[net].transmit.background;
        background.suspended_for = background.suspended_for(now);
        background.since = None;
        let mut suspended = std::mem::take(&mut background.suspended);
        for id in suspended.drain(..) {
            if self.paths.get(id).is_some() {
                self.extras[id.index].suspended = false;
                self.make_ready(id, now);
            }
        }
        self.nets[net].transmit.background.suspended = suspended;
    }

    /// When background that waits may go on, if no foreground comes before.
    pub(super) fn background_timeout(&self, net: usize, now: Time) -> Option<Time> {
        let side = &self.nets[net].transmit;
        // While foreground waits for the link, the link's time comes first.
        let waits = side.background.has_suspended() && !side.queues.presses(now);
        waits.then(|| side.background.quiet_at())
    }

    /// A packet was put into a path's queue.
    #[inline]
    pub(super) fn on_offered(&mut self, net: usize, id: PathId, level: Level, now: Time) {
        let background = &mut self.nets[net].transmit.background;
        if !background.is_anywhere() {
            return;
        }
        if level > Level::Idle {
            background.on_foreground(now);
        } else if !std::mem::replace(&mut self.extras[id.index].listed, true) {
            background.waiting.push_back(id);
            if background.waiting.len() > 2 * background.paths as usize + LISTED_LEAST {
                background.waiting.retain(|&id| self.paths.get(id).is_some());
            }
        }
    }

    /// A path made messages, or waits for what it made earlier to be acknowledged.
    #[inline]
    pub(super) fn on_foreground_run(&mut self, net: usize, id: PathId, made: bool, now: Time) {
        let background = &mut self.nets[net].transmit.background;
        if !background.is_anywhere() {
            return;
        }
        if made {
            background.on_foreground(now);
        }
        if let Some(time) = self.paths.get(id).and_then(waits_for_network) {
            background.on_waiting(now, time);
        }
    }

    /// Background makes room when foreground is active and the device or the engine runs out of buffers.
    #[inline]
    pub(super) fn relieve(&mut self, net: usize, now: Time) {
        while !self.nets[net].transmit.background.waiting.is_empty()
            && self.nets[net].device.pressed()
            && self.is_background_suspended(net, now)
            && self.displace(net)
        {}
    }

    /// A foreground packet of so many bytes comes: background makes room if the engine's buffers are used up.
    #[inline]
    pub(super) fn make_room(&mut self, net: usize, bytes: u64) {
        while !self.nets[net].transmit.background.waiting.is_empty()
            && !self.paths.budget().has_room(bytes)
            && self.displace(net)
        {}
    }

    /// Drops the oldest packet that waits for the background path that has waited longest. False when there is none.
    fn displace(&mut self, net: usize) -> bool {
        loop {
            let Some(&id) = self.nets[net].transmit.background.waiting.front() else { return false };
            let level = self.extras[id.index].level;
            let path = self.paths.get_mut(id).filter(|_| level == Level::Idle);
            if let Some(path) = path
                && path.take_queued().is_some()
            {
                path.account.on_drop(DropReason::Displaced);
                self.nets[net].transmit.background.displaced += 1;
                return true;
            }
            self.nets[net].transmit.background.waiting.pop_front();
            if self.paths.get(id).is_some() {
                self.extras[id.index].listed = false;
            }
        }
    }

    /// The one place where a path gets another level.
    pub(super) fn set_level(&mut self, id: PathId, level: Level) {
        let extra = &mut self.extras[id.index];
        let (before, net, to) = (extra.level, extra.net as usize, extra.to);
        extra.level = level;
        self.count_background(net, before, level);
        if let Some(to) = to {
            self.count_background(usize::from(to), before, level);
        }
        if self.extras[id.index].known {
            self.make_known(id);
        }
        self.note_apart(id);
    }

    /// A path of a device that stood at one level stands at another.
    pub(super) fn count_background(&mut self, net: usize, before: Level, after: Level) {
        if (before == Level::Idle) == (after == Level::Idle) {
            return;
        }
        let background = &mut self.nets[net].transmit.background;
        let had = background.paths > 0;
        background.paths = if after == Level::Idle { background.paths + 1 } else { background.paths - 1 };
        let has = background.paths > 0;
        if had != has {
            if let Some(link) = &background.link_use {
                link.set_background(has);
            }
            self.check_direct();
        }
    }
}

/// How long a connection should have to wait for acknowledgments, if it waits for any.
fn waits_for_network(path: &Path) -> Option<Duration> {
    let connection = path.stage::<TcpStage>()?.connection()?;
    if connection.is_acknowledged_all() {
        return None;
    }
    let info = connection.info();
    // Who is out of reach, or does not read, keeps nobody away.
    if info.backoff > 0 || info.snd_wnd == 0 {
        return None;
    }
    info.srtt.map(|trip| trip * WAITING_TRIPS)
}
