//! Whether two recorded runs behave alike: the divergence of their pairs under exchanges of whole
//! episodes.
//!
//! Successive pairs are alike, so single pairs are not exchangeable; episodes are, where nothing
//! has changed between the runs.

use std::collections::BTreeMap;
use std::ops::Range;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::error::{Error, Result};
use crate::log_table::{LogTable, SCALE, nearest_float};

/// The divergences of one split of the episodes, in nats.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Split {
    /// Over pairs.
    pub joint: f64,
    /// Its observation part.
    pub observation: f64,
    /// Its policy part.
    pub policy: f64,
}

/// How often an episode visits a cell.
#[derive(Debug, Clone, Copy)]
struct Visits {
    cell: u32,
    count: u64,
}

/// Two runs, and their random exchanges of episodes.
#[derive(Debug, Clone)]
pub struct EpisodePermutations {
    epsilon: f64,
    logs: LogTable,
    episodes: Vec<Vec<Visits>>,
    /// The first so many of `order` are those of the first run.
    first: usize,
    order: Vec<usize>,
    /// Cells of each observation, and the pairs of each cell in both runs.
    observations: Vec<Range<usize>>,
    pooled: Vec<u64>,
    counts: Vec<u64>,
    random: ChaCha8Rng,
}

impl EpisodePermutations {
    /// The episodes of two runs, each a list of (observation, action) numbers that mean the same in
    /// both. Equal seeds give equal permutations on every platform.
    ///
    /// # Errors
    /// A run without episodes, an episode without pairs, or `epsilon` outside (0, 1e6].
    pub fn new(
        a: &[Vec<(u32, u32)>],
        b: &[Vec<(u32, u32)>],
        epsilon: f64,
        seed: u64,
    ) -> Result<Self> {
        if !(epsilon > 0.0 && epsilon <= 1e6) {
            return Err(Error::parameter(
                "epsilon",
                "a number above 0, at most 1e6",
                epsilon,
            ));
        }
        for (name, run) in [("a", a), ("b", b)] {
            if run.is_empty() || run.iter().any(Vec::is_empty) {
                let expected = "at least one episode, each of at least one pair";
                return Err(Error::parameter(name, expected, "fewer"));
            }
        }
        let mut cells: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        for &pair in a.iter().chain(b).flatten() {
            cells.entry(pair).or_insert(0);
        }
        let mut observations: Vec<Range<usize>> = Vec::new();
        let mut before = None;
        for (place, (&(observation, _), number)) in cells.iter_mut().enumerate() {
            *number = u32::try_from(place).map_err(|_| Error::TooManyCells(u32::MAX))?;
            match observations.last_mut() {
                Some(range) if before == Some(observation) => range.end = place + 1,
                _ => observations.push(place..place + 1),
            }
            before = Some(observation);
        }
        let mut pooled = vec![0; cells.len()];
        let visits = |episode: &Vec<(u32, u32)>| {
            let mut visits: BTreeMap<u32, u64> = BTreeMap::new();
            for pair in episode {
                *visits.entry(cells[pair]).or_default() += 1;
            }
            let visits = visits.into_iter();
            visits.map(|(cell, count)| Visits { cell, count }).collect()
        };
        let episodes: Vec<Vec<Visits>> = a.iter().chain(b).map(visits).collect();
        for visit in episodes.iter().flatten() {
            pooled[visit.cell as usize] += visit.count;
        }
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        Ok(Self {
            epsilon,
            logs: LogTable::new(epsilon),
            first: a.len(),
            order: (0..episodes.len()).collect(),
            counts: vec![0; pooled.len()],
            episodes,
            observations,
            pooled,
            random: ChaCha8Rng::from_seed(bytes),
        })
    }

    /// The divergences of the first run from the second, as they were recorded.
    #[must_use]
    pub fn observed(&self) -> Split {
        let mut fresh = self.clone();
        fresh.order.sort_unstable();
        fresh.split()
    }

    /// The divergences after the next random exchange.
    pub fn permuted(&mut self) -> Split {
        for last in (1..self.order.len()).rev() {
            let other = self.below(last as u64 + 1);
            self.order.swap(last, other);
        }
        self.split()
    }

