//! The newest pairs against a frozen reference, counted in batches.
//!
//! A pair only joins a buffer; [`FrozenCounts::slide`] counts those that came and those that left.
//! Sums of integers do not depend on the order, so what comes goes first, and a cell that leaves
//! and returns within a batch never disappears in between.

use crate::cells::Divergence;
use crate::detector::terms::Terms;
use crate::error::{Error, Result};
use crate::layout::Key;
use crate::log_table::{SCALE, nearest_float};
use crate::slots::Slots;
use crate::snapshot::Counts;

/// No cell and no tracker's number.
const NONE: u32 = u32::MAX;
/// So many dead cells are kept at least before they are cleared away.
const SPARE: usize = 1024;
/// So many changes are summed before they join the wide sums.
const CHUNK: usize = 4096;

#[derive(Debug, Clone, Copy)]
struct Cell {
    /// G(d, 1).
    log: i64,
    /// d
    reference: u64,
    observation: u32,
    /// c
    count: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Observation {
    /// G(D, k).
    log: i64,
    /// D
    reference: u64,
    /// C
    count: u32,
    /// k: its cells with pairs in the window or the reference.
    cells: u32,
    /// Its cells that have a number, dead ones included.
    numbered: u32,
}

/// A share of the pairs of one cell.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellShare {
    /// Key of the observation.
    pub observation: Key,
    /// Key of the action.
    pub action: Key,
    /// Its pairs in the window.
    pub count: u64,
    /// Its pairs in the reference.
    pub reference_count: u64,
    /// Its smoothed probability in the window.
    pub share: f64,
    /// Its smoothed probability in the reference.
    pub reference_share: f64,
}

#[derive(Debug, Clone)]
pub(super) struct FrozenCounts {
    alpha: f64,
    terms: Terms,
    /// Numbers of cells, each with the number that a tracker has for it.
    keys: Slots<(Key, Key), u32>,
    cells: Vec<Cell>,
    observation_keys: Slots<Key, ()>,
    observations: Vec<Observation>,
    /// A tracker's number of a cell to the number here.
    links: Vec<u32>,
    /// Cells of the remembered pairs, oldest first, from `head` on.
    buffer: Vec<u32>,
    head: usize,
    /// How many of the newest are not counted yet.
    pending: usize,
    joint: i128,
    marginal: i128,
    reference_total: u64,
    /// N
    total: u64,
    /// K
    union: u64,
    /// Dead cells are cleared away where there are more cells than this.
    room: usize,
}

impl FrozenCounts {
    pub(super) fn new(alpha: f64) -> Self {
        Self {
            alpha,
            terms: Terms::new(alpha),
            keys: Slots::new(),
            cells: Vec::new(),
            observation_keys: Slots::new(),
            observations: Vec::new(),
            links: Vec::new(),
            buffer: Vec::new(),
            head: 0,
            pending: 0,
            joint: 0,
            marginal: 0,
            reference_total: 0,
            total: 0,
            union: 0,
            room: SPARE,
        }
    }

    /// The number of a cell.
    pub(super) fn enter(&mut self, observation: Key, action: Key) -> Result<u32> {
        let before = self.keys.len();
        let number = self.keys.enter((observation, action), || NONE)?;
        if self.keys.len() == before {
            return Ok(number);
        }
        let observations = self.observation_keys.len();
        let o = self.observation_keys.enter(observation, || ())?;
        if self.observation_keys.len() != observations {
            put(&mut self.observations, o, Observation::default());
        }
        self.observations[o as usize].numbered += 1;
        let cell = Cell {
            log: self.terms.log(0, 1),
            reference: 0,
            observation: o,
            count: 0,
        };
        put(&mut self.cells, number, cell);
        Ok(number)
    }

    /// The cell that a tracker's number was last linked to.
    #[inline]
    pub(super) fn linked(&self, tracked: u32) -> Option<u32> {
        let number = *self.links.get(tracked as usize)?;
        (number != NONE).then_some(number)
    }

    /// From now on the tracker's number stands for this cell.
    pub(super) fn link(&mut self, tracked: u32, number: u32) {
        let place = tracked as usize;
        if self.links.len() <= place {
            self.links.resize((place + 1).next_power_of_two(), NONE);
        }
        self.links[place] = number;
        *self.keys.get_mut(number) = tracked;
    }

    /// Forgets what the tracker's numbers stand for.
    pub(super) fn unlink(&mut self) {
        self.links.clear();
    }

    /// The number of the observation of a cell.
    pub(super) fn observation_of(&self, number: u32) -> u32 {
        self.cells[number as usize].observation
    }

    /// Cells that have a number.
    pub(super) fn numbered(&self) -> usize {
        self.keys.len()
    }

