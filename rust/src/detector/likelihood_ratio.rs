//! The likelihood-ratio CUSUM of the policy between adjacent windows (Page 1954, Biometrika 41).
//!
//! Before a pair is counted, with counts c of its cell in the newest window and t in both windows
//! together, C and T of its observation, and k the cells of the observation in both windows and
//! the pair,
//!
//! ```text
//! q = (t + alpha) / (T + alpha k)            what both windows say of the action
//! p = (c + 20 q) / (C + 20)                  what the newest says, shrunk towards it
//! S = max(0, S + log(1/2 + p / (2 q)) - 2 / W)
//! ```
//!
//! The 2 nats a window are more than the edges of the windows gather of a stream that repeats
//! itself, where the action that comes next is always the one that the newest window lacks.
//!
//! Pseudocounts for every action there is, in place of the k, would smooth q so much where many
//! actions are hardly ever chosen that p predicts better without any change.

use std::collections::VecDeque;

/// So many pairs the pooled table is worth against the newest window.
const SHRINKAGE: f64 = 20.0;
/// Share of the newest window in the mixture that is bet on.
const MIXTURE: f64 = 0.5;
/// Evidence in nats that a window gathers without any change.
const ALLOWANCE: f64 = 2.0;

/// Pairs in the newest window, and in both.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    newest: u32,
    both: u32,
    /// Of an observation: its cells with pairs in either.
    cells: u32,
}

#[derive(Debug, Clone)]
pub(super) struct LikelihoodRatio {
    window: usize,
    alpha: f64,
    ring: VecDeque<u32>,
    /// By the number of the cell.
    cells: Vec<Count>,
    /// By the number of the observation.
    observations: Vec<Count>,
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

    /// Whether a cell has pairs here.
    pub(super) fn holds(&self, cell: u32) -> bool {
        let count = self.cells.get(cell as usize);
        count.is_some_and(|count| count.both > 0)
    }

    /// Bets on one pair and counts it; `observation_of` a cell is the number of its observation.
    pub(super) fn push(&mut self, cell: u32, observation_of: impl Fn(u32) -> u32) {
        let observation = observation_of(cell);
        if self.ring.len() >= 2 * self.window {
            let count = *entry(&mut self.cells, cell);
            let total = *entry(&mut self.observations, observation);
            let cells = total.cells + u32::from(count.both == 0);
            let q = (f64::from(count.both) + self.alpha)
                / (f64::from(total.both) + self.alpha * f64::from(cells));
            // The smallest pseudocounts would vanish.
            let q = q.max(f64::MIN_POSITIVE);
            let p =
                (f64::from(count.newest) + SHRINKAGE * q) / (f64::from(total.newest) + SHRINKAGE);
            let evidence = libm::log1p(MIXTURE * (p / q - 1.0)) - ALLOWANCE / self.window as f64;
            self.sum = (self.sum + evidence).max(0.0);
        }
        self.count(cell, observation, &observation_of);
    }

    fn count(&mut self, cell: u32, observation: u32, observation_of: &impl Fn(u32) -> u32) {
        let count = entry(&mut self.cells, cell);
        count.newest += 1;
        count.both += 1;
        let opens = u32::from(count.both == 1);
        let total = entry(&mut self.observations, observation);
        total.newest += 1;
        total.both += 1;
        total.cells += opens;
        self.ring.push_back(cell);
        let n = self.ring.len();
        if n > self.window {
            let crossing = self.ring[n - 1 - self.window];
            self.cells[crossing as usize].newest -= 1;
            self.observations[observation_of(crossing) as usize].newest -= 1;
        }
        if n > 2 * self.window
            && let Some(oldest) = self.ring.pop_front()
        {
            let count = &mut self.cells[oldest as usize];
            count.both -= 1;
            let closes = u32::from(count.both == 0);
            let total = &mut self.observations[observation_of(oldest) as usize];
            total.both -= 1;
            total.cells -= closes;
        }
    }

    /// Forgets the evidence, not the windows.
    pub(super) fn start_anew(&mut self) {
        self.sum = 0.0;
    }

    /// Puts the remembered pairs back.
    pub(super) fn restore(&mut self, pairs: &[u32], sum: f64, observation_of: impl Fn(u32) -> u32) {
        for &cell in pairs {
            self.count(cell, observation_of(cell), &observation_of);
        }
        self.sum = sum;
    }
}

/// The entry of a number; there is one for every number so far.
fn entry(entries: &mut Vec<Count>, number: u32) -> &mut Count {
    let place = number as usize;
    if entries.len() <= place {
        entries.resize((place + 1).next_power_of_two(), Count::default());
    }
    &mut entries[place]
}
