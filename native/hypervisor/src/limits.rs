//! Limits of bandwidth and operations, as requests say them: in Mbit and pieces a second, where 0 is no limit.

use fluxvm_engine::virtio::limiter::{Limits, Rate};

const BYTES_PER_MBIT: u64 = 1_000_000 / 8;

/// What a device is told. A second's worth may gather.
pub(crate) fn limits(megabits: Option<u32>, operations: Option<u32>) -> Limits {
    Limits { bytes: bytes_rate(megabits), operations: rate(operations, 1) }
}

/// Limits of which those that are named are others.
pub(crate) fn changed(before: Limits, megabits: Option<u32>, operations: Option<u32>) -> Limits {
    Limits {
        bytes: if megabits.is_some() { bytes_rate(megabits) } else { before.bytes },
        operations: if operations.is_some() { rate(operations, 1) } else { before.operations },
    }
}

fn bytes_rate(megabits: Option<u32>) -> Option<Rate> {
    rate(megabits, BYTES_PER_MBIT)
}

fn rate(limit: Option<u32>, unit: u64) -> Option<Rate> {
    let per_second = u64::from(limit.filter(|limit| *limit > 0)?) * unit;
    Some(Rate { per_second, burst: per_second })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_and_zero_are_no_limit_and_what_is_not_named_stays() {
        assert_eq!(limits(None, Some(0)), Limits::default());
        let both = limits(Some(8), Some(50));
        assert_eq!(both.bytes.map(|rate| rate.per_second), Some(1_000_000));
        assert_eq!(both.operations.map(|rate| rate.per_second), Some(50));
        assert_eq!(changed(both, None, None), both);
        assert_eq!(changed(both, Some(0), Some(7)), limits(None, Some(7)));
    }
}
