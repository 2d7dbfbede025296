//! Sparse joint counts of two distributions, and their divergence as exact integer sums.
//!
//! Over the union U of occupied cells, with counts c and d, totals N and M, K = |U| and
//! G(n, k) = round(log(n + alpha k) 2^44), the joint divergence is
//!
//! ```text
//! (sum c (G(c,1) - G(d,1)) + alpha sum (G(c,1) - G(d,1))) / (2^44 (N + alpha K))
//!     + log((M + alpha K) / (N + alpha K))
//! ```
//!
//! and the divergence of the observation marginals has the same form with the counts of an
//! observation and its number of cells. A change of one count replaces one term of each sum.
//! The sums are integers, so adding and removing a count cancels to the last bit: nothing drifts
//! however long the run, and the order of the pairs does not matter.

use crate::blindness::{self, Blindness, Stratum};
use crate::error::Result;
use crate::floor::{NoiseFloor, Regime};
use crate::layout::Key;
use crate::log_table::{LogTable, SCALE, nearest_float};
use crate::slots::Slots;

/// Counts of one joint cell.
#[derive(Debug, Clone)]
struct Cell {
    current: u64,
    previous: u64,
    /// Pairs of the ring that are in neither distribution; they keep the number alive.
    held: u32,
    flow: bool,
}

/// Counts of one observation over all its actions.
#[derive(Debug, Clone, Default)]
struct Observation {
    current: u64,
    previous: u64,
    /// k: its cells in the union.
    cells: u32,
    /// Its numbered cells, those only held included.
    numbered: u32,
}

/// sum c (G - G') and sum (G - G').
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sums {
    weighted: i128,
    plain: i128,
}

impl Sums {
    /// Replaces the term (count, weight, difference) by another.
    #[inline]
    fn replace(&mut self, old: (u64, u64, i64), new: (u64, u64, i64)) {
        let product = |count: u64, difference: i64| i128::from(count) * i128::from(difference);
        self.weighted += product(new.0, new.2) - product(old.0, old.2);
        self.plain += product(new.1, new.2) - product(old.1, old.2);
    }
}

/// The three divergences, in nats.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Divergence {
    pub(crate) joint: f64,
    pub(crate) observation: f64,
    pub(crate) policy: f64,
}

/// How the counts of a cell change.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Change {
    pub(crate) current: i64,
    pub(crate) previous: i64,
    pub(crate) held: i32,
}

/// What several pairs change in a cell.
#[derive(Debug, Clone, Copy, Default)]
struct Gathered {
    change: Change,
    waits: bool,
}

/// The joint counts and their sums.
#[derive(Debug, Clone)]
pub(crate) struct Cells {
    alpha: f64,
    logs: LogTable,
    cells: Slots<(u32, u32), Cell>,
    observations: Slots<Key, Observation>,
    actions: Slots<Key, u32>,
    joint: Sums,
    marginal: Sums,
    floor: NoiseFloor,
    current_total: u64,
    previous_total: u64,
    union: u64,
    flow_pairs: u64,
    /// What waits to be changed, by number.
    gathered: Vec<Gathered>,
    /// The numbers for which something waits.
    changed: Vec<u32>,
}

impl Cells {
    pub(crate) fn new(alpha: f64) -> Self {
        Self {
            alpha,
            logs: LogTable::new(alpha),
            cells: Slots::new(),
            observations: Slots::new(),
            actions: Slots::new(),
            joint: Sums::default(),
            marginal: Sums::default(),
            floor: NoiseFloor::new(alpha),
            current_total: 0,
            previous_total: 0,
            union: 0,
            flow_pairs: 0,
            gathered: Vec::new(),
            changed: Vec::new(),
        }
    }

    /// N, the pairs of the current distribution.
    pub(crate) fn current_total(&self) -> u64 {
        self.current_total
    }

    /// M, the pairs of the previous distribution.
    pub(crate) fn previous_total(&self) -> u64 {
        self.previous_total
    }

    /// K, the cells occupied in either distribution.
    pub(crate) fn union(&self) -> u64 {
        self.union
    }

    /// Pairs of the current distribution with a digit in a flow bin.
    pub(crate) fn flow_pairs(&self) -> u64 {
        self.flow_pairs
    }

