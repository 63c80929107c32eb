//! The device status as a table: which value a driver may write after which, and what then happens.

pub(super) const ACKNOWLEDGE: u32 = 1;
pub(super) const DRIVER: u32 = 2;
pub(super) const DRIVER_OK: u32 = 4;
pub(super) const FEATURES_OK: u32 = 8;
pub(super) const NEEDS_RESET: u32 = 0x40;
pub(super) const FAILED: u32 = 0x80;

const FOUND: u32 = ACKNOWLEDGE | DRIVER;
const NEGOTIATED: u32 = FOUND | FEATURES_OK;
const RUNNING: u32 = NEGOTIATED | DRIVER_OK;

/// What the transport does about a write to the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Everything goes back to the start.
    Reset,
    /// The value is taken over.
    Accept,
    /// The features are checked; the value is taken over when they are good.
    Negotiate,
    /// The device starts; the value is taken over, and with it "needs reset" when the device cannot.
    Activate,
    /// The driver gave up: the device stops until a reset.
    Fail,
    /// The driver broke the order: nothing happens.
    Ignore,
}

/// From, to, what happens. Everything else is ignored, except a reset and giving up, which are always possible.
const STEPS: [(u32, u32, Step); 5] = [
    (0, ACKNOWLEDGE, Step::Accept),
    (0, FOUND, Step::Accept),
    (ACKNOWLEDGE, FOUND, Step::Accept),
    (FOUND, NEGOTIATED, Step::Negotiate),
    (NEGOTIATED, RUNNING, Step::Activate),
];

/// What a write of `wanted` does to a device with status `now`.
pub(super) fn step(now: u32, wanted: u32) -> Step {
    if wanted == 0 {
        return Step::Reset;
    }
    if now & FAILED != 0 {
        return Step::Ignore;
    }
    if wanted & FAILED != 0 {
        return Step::Fail;
    }
    // A driver reads the status and adds to it, so that a bit of the device comes back.
    let (now, wanted) = (now & !NEEDS_RESET, wanted & !NEEDS_RESET);
    STEPS.iter().find(|(from, to, _)| (*from, *to) == (now, wanted)).map_or(Step::Ignore, |(_, _, step)| *step)
}

/// Whether the driver may set up queues.
pub(super) fn sets_up_queues(status: u32) -> bool {
    status & !NEEDS_RESET == NEGOTIATED
}

/// Whether the driver may choose features.
pub(super) fn chooses_features(status: u32) -> bool {
    status & !NEEDS_RESET == FOUND
}

/// Whether the device works.
pub(super) fn runs(status: u32) -> bool {
    status == RUNNING
}

/// Whether a device can have this status at all; for states that come from outside.
pub(super) fn is_possible(status: u32) -> bool {
    matches!(status & !(NEEDS_RESET | FAILED), 0 | ACKNOWLEDGE | FOUND | NEGOTIATED | RUNNING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_up_has_one_order() {
        let allowed = [
            (0x00, 0x01, Step::Accept),
            (0x00, 0x03, Step::Accept),
            (0x01, 0x03, Step::Accept),
            (0x03, 0x0B, Step::Negotiate),
            (0x0B, 0x0F, Step::Activate),
        ];
        for now in [0x00, 0x01, 0x03, 0x0B, 0x0F] {
            for wanted in 1..=0x3F {
                let expected =
                    allowed.iter().find(|row| (row.0, row.1) == (now, wanted)).map_or(Step::Ignore, |row| row.2);
                assert_eq!(step(now, wanted), expected, "{now:#x} to {wanted:#x}");
                assert_eq!(step(now | NEEDS_RESET, wanted | NEEDS_RESET), expected, "{now:#x} to {wanted:#x}");
            }
        }
    }

    #[test]
    fn a_reset_is_always_possible_and_the_only_way_out_of_failure() {
        for now in 0..=0xFF {
            assert_eq!(step(now, 0), Step::Reset);
            if now & FAILED == 0 {
                assert_eq!(step(now, now | FAILED), Step::Fail);
            } else {
                assert_eq!(step(now, 0x0F), Step::Ignore);
            }
        }
    }
}
