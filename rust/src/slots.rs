//! Numbered entries found by key: the storage of cells, observations and actions.

use std::hash::{BuildHasher, Hash};

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::error::{Error, Result};

/// Entries with stable u32 numbers. A removed number is used again, so memory follows what is
/// occupied and not what has ever been seen.
#[derive(Debug, Clone)]
pub(crate) struct Slots<K, V> {
    hasher: FixedState,
    index: HashTable<u32>,
    entries: Vec<(K, V)>,
    free: Vec<u32>,
}

impl<K: Hash + Eq + Copy, V: Clone> Slots<K, V> {
    pub(crate) fn new() -> Self {
        Self {
            hasher: FixedState::default(),
            index: HashTable::new(),
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Number of occupied entries.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// The number of `key`, entered with `value` if it is new.
    #[inline]
    pub(crate) fn enter(&mut self, key: K, value: impl FnOnce() -> V) -> Result<u32> {
        let hash = self.hasher.hash_one(key);
        let same = |&number: &u32| self.entries[number as usize].0 == key;
        if let Some(&number) = self.index.find(hash, same) {
            return Ok(number);
        }
        let number = if let Some(number) = self.free.pop() {
            self.entries[number as usize] = (key, value());
            number
        } else {
            let number =
                u32::try_from(self.entries.len()).map_err(|_| Error::TooManyCells(u32::MAX))?;
            self.entries.push((key, value()));
            number
        };
        let Self {
            hasher,
            index,
            entries,
            ..
        } = self;
        index.insert_unique(hash, number, |&other| {
            hasher.hash_one(entries[other as usize].0)
        });
        Ok(number)
    }

    /// Gives the number of an occupied entry back.
    pub(crate) fn remove(&mut self, number: u32) {
        let hash = self.hasher.hash_one(self.entries[number as usize].0);
        if let Ok(entry) = self.index.find_entry(hash, |&other| other == number) {
            entry.remove();
            self.free.push(number);
        }
    }

    #[inline]
    pub(crate) fn key(&self, number: u32) -> K {
        self.entries[number as usize].0
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> &V {
        &self.entries[number as usize].1
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> &mut V {
        &mut self.entries[number as usize].1
    }

    /// The occupied entries, in no promised order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, K, &V)> {
        self.index.iter().map(|&number| {
            let (key, value) = &self.entries[number as usize];
            (number, *key, value)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_numbers_are_used_again() {
        let mut slots = Slots::new();
        for round in 0..1000u64 {
            for key in 0..10 {
                let number = slots.enter(round * 10 + key, || key).unwrap();
                assert_eq!(*slots.get(number), key);
            }
            for number in 0..10 {
                slots.remove(number);
            }
        }
        assert_eq!(slots.len(), 0);
        assert_eq!(slots.entries.len(), 10);
    }

    #[test]
    fn the_same_key_keeps_its_number() {
        let mut slots = Slots::new();
        let numbers: Vec<u32> = [7, 8, 7, 9, 8]
            .iter()
            .map(|&key| slots.enter(key, || ()).unwrap())
            .collect();
        assert_eq!(numbers, [0, 1, 0, 2, 1]);
        slots.remove(1);
        assert_eq!(slots.enter(8, || ()).unwrap(), 1);
    }
}