    /// Number of cells that have a number.
    pub(crate) fn numbered(&self) -> usize {
        self.cells.len()
    }

    /// The number of a cell. A new one has no counts yet; give it some at once.
    #[inline]
    pub(crate) fn enter(&mut self, observation: Key, action: Key, flow: bool) -> Result<u32> {
        let o = self.observations.enter(observation, Observation::default)?;
        let a = self.actions.enter(action, || 0)?;
        let before = self.cells.len();
        let number = self.cells.enter((o, a), || Cell {
            current: 0,
            previous: 0,
            held: 0,
            flow,
        })?;
        if self.cells.len() != before {
            self.observations.get_mut(o).numbered += 1;
            *self.actions.get_mut(a) += 1;
        }
        let cell = self.cells.get_mut(number);
        if cell.current == 0 {
            // A cell of a reference says nothing of flow until a pair of the run falls in it.
            cell.flow = flow;
        }
        Ok(number)
    }

    /// Changes the counts of a cell and every sum with them; an empty cell loses its number.
    #[inline]
    pub(crate) fn change(&mut self, number: u32, change: Change) {
        let (o, a) = self.cells.key(number);
        let cell = self.cells.get_mut(number);
        let (c, d) = (cell.current, cell.previous);
        cell.current = c.wrapping_add_signed(change.current);
        cell.previous = d.wrapping_add_signed(change.previous);
        cell.held = cell.held.wrapping_add_signed(change.held);
        let (c_new, d_new) = (cell.current, cell.previous);
        let empty = c_new == 0 && d_new == 0 && cell.held == 0;
        if cell.flow {
            self.flow_pairs = self.flow_pairs.wrapping_add_signed(change.current);
        }
        self.current_total = self.current_total.wrapping_add_signed(change.current);
        self.previous_total = self.previous_total.wrapping_add_signed(change.previous);

        let logs = &mut self.logs;
        let mut term = |c: u64, d: u64, k: u64| (c, k, logs.get(c, k) - logs.get(d, k));
        self.joint.replace(term(c, d, 1), term(c_new, d_new, 1));
        let (pooled, pooled_new) = (c.wrapping_add(d), c_new.wrapping_add(d_new));
        if pooled != pooled_new {
            self.floor.replace(pooled, pooled_new);
        }

        let observation = self.observations.get_mut(o);
        let k = u64::from(observation.cells);
        let old = term(observation.current, observation.previous, k);
        observation.current = observation.current.wrapping_add_signed(change.current);
        observation.previous = observation.previous.wrapping_add_signed(change.previous);
        match (c | d == 0, c_new | d_new == 0) {
            (true, false) => {
                observation.cells += 1;
                self.union += 1;
            }
            (false, true) => {
                observation.cells -= 1;
                self.union -= 1;
            }
            _ => {}
        }
        let k = u64::from(observation.cells);
        let new = term(observation.current, observation.previous, k);
        self.marginal.replace(old, new);

        if empty {
            self.remove(number, o, a);
        }
    }

    /// Adds to what [`Cells::change_gathered`] will change; nothing else may change meanwhile.
    #[inline]
    pub(crate) fn gather(&mut self, number: u32, change: Change) {
        let place = number as usize;
        if self.gathered.len() <= place {
            let length = (place + 1).next_power_of_two();
            self.gathered.resize(length, Gathered::default());
        }
        let gathered = &mut self.gathered[place];
        gathered.change.current += change.current;
        gathered.change.previous += change.previous;
        gathered.change.held += change.held;
        if !gathered.waits {
            gathered.waits = true;
            self.changed.push(number);
        }
    }

    /// Changes every cell that waits for it.
    pub(crate) fn change_gathered(&mut self) {
        let mut changed = std::mem::take(&mut self.changed);
        for number in changed.drain(..) {
            let gathered = std::mem::take(&mut self.gathered[number as usize]);
            self.change(number, gathered.change);
        }
        self.changed = changed;
    }

    #[cold]
    fn remove(&mut self, number: u32, o: u32, a: u32) {
        self.cells.remove(number);
        let observation = self.observations.get_mut(o);
        observation.numbered -= 1;
        if observation.numbered == 0 {
            self.observations.remove(o);
        }
        let action = self.actions.get_mut(a);
        *action -= 1;
        if *action == 0 {
            self.actions.remove(a);
        }
    }

