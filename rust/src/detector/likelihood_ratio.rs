//! The likelihood-ratio CUSUM of the policy between adjacent windows (Page 1954, Biometrika 41).
//!
//! Before a pair is counted, with counts c of its cell in the newest window and t in both windows
//! together, C and T of its observation, and A different actions in both windows and the pair,
//!
//! ```text
//! q = (t + alpha) / (T + alpha A)            what both windows say of the action
//! p = (c + 20 q) / (C + 20)                  what the newest says, shrunk towards it
//! S = max(0, S + log(1/2 + p / (2 q)))
//! ```

use std::collections::VecDeque;

use crate::error::Result;
use crate::layout::Key;
use crate::slots::Slots;

/// So many pairs the pooled table is worth against the newest window.
const SHRINKAGE: f64 = 20.0;
/// Share of the newest window in the mixture that is bet on.
const MIXTURE: f64 = 0.5;

/// Pairs in the newest window, and in both.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    newest: u32,
    both: u32,
}

#[derive(Debug, Clone)]
pub(super) struct LikelihoodRatio {
    window: usize,
    alpha: f64,
    ring: VecDeque<u32>,
    /// By the number of the cell, with the number of its action.
    cells: Vec<(Count, u32)>,
    /// By the number of the observation.
    observations: Vec<Count>,
    /// Numbered cells and pairs of each action.
    actions: Slots<Key, (u32, u32)>,
    /// A: actions with pairs in the windows.
    distinct: u64,
    sum: f64,
}

impl LikelihoodRatio {
    pub(super) fn new(window: usize, alpha: f64) -> Self {
        Self {
            window,
            alpha,
            ring: VecDeque::new(),
            cells: Vec::new(),
            observations: Vec::new(),
            actions: Slots::new(),
            distinct: 0,
            sum: 0.0,
        }
    }

    /// S, the evidence of a change so far, in nats.
    pub(super) fn sum(&self) -> f64 {
        self.sum
    }

    /// Cells of the remembered pairs, oldest first.
    pub(super) fn pairs(&self) -> impl Iterator<Item = u32> {
        self.ring.iter().copied()
    }

    /// A number has been given to a cell.
    pub(super) fn enter(&mut self, cell: u32, action: Key) -> Result<()> {
        let number = self.actions.enter(action, || (0, 0))?;
        self.actions.get_mut(number).0 += 1;
        let place = cell as usize;
        if self.cells.len() <= place {
            self.cells.resize(place + 1, (Count::default(), 0));
        }
        self.cells[place] = (Count::default(), number);
        Ok(())
    }

    /// Whether a cell has pairs here.
    pub(super) fn holds(&self, cell: u32) -> bool {
        let count = self.cells.get(cell as usize);
        count.is_some_and(|(count, _)| count.both > 0)
    }

    /// The number of a cell was given back.
    pub(super) fn leave(&mut self, cell: u32) {
        let Some(&(_, action)) = self.cells.get(cell as usize) else {
            return;
        };
        let entry = self.actions.get_mut(action);
        entry.0 -= 1;
        if entry.0 == 0 {
            self.actions.remove(action);
        }
    }

    /// Bets on one pair and counts it; `observation` is the number of its observation.
    pub(super) fn push(&mut self, cell: u32, observation_of: impl Fn(u32) -> u32) {
        let observation = observation_of(cell) as usize;
        if self.observations.len() <= observation {
            self.observations
                .resize((observation + 1).next_power_of_two(), Count::default());
        }
        if self.ring.len() >= 2 * self.window {
            let (count, action) = self.cells[cell as usize];
            let total = self.observations[observation];
            let is_new = self.actions.get(action).1 == 0;
            let actions = self.distinct + u64::from(is_new);
            let q = (f64::from(count.both) + self.alpha)
                / (f64::from(total.both) + self.alpha * actions as f64);
            // The smallest pseudocounts would vanish.
            let q = q.max(f64::MIN_POSITIVE);
            let p =
                (f64::from(count.newest) + SHRINKAGE * q) / (f64::from(total.newest) + SHRINKAGE);
            self.sum = (self.sum + libm::log1p(MIXTURE * (p / q - 1.0))).max(0.0);
        }
        self.count(cell, observation, &observation_of);
    }

    fn count(&mut self, cell: u32, observation: usize, observation_of: &impl Fn(u32) -> u32) {
        let (count, action) = &mut self.cells[cell as usize];
        count.newest += 1;
        count.both += 1;
        let pairs = &mut self.actions.get_mut(*action).1;
        *pairs += 1;
        self.distinct += u64::from(*pairs == 1);
        let total = &mut self.observations[observation];
        total.newest += 1;
        total.both += 1;
        self.ring.push_back(cell);
        let n = self.ring.len();
        if n > self.window {
            let crossing = self.ring[n - 1 - self.window];
            self.cells[crossing as usize].0.newest -= 1;
            self.observations[observation_of(crossing) as usize].newest -= 1;
        }
        if n > 2 * self.window
            && let Some(oldest) = self.ring.pop_front()
        {
            let (count, action) = &mut self.cells[oldest as usize];
            count.both -= 1;
            let pairs = &mut self.actions.get_mut(*action).1;
            *pairs -= 1;
            self.distinct -= u64::from(*pairs == 0);
            self.observations[observation_of(oldest) as usize].both -= 1;
        }
    }

    /// Forgets the evidence, not the windows.
    pub(super) fn start_anew(&mut self) {
        self.sum = 0.0;
    }

    /// Puts the remembered pairs back; their cells have been entered.
    pub(super) fn restore(&mut self, pairs: &[u32], sum: f64, observation_of: impl Fn(u32) -> u32) {
        for &cell in pairs {
            let observation = observation_of(cell) as usize;
            if self.observations.len() <= observation {
                self.observations.resize(observation + 1, Count::default());
            }
            self.count(cell, observation, &observation_of);
        }
        self.sum = sum;
    }
}