    /// Pairs that are remembered, those not counted yet included.
    pub(super) fn remembered(&self) -> usize {
        self.buffer.len() - self.head
    }

    /// N, the pairs of the window that are counted.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Takes one pair; it is counted later.
    #[inline]
    pub(super) fn push(&mut self, number: u32) {
        self.buffer.push(number);
        self.pending += 1;
    }

    /// Moves every remembered pair into the reference, which is not frozen yet.
    pub(super) fn absorb(&mut self) {
        for &number in &self.buffer[self.head..] {
            self.cells[number as usize].reference += 1;
        }
        self.reference_total += self.remembered() as u64;
        self.buffer.clear();
        self.head = 0;
        self.pending = 0;
    }

    /// Adds pairs of one cell to the reference, which is not frozen yet.
    pub(super) fn add_reference(&mut self, number: u32, count: u64) -> Result<()> {
        let total = self.reference_total.checked_add(count);
        self.reference_total = total.ok_or(Error::CountOverflow)?;
        self.cells[number as usize].reference += count;
        Ok(())
    }

    /// Ends the reference: from now on pairs are compared with it.
    pub(super) fn freeze(&mut self) {
        self.union = 0;
        for (number, _, _) in self.keys.iter() {
            let cell = &mut self.cells[number as usize];
            if cell.reference == 0 {
                continue;
            }
            cell.log = self.terms.log(cell.reference, 1);
            self.joint += self.terms.term(0, 1, cell.log);
            self.union += 1;
            let observation = &mut self.observations[cell.observation as usize];
            observation.reference += cell.reference;
            observation.cells += 1;
        }
        for (o, _, ()) in self.observation_keys.iter() {
            let observation = &mut self.observations[o as usize];
            let k = observation.cells;
            observation.log = self.terms.log(observation.reference, k);
            self.marginal += self.terms.term(0, k, observation.log);
        }
        self.room = 2 * self.keys.len() + SPARE;
    }

    /// Counts the pairs that have come, and drops those that no longer are among the last `window`.
    pub(super) fn slide(&mut self, window: usize) {
        let (joined, left) = (self.pending, self.remembered().saturating_sub(window));
        let newest = self.buffer.len() - joined;
        self.change::<true>(newest..newest + joined);
        self.change::<false>(self.head..self.head + left);
        self.total += joined as u64;
        self.total -= left as u64;
        self.pending = 0;
        self.head += left;
        // What has left makes up half of the buffer at most.
        if self.head > SPARE.max(self.remembered()) {
            self.buffer.drain(..self.head);
            self.head = 0;
        }
    }

    /// Counts pairs of the buffer that join the window, or that leave it.
    #[inline]
    fn change<const JOINS: bool>(&mut self, range: std::ops::Range<usize>) {
        let Self {
            terms,
            cells,
            observations,
            union,
            ..
        } = self;
        for numbers in self.buffer[range].chunks(CHUNK) {
            // Gains are far below 2^50, so these sums fit.
            let (mut joint, mut marginal) = (0i64, 0i64);
            for &number in numbers {
                let cell = &mut cells[number as usize];
                if !JOINS {
                    cell.count -= 1;
                }
                let count = cell.count;
                if JOINS {
                    cell.count += 1;
                }
                let gain = terms.gain(count, 1) - cell.log;
                joint += if JOINS { gain } else { -gain };
                let observation = &mut observations[cell.observation as usize];
                if count == 0 && cell.reference == 0 {
                    // The cell enters the union or leaves it.
                    self.marginal += regroup::<JOINS>(observation, terms);
                    *union = if JOINS { *union + 1 } else { *union - 1 };
                    continue;
                }
                if !JOINS {
                    observation.count -= 1;
                }
                let gain = terms.gain(observation.count, observation.cells) - observation.log;
                marginal += if JOINS { gain } else { -gain };
                if JOINS {
                    observation.count += 1;
                }
            }
            self.joint += i128::from(joint);
            self.marginal += i128::from(marginal);
        }
    }

    /// Whether it is time for [`FrozenCounts::clear_dead`]. A window must have been slid.
    #[inline]
    pub(super) fn is_crowded(&self) -> bool {
        self.keys.len() > self.room
    }

    /// Gives the numbers of cells without pairs back, unless `keep` says otherwise.
    pub(super) fn clear_dead(&mut self, keep: impl Fn(u32) -> bool) {
        let dead: Vec<u32> = self
            .keys
            .iter()
            .map(|(number, _, _)| number)
            .filter(|&number| {
                let cell = self.cells[number as usize];
                cell.count == 0 && cell.reference == 0 && !keep(number)
            })
            .collect();
        for number in dead {
            let tracked = *self.keys.get_mut(number);
            if let Some(link) = self.links.get_mut(tracked as usize)
                && *link == number
            {
                *link = NONE;
            }
            self.keys.remove(number);
            let o = self.cells[number as usize].observation;
            let observation = &mut self.observations[o as usize];
            observation.numbered -= 1;
            if observation.numbered == 0 {
                self.observation_keys.remove(o);
            }
        }
        self.room = 2 * self.keys.len() + SPARE;
    }

