//! Canaries at the device: what a host with the defect would send, or seem to have received.

use scoutline_base::Endpoint;
use scoutline_device::{DeviceCounters, software};
use scoutline_path::{Burst, Checksum, Facts, Message};
use scoutline_ring::Block;

use crate::canary::Canary;
use crate::frame::{self, ACK, RST, SYN};

/// A defect that shows at the device.
pub(super) struct Defect {
    canary: Canary,
    /// Counts what it could have spoilt: it spoils only now and then.
    turn: u32,
}

impl Defect {
    /// The defect of a canary, if it shows here.
    pub(super) fn of(canary: Canary) -> Option<Defect> {
        let here = matches!(
            canary,
            Canary::RetransmitsWrongByte
                | Canary::IgnoresWindow
                | Canary::ShrinksWindow
                | Canary::AcknowledgesTooMuch
                | Canary::MiscountsPackets
                | Canary::RepeatsDatagram
        );
        here.then_some(Defect { canary, turn: 0 })
    }

    /// Every n-th time.
    fn now_and_then(&mut self, n: u32) -> bool {
        self.turn += 1;
        self.turn.is_multiple_of(n)
    }

    /// What comes, as a host with the defect takes it.
    pub(super) fn spoil_received(&mut self, burst: &mut Burst, from: usize) {
        match self.canary {
            Canary::IgnoresWindow => {
                for message in &mut burst[from..] {
                    let mut bytes = message.bytes().to_vec();
                    let Some(segment) = frame::segment(&bytes) else { continue };
                    if segment.flags & (SYN | RST) != 0 || !frame::is_intact(&bytes) {
                        continue;
                    }
                    bytes[segment.tcp_at + 14..segment.tcp_at + 16].fill(0xff);
                    frame::mend(&mut bytes);
                    let facts = message.facts.clone();
                    let len = bytes.len() as u32;
                    *message = Message::received(Block::from_bytes(bytes.into()), 0..len, facts);
                }
            }
            Canary::RepeatsDatagram => {
                for index in from..burst.len() {
                    if frame::is_datagram(burst[index].bytes()) && self.now_and_then(5) {
                        let (bytes, facts) = (burst[index].bytes().to_vec(), burst[index].facts.clone());
                        let len = bytes.len() as u32;
                        burst.push(Message::received(Block::from_bytes(bytes.into()), 0..len, facts));
                    }
                }
            }
            _ => {}
        }
    }

    /// What leaves, as a host with the defect sends it. `sent` says how far a connection has sent before.
    pub(super) fn spoil_sent(
        &mut self,
        burst: &mut Burst,
        sent: impl Fn((Endpoint, Endpoint)) -> Option<u32>,
    ) {
        let mut scratch = Vec::new();
        for message in std::mem::take(burst) {
            let mut packets = Vec::new();
            if software::packets(&message, &mut scratch, |packet| packets.push(packet.to_vec())).is_err() {
                burst.push(message);
                continue;
            }
            for mut packet in packets {
                self.spoil_packet(&mut packet, &sent);
                let facts = Facts { checksum: Checksum::Complete, ..Facts::default() };
                let len = packet.len() as u32;
                burst.push(Message::received(Block::from_bytes(packet.into()), 0..len, facts));
            }
        }
    }

    fn spoil_packet(&mut self, packet: &mut [u8], sent: &impl Fn((Endpoint, Endpoint)) -> Option<u32>) {
        let Some(segment) = frame::segment(packet) else { return };
        if segment.flags & (SYN | RST) != 0 {
            return;
        }
        let every = if self.canary == Canary::ShrinksWindow { 5 } else { 20 };
        let now = segment.flags & ACK != 0 && self.now_and_then(every);
        match self.canary {
            Canary::RetransmitsWrongByte => {
                let again = sent((segment.source, segment.destination))
                    .is_some_and(|sent| (segment.sequence.wrapping_sub(sent) as i32) < 0);
                if again && segment.len > 0 {
                    packet[segment.end - 1] ^= 0x55;
                }
            }
            Canary::ShrinksWindow if now => {
                let at = segment.tcp_at + 14;
                packet[at..at + 2].copy_from_slice(&(segment.window / 2).to_be_bytes());
            }
            Canary::AcknowledgesTooMuch if now => {
                let at = segment.tcp_at + 8;
                let more = segment.acknowledgment.wrapping_add(100);
                packet[at..at + 4].copy_from_slice(&more.to_be_bytes());
            }
            _ => return,
        }
        frame::mend(packet);
    }

    pub(super) fn spoil_counters(&self, counters: &mut DeviceCounters) {
        if self.canary == Canary::MiscountsPackets {
            counters.rx_packets += u64::from(counters.rx_packets > 10);
        }
    }
}
