//! The fluid schedule of a set of tasks: everyone with work is served at once, as [`Place`] says.

use std::collections::VecDeque;
use std::time::Duration;

use scoutline_base::Time;

use super::Place;

/// See the module. In floating point: it is what others are measured against, to within nanoseconds.
pub(super) struct Ideal {
    members: Vec<Member>,
    now: f64,
}

struct Member {
    place: Place,
    /// Work that is there, in nanoseconds.
    backlog: f64,
    /// Work that has been announced, by time.
    coming: VecDeque<(f64, f64)>,
    got: f64,
    rate: f64,
}

impl Ideal {
    pub(super) fn new(places: impl Iterator<Item = Place>) -> Ideal {
        let member = |place| Member { place, backlog: 0.0, coming: VecDeque::new(), got: 0.0, rate: 0.0 };
        Ideal { members: places.map(member).collect(), now: 0.0 }
    }

    /// Work comes at this moment, which is not before the last one of this member.
    pub(super) fn arrive(&mut self, member: usize, at: Time, work: Duration) {
        self.members[member].coming.push_back((at.as_nanos() as f64, work.as_nanos() as f64));
    }

    /// What a member has got, rounded.
    pub(super) fn got(&self, member: usize) -> Duration {
        Duration::from_nanos(self.members[member].got.round() as u64)
    }

    /// Serves everyone until this moment.
    pub(super) fn go_to(&mut self, to: Time) {
        let to = to.as_nanos() as f64;
        loop {
            for member in &mut self.members {
                while let Some((_, work)) = member.coming.front().copied().filter(|(at, _)| *at <= self.now) {
                    member.backlog += work;
                    member.coming.pop_front();
                }
            }
            if self.now >= to {
                return;
            }
            self.share_out();
            let ends = self.members.iter().filter(|member| member.rate > 0.0);
            let ends = ends.map(|member| self.now + member.backlog / member.rate);
            let comes = self.members.iter().filter_map(|member| member.coming.front().map(|(at, _)| *at));
            let next = ends.chain(comes).fold(to, f64::min);
            let step = next - self.now;
            for member in &mut self.members {
                member.got += step * member.rate;
                member.backlog -= step * member.rate;
                // Less than a hundredth of a nanosecond is rounding.
                if member.backlog < 0.01 {
                    member.backlog = 0.0;
                }
            }
            self.now = next;
        }
    }

    fn share_out(&mut self) {
        let busy = |member: &&Member| member.backlog > 0.0;
        let rank = self.members.iter().filter(busy).map(|member| member.place.rank).max();
        let mut groups: Vec<(u8, f64, f64)> = Vec::new();
        for member in self.members.iter().filter(busy).filter(|member| Some(member.place.rank) == rank) {
            let weight = f64::from(member.place.weight);
            match groups.iter_mut().find(|(group, _, _)| *group == member.place.group) {
                Some((_, _, weights)) => *weights += weight,
                None => groups.push((member.place.group, f64::from(member.place.share), weight)),
            }
        }
        let shares: f64 = groups.iter().map(|(_, share, _)| share).sum();
        for member in &mut self.members {
            let group = groups.iter().find(|(group, _, _)| *group == member.place.group);
            member.rate = match group {
                Some((_, share, weights)) if member.backlog > 0.0 && Some(member.place.rank) == rank => {
                    share / shares * f64::from(member.place.weight) / weights
                }
                _ => 0.0,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use scoutline_base::Time;

    use super::{Ideal, Place};

    #[test]
    fn three_members_as_on_paper() {
        let place = |rank, group, share, weight| Place { rank, group, share, weight };
        let mut ideal = Ideal::new(
            [place(1, 0, 3, 1), place(1, 0, 3, 2), place(1, 1, 1, 1), place(0, 2, 1, 1)].into_iter(),
        );
        let micros = Duration::from_micros;
        for (member, at, work) in [(0, 0, 1000), (1, 0, 50), (2, 0, 1000), (3, 0, 1000)] {
            ideal.arrive(member, Time::from_micros(at), micros(work));
        }
        // Group 0 gets 3/4; member 1 two thirds of that, and so it is done after 100 µs.
        ideal.go_to(Time::from_micros(100));
        assert_eq!([0, 1, 2, 3].map(|member| ideal.got(member)), [25, 50, 25, 0].map(micros));
        ideal.go_to(Time::from_micros(200));
        assert_eq!([0, 1, 2].map(|member| ideal.got(member)), [100, 50, 50].map(micros));
        ideal.go_to(Time::from_micros(2_050));
        assert_eq!([0, 2].map(|member| ideal.got(member)), [1000, 1000].map(micros));
        ideal.go_to(Time::from_micros(2_150));
        assert_eq!(ideal.got(3), micros(100), "the lower rank gets what nobody else wants");
    }
}