    /// The divergence of the current distribution from the previous one.
    pub(crate) fn divergence(&self) -> Divergence {
        let mass = self.alpha * self.union as f64;
        let (n, m) = (
            self.current_total as f64 + mass,
            self.previous_total as f64 + mass,
        );
        let offset = if self.current_total == self.previous_total {
            0.0
        } else {
            libm::log(m / n)
        };
        let value = |weighted: i128, plain: i128| {
            (nearest_float(weighted) + self.alpha * nearest_float(plain)) / (SCALE * n)
        };
        let (joint, marginal) = (self.joint, self.marginal);
        Divergence {
            joint: (value(joint.weighted, joint.plain) + offset).max(0.0),
            observation: (value(marginal.weighted, marginal.plain) + offset).max(0.0),
            policy: value(
                joint.weighted - marginal.weighted,
                joint.plain - marginal.plain,
            )
            .max(0.0),
        }
    }

    /// What the joint divergence would be on average if nothing had changed.
    pub(crate) fn noise_floor(&mut self, regime: Regime) -> f64 {
        if regime != self.floor.regime() {
            let cells = &self.cells;
            let pooled = |cell: &Cell| cell.current.wrapping_add(cell.previous);
            self.floor
                .enter(regime, || cells.iter().map(|(_, _, cell)| pooled(cell)));
        }
        self.floor
            .value(self.current_total, self.previous_total, self.union)
    }

    fn occupied(&self) -> impl Iterator<Item = blindness::Counted> {
        let cells = self.cells.iter();
        cells
            .filter(|(_, _, cell)| cell.current > 0 || cell.previous > 0)
            .map(|(_, (o, _), cell)| (o, cell.current, cell.previous))
    }

    /// Coverage and support; with `all_but` the previous distribution is the current one without a
    /// pair of that cell.
    pub(crate) fn blindness(&self, all_but: Option<u32>) -> Blindness {
        let newest = all_but.map(|number| self.cells.key(number).0);
        let strata = self.observations.iter().map(|(o, _, counts)| Stratum {
            current: counts.current,
            previous: match newest {
                None => counts.previous,
                Some(newest) => counts.current - u64::from(newest == o),
            },
            cells: counts.cells.into(),
        });
        let pairs = self.current_total.saturating_add(self.previous_total);
        Blindness {
            coverage: blindness::coverage(self.occupied(), pairs),
            support: blindness::support(strata, self.current_total),
            ..Blindness::default()
        }
    }

    /// The same with everything that rests on a noise floor; `value` is the policy part.
    pub(crate) fn policy_blindness(&self, value: f64) -> Blindness {
        let stratum = |o| {
            let counts = self.observations.get(o);
            Stratum {
                current: counts.current,
                previous: counts.previous,
                cells: counts.cells.into(),
            }
        };
        blindness::policy(
            self.occupied(),
            stratum,
            (self.current_total, self.previous_total, self.union),
            self.alpha,
            value,
            self.blindness(None),
        )
    }

    /// The divergence of all current pairs from the same without the newest, which is in `number`.
    ///
    /// With m = count + alpha of the newest cell and S = total + alpha K before the newest pair,
    /// `(m+1)/(S+1) log1p(1/m) - log1p(1/S)`; the general form would lose its digits here.
    pub(crate) fn divergence_from_all_but(&self, number: u32) -> Divergence {
        let cell = self.cells.get(number);
        let observation = self.observations.get(self.cells.key(number).0);
        let before = |count: u64, cells: u64| (count - 1) as f64 + self.alpha * cells as f64;
        let m = before(cell.current, 1);
        let m_observation = before(observation.current, observation.cells.into());
        let s = before(self.current_total, self.union);
        let part = |m: f64| (m + 1.0) * log_of_one_more(m);
        let offset = libm::log1p(1.0 / s);
        let (joint, marginal) = (part(m), part(m_observation));
        Divergence {
            joint: (joint / (s + 1.0) - offset).max(0.0),
            observation: (marginal / (s + 1.0) - offset).max(0.0),
            policy: ((joint - marginal) / (s + 1.0)).max(0.0),
        }
    }