    /// A number below `bound`, each equally likely (the draws that would favour some are left out).
    #[allow(clippy::cast_possible_truncation)] // a number of episodes
    fn below(&mut self, bound: u64) -> usize {
        let fair = u64::MAX - u64::MAX % bound;
        loop {
            let drawn = self.random.next_u64();
            if drawn < fair {
                return (drawn % bound) as usize;
            }
        }
    }

    fn split(&mut self) -> Split {
        self.counts.fill(0);
        for &episode in &self.order[..self.first] {
            for visit in &self.episodes[episode] {
                self.counts[visit.cell as usize] += visit.count;
            }
        }
        let (n, all): (u64, u64) = (self.counts.iter().sum(), self.pooled.iter().sum());
        let mass = self.epsilon * self.pooled.len() as f64;
        let (p_mass, q_mass) = (n as f64 + mass, (all - n) as f64 + mass);
        let offset = libm::log(q_mass / p_mass);
        let (mut joint, mut marginal) = ([0i128; 2], [0i128; 2]);
        for cells in &self.observations {
            let (mut c_all, mut t_all) = (0, 0);
            for (&c, &t) in self.counts[cells.clone()]
                .iter()
                .zip(&self.pooled[cells.clone()])
            {
                add_term(&mut self.logs, &mut joint, (c, t - c), 1);
                c_all += c;
                t_all += t;
            }
            let k = cells.len() as u64;
            add_term(&mut self.logs, &mut marginal, (c_all, t_all - c_all), k);
        }
        let value = |sums: [i128; 2]| {
            (nearest_float(sums[0]) + self.epsilon * nearest_float(sums[1])) / (SCALE * p_mass)
        };
        let policy = [joint[0] - marginal[0], joint[1] - marginal[1]];
        Split {
            joint: (value(joint) + offset).max(0.0),
            observation: (value(marginal) + offset).max(0.0),
            policy: value(policy).max(0.0),
        }
    }
}

/// Adds one term to the sum of c (G - G') and of k (G - G').
fn add_term(logs: &mut LogTable, sums: &mut [i128; 2], (c, d): (u64, u64), k: u64) {
    let difference = i128::from(logs.get(c, k) - logs.get(d, k));
    sums[0] += i128::from(c) * difference;
    sums[1] += i128::from(k) * difference;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs() -> [Vec<Vec<(u32, u32)>>; 2] {
        [
            vec![vec![(0, 0), (0, 1), (7, 1)], vec![(0, 0)]],
            vec![vec![(3, 1), (0, 0)], vec![(7, 1); 4], vec![(7, 0)]],
        ]
    }

    #[test]
    fn a_seed_gives_the_same_permutations_and_another_does_not() {
        let [a, b] = runs();
        let draw = |seed| {
            let mut test = EpisodePermutations::new(&a, &b, 0.5, seed).unwrap();
            let splits: Vec<_> = (0..50).map(|_| test.permuted()).collect();
            (test.observed(), splits, test.order)
        };
        assert_eq!(draw(1), draw(1));
        assert_eq!(draw(1).0, draw(2).0);
        assert_ne!(draw(1).1, draw(2).1);
        // Pinned: a p-value must not change with a release.
        let mut test = EpisodePermutations::new(&a, &b, 0.5, 0).unwrap();
        test.permuted();
        assert_eq!(test.order, PINNED);
    }

    const PINNED: [usize; 5] = [2, 0, 1, 4, 3];

    #[test]
    fn every_episode_is_in_the_first_run_equally_often() {
        let [a, b] = runs();
        let mut test = EpisodePermutations::new(&a, &b, 0.5, 3).unwrap();
        let mut times = [0u32; 5];
        for _ in 0..20_000 {
            test.permuted();
            for &episode in &test.order[..2] {
                times[episode] += 1;
            }
        }
        // 8000 expected, deviation 69.
        assert!(times.iter().all(|&n| n.abs_diff(8000) < 350), "{times:?}");
    }

    #[test]
    fn runs_without_pairs_are_refused() {
        let [a, b] = runs();
        assert!(EpisodePermutations::new(&a, &[], 0.5, 0).is_err());
        assert!(EpisodePermutations::new(&[vec![]], &b, 0.5, 0).is_err());
        assert!(EpisodePermutations::new(&a, &b, 0.0, 0).is_err());
    }
}
