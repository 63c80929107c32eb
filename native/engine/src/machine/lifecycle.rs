//! The states of a machine and what may be asked in each, as one table.

use crate::error::{Error, Result};

/// What a machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifecycle {
    /// Made, and no instruction has run yet.
    Created,
    /// The guest runs.
    Running,
    /// All vCPUs and devices rest.
    Paused,
    /// It ended and does not come back.
    Stopped,
}

/// What can be asked of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Let the guest run for the first time.
    Start,
    /// Bring everything to rest.
    Pause,
    /// Go on.
    Resume,
    /// Press the power button.
    PressPower,
    /// End it, whatever the guest does.
    Stop,
    /// Read the whole state.
    Save,
    /// Replace the whole state.
    Load,
}

impl Lifecycle {
    /// All states, for tests of the table.
    pub const ALL: [Self; 4] = [Self::Created, Self::Running, Self::Paused, Self::Stopped];

    /// The word for messages and records.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
        }
    }

    /// The state after an action.
    ///
    /// # Errors
    /// [`Error::WrongState`] when the action does not go with the state.
    pub fn after(self, action: Action) -> Result<Self> {
        use Lifecycle::{Created, Paused, Running, Stopped};
        let next = match (self, action) {
            (Created, Action::Start) | (Running, Action::PressPower) | (Paused, Action::Resume) => Running,
            (Created, Action::Load) | (Running | Paused, Action::Pause) | (Paused, Action::Save | Action::Load) => {
                Paused
            }
            (Created | Running | Paused | Stopped, Action::Stop) => Stopped,
            // Asked twice, or crossed with something else: already so.
            (Running, Action::Resume) => Running,
            (Created, Action::Pause | Action::Resume | Action::PressPower | Action::Save)
            | (Running, Action::Start | Action::Save | Action::Load)
            | (Paused, Action::Start | Action::PressPower)
            | (
                Stopped,
                Action::Start | Action::Pause | Action::Resume | Action::PressPower | Action::Save | Action::Load,
            ) => {
                return Err(Error::WrongState { action: action.word(), state: self.word() });
            }
        };
        Ok(next)
    }
}

impl Action {
    /// All actions, for tests of the table.
    pub const ALL: [Self; 7] =
        [Self::Start, Self::Pause, Self::Resume, Self::PressPower, Self::Stop, Self::Save, Self::Load];

    fn word(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::PressPower => "press the power button of",
            Self::Stop => "stop",
            Self::Save => "save",
            Self::Load => "load a state into",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows are states, columns are actions in their order; `-` is refused.
    const TABLE: [(Lifecycle, &str); 4] = [
        (Lifecycle::Created, "R---S-P"),
        (Lifecycle::Running, "-PRRS--"),
        (Lifecycle::Paused, "-PR-SPP"),
        (Lifecycle::Stopped, "----S--"),
    ];

    #[test]
    fn every_pair_of_state_and_action_is_as_in_the_table() {
        for (state, row) in TABLE {
            for (action, wanted) in Action::ALL.into_iter().zip(row.chars()) {
                let next = match state.after(action) {
                    Ok(Lifecycle::Running) => 'R',
                    Ok(Lifecycle::Paused) => 'P',
                    Ok(Lifecycle::Stopped) => 'S',
                    Ok(Lifecycle::Created) => 'C',
                    Err(_) => '-',
                };
                assert_eq!(next, wanted, "{action:?} when {state:?}");
            }
        }
        assert_eq!(TABLE.map(|(state, _)| state), Lifecycle::ALL);
    }
}
