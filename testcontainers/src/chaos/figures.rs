//! For how long nothing moved after each fault.

use std::collections::BTreeMap;

/// When records of each partition were done, over a whole group.
#[derive(Debug, Default)]
pub struct Progress {
    /// Sorted.
    all: Vec<u128>,
    /// Sorted each.
    of: BTreeMap<i32, Vec<u128>>,
}

/// The longest times without progress around one fault, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Stall {
    /// Of the whole group.
    pub group: u128,
    /// Of the partition that waited longest.
    pub partition: u128,
}

impl Progress {
    /// Out of (partition, time) of all that was done.
    pub fn of(done: impl Iterator<Item = (i32, u128)>) -> Self {
        let mut progress = Self::default();
        for (partition, time) in done {
            progress.all.push(time);
            progress.of.entry(partition).or_default().push(time);
        }
        progress.all.sort_unstable();
        progress.of.values_mut().for_each(|all| all.sort_unstable());
        progress
    }

    /// The longest pauses that lie in the time from `from` to `to`, or reach out of it.
    pub fn stall(&self, from: u128, to: u128) -> Stall {
        let partitions = self.of.values().map(|times| longest(times, from, to));
        Stall {
            group: longest(&self.all, from, to),
            partition: partitions.max().unwrap_or(0),
        }
    }
}

/// The longest pause after `from` that began before `to`. One that never ended ends at `to`.
fn longest(times: &[u128], from: u128, to: u128) -> u128 {
    let first = times.partition_point(|&time| time <= from);
    // A partition that was born later began with its first record.
    let mut before = match (first, times.get(first)) {
        (0, Some(&born)) => born,
        _ => from,
    };
    let mut most = 0;
    for &time in times.get(first..).unwrap_or_default() {
        if before >= to {
            return most;
        }
        most = most.max(time - before);
        before = time;
    }
    most.max(to.saturating_sub(before))
}

/// The value that so many percent do not exceed. The values must be sorted.
pub fn percentile(sorted: &[u128], percent: usize) -> u128 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pause_around_a_fault() {
        let times = [10, 20, 30, 90, 100, 110, 400];
        assert_eq!(longest(&times, 25, 50), 60, "it reaches out of the window");
        assert_eq!(longest(&times, 40, 95), 50, "counted from the fault on");
        assert_eq!(longest(&times, 95, 105), 10);
        assert_eq!(longest(&times, 105, 120), 290);
        assert_eq!(longest(&times, 390, 500), 100, "it has not ended");
        assert_eq!(longest(&times, 0, 5), 0, "not born yet");
        let done = [(0, 10), (1, 11), (0, 20), (1, 41)];
        let stall = Progress::of(done.into_iter()).stall(10, 41);
        assert_eq!((stall.group, stall.partition), (21, 30));
    }

    #[test]
    fn percentiles() {
        assert_eq!(percentile(&[], 99), 0);
        assert_eq!(percentile(&[1, 2, 3, 4], 50), 2);
        assert_eq!(percentile(&[1, 2, 3, 4], 99), 4);
    }
}
