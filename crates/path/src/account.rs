//! The account of a path: what was spent on it and what was dropped, each drop under one reason (DESIGN.md §2).

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $name:ident => $text:literal,)*) => {
        /// Why a packet was dropped: each drop has exactly one of these.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason { $($(#[$doc])* $name,)* }

        impl DropReason {
            /// Every reason, in the order of their numbers.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$name,)*];

            /// A stable name for counters: lower case, hyphens.
            pub const fn as_str(self) -> &'static str {
                match self { $(DropReason::$name => $text,)* }
            }
        }
    };
}

drop_reasons! {
    /// The frame ends within a header.
    Truncated => "truncated",
    /// A header field has a value that its standard forbids.
    Malformed => "malformed",
    /// A checksum is wrong.
    BadChecksum => "bad-checksum",
    /// Not for our link or network address.
    NotForUs => "not-for-us",
    /// An EtherType or IP protocol that no module serves.
    UnknownProtocol => "unknown-protocol",
    /// No path and no listener.
    NoPath => "no-path",
    /// The path's queue was full (early drop).
    QueueFull => "queue-full",
    /// The path or its class is over its memory limit.
    MemoryLimit => "memory-limit",
    /// The listen backlog is full.
    BacklogFull => "backlog-full",
    /// The class has as many connections as it may have.
    ConnectionLimit => "connection-limit",
    /// The class or the policy has no more of the CPU to give away.
    CpuLimit => "cpu-limit",
    /// Admission control refused a new path.
    Refused => "refused",
    /// Reassembly of fragments ran out of time.
    FragmentTimeout => "fragment-timeout",
    /// Reassembly of fragments ran into its limit.
    FragmentLimit => "fragment-limit",
    /// Fragments overlap or contradict one another.
    FragmentOverlap => "fragment-overlap",
    /// Neighbour resolution failed, or too much waits for it.
    NoNeighbour => "no-neighbour",
    /// No route to the destination.
    NoRoute => "no-route",
    /// TCP: outside the receive window.
    OutOfWindow => "out-of-window",
    /// TCP: an old timestamp (PAWS).
    Paws => "paws",
    /// TCP: an acknowledgment of what was never sent.
    BadAcknowledgment => "bad-acknowledgment",
    /// TCP: a flag combination that the state forbids.
    BadFlags => "bad-flags",
    /// TCP: too many out-of-order ranges.
    ReassemblyLimit => "reassembly-limit",
    /// The program's receive buffer has no room.
    ReceiveBufferFull => "receive-buffer-full",
    /// Its device, or its sender on this machine, had its bytes no longer when they were to be stored.
    Lost => "lost",
    /// The path no longer takes data (its end has closed).
    Closed => "closed",
    /// Rate limit (ICMP errors, challenge acknowledgments).
    RateLimited => "rate-limited",
    /// The device could not send it.
    DeviceError => "device-error",
    /// The engine ran out of packet buffers.
    NoBuffers => "no-buffers",
    /// It was turned around within its path too often.
    TurnLimit => "turn-limit",
    /// It has passed as many routers as it may.
    TtlExceeded => "ttl-exceeded",
    /// Larger than the next link carries, and not to be divided.
    NeedsFragmentation => "needs-fragmentation",
    /// Background that made room for foreground.
    Displaced => "displaced",
    /// The path had no room a moment ago, so its device dropped what came for it.
    HeldBack => "held-back",
}

/// What was spent on a path. Counters only grow, except the `_held` ones.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// CPU, in nanoseconds, demultiplexing included.
    pub cpu_ns: u64,
    /// Packets from the device.
    pub packets_in: u64,
    /// Packets to the device.
    pub packets_out: u64,
    /// Bytes from the device, headers included.
    pub bytes_in: u64,
    /// Bytes to the device as they go over the wire: headers included, those of each packet of a super-segment.
    pub bytes_out: u64,
    /// Buffer bytes held now.
    pub buffer_bytes_held: u64,
    /// Times that the path was run.
    pub runs: u64,
    /// Times that a program thread was woken.
    pub wakeups: u64,
    /// Requests that were read, where the class follows the request.
    pub requests: u64,
    /// Drops by reason, once there was one: most paths never have any.
    drops: Option<Box<Drops>>,
}

#[derive(Clone, Debug)]
struct Drops([u32; DropReason::ALL.len()]);

impl Default for Drops {
    fn default() -> Self {
        Drops([0; DropReason::ALL.len()])
    }
}

impl Account {
    /// Counts a drop.
    #[inline]
    pub fn on_drop(&mut self, reason: DropReason) {
        self.on_drops(reason, 1);
    }

    /// Counts so many drops at once.
    pub fn on_drops(&mut self, reason: DropReason, more: u64) {
        let count = &mut self.drops.get_or_insert_default().0[reason as usize];
        *count = count.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
    }

    /// Drops under `reason` so far.
    pub fn drops(&self, reason: DropReason) -> u32 {
        self.drops.as_ref().map_or(0, |drops| drops.0[reason as usize])
    }

    /// All reasons that occurred, with their counts.
    pub fn all_drops(&self) -> impl Iterator<Item = (DropReason, u32)> + '_ {
        DropReason::ALL.iter().map(|&reason| (reason, self.drops(reason))).filter(|&(_, count)| count > 0)
    }

    /// Folds a finished path's account into this one (its class's).
    pub fn fold(&mut self, finished: &Account) {
        self.cpu_ns = self.cpu_ns.saturating_add(finished.cpu_ns);
        self.packets_in += finished.packets_in;
        self.packets_out += finished.packets_out;
        self.bytes_in += finished.bytes_in;
        self.bytes_out += finished.bytes_out;
        self.runs += finished.runs;
        self.wakeups += finished.wakeups;
        self.requests += finished.requests;
        if let Some(theirs) = &finished.drops {
            for (mine, theirs) in self.drops.get_or_insert_default().0.iter_mut().zip(&theirs.0) {
                *mine = mine.saturating_add(*theirs);
            }
        }
    }

    /// What has been spent since this account was as `before`.
    #[must_use]
    pub fn since(&self, before: &Account) -> Account {
        let mut spent = self.clone();
        spent.cpu_ns -= before.cpu_ns;
        spent.packets_in -= before.packets_in;
        spent.packets_out -= before.packets_out;
        spent.bytes_in -= before.bytes_in;
        spent.bytes_out -= before.bytes_out;
        spent.runs -= before.runs;
        spent.wakeups -= before.wakeups;
        spent.requests -= before.requests;
        if let (Some(mine), Some(theirs)) = (&mut spent.drops, &before.drops) {
            for (mine, theirs) in mine.0.iter_mut().zip(&theirs.0) {
                *mine -= theirs;
            }
        }
        spent
    }
}