    /// The divergence of the window from the reference, of the pairs that are counted.
    pub(super) fn divergence(&self) -> Divergence {
        let mass = self.alpha * self.union as f64;
        let (n, m) = (self.total as f64 + mass, self.reference_total as f64 + mass);
        let offset = libm::log(m / n);
        let value = |sum: i128| nearest_float(sum) / (SCALE * n);
        Divergence {
            joint: (value(self.joint) + offset).max(0.0),
            observation: (value(self.marginal) + offset).max(0.0),
            policy: value(self.joint - self.marginal).max(0.0),
        }
    }

    /// The cells whose share has changed most, by what they add to the divergence in either
    /// direction, largest first.
    pub(super) fn most_changed(&self, number: usize) -> Vec<CellShare> {
        let mass = self.alpha * self.union as f64;
        let (n, m) = (self.total as f64 + mass, self.reference_total as f64 + mass);
        let mut shares: Vec<(f64, CellShare)> = self
            .keys
            .iter()
            .map(|(number, keys, _)| (keys, self.cells[number as usize]))
            .filter(|(_, cell)| cell.count > 0 || cell.reference > 0)
            .map(|((observation, action), cell)| {
                let share = (f64::from(cell.count) + self.alpha) / n;
                let reference_share = (cell.reference as f64 + self.alpha) / m;
                let weight = (share - reference_share) * libm::log(share / reference_share);
                let share = CellShare {
                    observation,
                    action,
                    count: cell.count.into(),
                    reference_count: cell.reference,
                    share,
                    reference_share,
                };
                (weight, share)
            })
            .collect();
        shares.sort_unstable_by(|(a, x), (b, y)| {
            b.total_cmp(a)
                .then_with(|| (x.observation, x.action).cmp(&(y.observation, y.action)))
        });
        shares.truncate(number);
        shares.into_iter().map(|(_, share)| share).collect()
    }

    /// The counts of the reference.
    pub(super) fn reference_counts(&self) -> Counts {
        let mut counts = Counts::new();
        for (number, (observation, action), _) in self.keys.iter() {
            let count = self.cells[number as usize].reference;
            if count > 0 {
                counts.entry(observation).or_default().insert(action, count);
            }
        }
        counts
    }

    /// Numbers of the remembered pairs, oldest first, and how many of them are not counted.
    pub(super) fn pairs(&self) -> (&[u32], usize) {
        (&self.buffer[self.head..], self.pending)
    }

    /// Every cell that has pairs anywhere, or that `keep` names: number, keys, reference count.
    pub(super) fn occupied(&self, keep: impl Fn(u32) -> bool) -> Vec<(u32, Key, Key, u64)> {
        let mut waiting = std::collections::HashSet::new();
        waiting.extend(self.buffer[self.head..].iter().copied());
        let mut found: Vec<_> = self
            .keys
            .iter()
            .map(|(number, (o, a), _)| (number, o, a, self.cells[number as usize].reference))
            .filter(|&(number, _, _, reference)| {
                reference > 0 || waiting.contains(&number) || keep(number)
            })
            .collect();
        found.sort_unstable_by_key(|&(_, o, a, _)| (o, a));
        found
    }

    /// Puts the remembered pairs back; the first `counted` of them had been counted.
    pub(super) fn restore_pairs(&mut self, numbers: &[u32], counted: usize) {
        let (counted, waiting) = numbers.split_at(counted);
        self.buffer.extend(counted);
        self.pending = counted.len();
        if !counted.is_empty() {
            self.slide(counted.len());
        }
        self.buffer.extend(waiting);
        self.pending = waiting.len();
    }
}

/// One pair comes or goes with a cell that the reference lacks: by how much the whole term of its
/// observation changes.
fn regroup<const JOINS: bool>(observation: &mut Observation, terms: &mut Terms) -> i128 {
    let before = terms.term(observation.count, observation.cells, observation.log);
    if JOINS {
        observation.count += 1;
        observation.cells += 1;
    } else {
        observation.count -= 1;
        observation.cells -= 1;
    }
    observation.log = terms.log(observation.reference, observation.cells);
    terms.term(observation.count, observation.cells, observation.log) - before
}

fn put<T>(entries: &mut Vec<T>, number: u32, entry: T) {
    match entries.get_mut(number as usize) {
        Some(place) => *place = entry,
        None => entries.push(entry),
    }
}