    /// Every cell: number, keys, current and previous count, flow; in no promised order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = CellView> {
        self.cells.iter().map(|(number, (o, a), cell)| CellView {
            number,
            observation: self.observations.key(o),
            action: self.actions.key(a),
            current: cell.current,
            previous: cell.previous,
            held: cell.held,
            flow: cell.flow,
        })
    }
}

/// log((m + 1) / m); below 1 in the form whose quotient cannot overflow.
fn log_of_one_more(m: f64) -> f64 {
    if m < 1.0 {
        libm::log1p(m) - libm::log(m)
    } else {
        libm::log1p(1.0 / m)
    }
}

/// A cell with its keys.
pub(crate) struct CellView {
    pub(crate) number: u32,
    pub(crate) observation: Key,
    pub(crate) action: Key,
    pub(crate) current: u64,
    pub(crate) previous: u64,
    pub(crate) held: u32,
    pub(crate) flow: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(counts: &[(u128, u128, u64, u64)], alpha: f64) -> Cells {
        let mut cells = Cells::new(alpha);
        for &(o, a, c, d) in counts {
            let number = cells.enter(Key(o), Key(a), false).unwrap();
            cells.change(
                number,
                Change {
                    current: c.cast_signed(),
                    previous: d.cast_signed(),
                    held: 0,
                },
            );
        }
        cells
    }

    /// The definition, with floats, over cells (observation, c, d).
    fn defined(counts: &[(u128, u128, u64, u64)], alpha: f64) -> Divergence {
        let total = |pick: fn(&(u128, u128, u64, u64)) -> u64| {
            counts.iter().map(pick).sum::<u64>() as f64 + alpha * counts.len() as f64
        };
        let (n, m) = (total(|x| x.2), total(|x| x.3));
        let kl = |p: f64, q: f64| p / n * ((p / n) / (q / m)).ln();
        let joint = counts
            .iter()
            .map(|x| kl(x.2 as f64 + alpha, x.3 as f64 + alpha))
            .sum();
        let mut marginals = std::collections::BTreeMap::new();
        for x in counts {
            let mass = marginals.entry(x.0).or_insert((0.0, 0.0));
            mass.0 += x.2 as f64 + alpha;
            mass.1 += x.3 as f64 + alpha;
        }
        let observation: f64 = marginals.values().map(|&(p, q)| kl(p, q)).sum();
        Divergence {
            joint,
            observation,
            policy: joint - observation,
        }
    }

    const COUNTS: [(u128, u128, u64, u64); 6] = [
        (0, 0, 5, 1),
        (0, 1, 0, 7),
        (1, 0, 3, 3),
        (2, 0, 9, 0),
        (2, 1, 1, 2),
        (7, 2, 100, 40),
    ];

    #[test]
    fn the_integer_sums_give_the_definition() {
        for alpha in [1e-10, 0.5, 1.0, 1e6] {
            let (got, expected) = (filled(&COUNTS, alpha).divergence(), defined(&COUNTS, alpha));
            for (a, b) in [
                (got.joint, expected.joint),
                (got.observation, expected.observation),
                (got.policy, expected.policy),
            ] {
                assert!((a - b).abs() <= 1e-12, "alpha {alpha}: {a} {b}");
            }
        }
    }

    #[test]
    fn adding_and_removing_cancels_to_the_last_bit() {
        let mut cells = filled(&COUNTS, 0.5);
        let fresh = cells.clone();
        let add = Change {
            current: 1,
            ..Change::default()
        };
        let remove = Change {
            current: -1,
            ..Change::default()
        };
        for round in 0..1000 {
            let number = cells.enter(Key(round % 11), Key(round % 3), false).unwrap();
            cells.change(number, add);
        }
        for round in 0..1000 {
            let number = cells.enter(Key(round % 11), Key(round % 3), false).unwrap();
            cells.change(number, remove);
        }
        assert_eq!(cells.joint, fresh.joint);
        assert_eq!(cells.marginal, fresh.marginal);
        assert_eq!(cells.numbered(), COUNTS.len());
        assert_eq!(cells.observations.len(), 4);
        assert_eq!(cells.actions.len(), 3);
    }

    #[test]
    fn equal_counts_diverge_by_nothing() {
        let counts: Vec<_> = COUNTS.iter().map(|&(o, a, c, _)| (o, a, c, c)).collect();
        let divergence = filled(&counts, 0.5).divergence();
        assert_eq!(divergence, Divergence::default());
    }
}
