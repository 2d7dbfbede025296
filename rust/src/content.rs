//! The canonical bytes of a value that has no axes (text, sequences, graphs, custom spaces), and
//! the hash of them that is its cell.
//!
//! The bytes of a value, whatever it was held in:
//!
//! | value | bytes |
//! |---|---|
//! | nothing | `n` |
//! | number, whole and within 128 bits | `i`, then 16 bytes, little-endian two's complement |
//! | any other number | `f`, then its float64, 8 bytes little-endian |
//! | text | `s`, then the length in bytes (u64, little-endian), then UTF-8 |
//! | bytes | `b`, then the length (u64), then the bytes |
//! | sequence | `l`, then the length (u64), then the bytes of each item |
//! | mapping | `m`, then the length (u64), then key and value of each entry, in the order of the keys' bytes |
//!
//! Numbers are told apart by value alone: `True`, `1` and `1.0` are one, and so are `-0.0` and `0`.
//! An array is the sequence of its rows, so it equals the nested lists of its items. NaN has no
//! bytes. The hash is xxh3 (128 bits) of the bytes: the same on every platform and release.

use xxhash_rust::xxh3::xxh3_128;

/// Whole floats below this fit 128-bit integers.
const WHOLE: f64 = (1u128 << 127) as f64;

/// The bytes of one value on their way to a hash.
#[derive(Debug, Clone, Default)]
pub struct Content(Vec<u8>);

impl Content {
    /// No value yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// No value at all, such as the edges of a graph without edges.
    pub fn nothing(&mut self) {
        self.0.push(b'n');
    }

    /// A whole number.
    #[inline]
    pub fn integer(&mut self, x: i128) {
        self.0.push(b'i');
        self.0.extend_from_slice(&x.to_le_bytes());
    }

    /// A number. False, and nothing added, for NaN.
    #[inline]
    #[must_use]
    #[allow(clippy::cast_possible_truncation)]
    pub fn real(&mut self, x: f64) -> bool {
        if x.is_nan() {
            return false;
        }
        if x.fract() == 0.0 && x.abs() < WHOLE {
            self.integer(x as i128);
        } else {
            self.0.push(b'f');
            self.0.extend_from_slice(&x.to_le_bytes());
        }
        true
    }

    /// Text in UTF-8.
    pub fn text(&mut self, utf8: &[u8]) {
        self.tagged(b's', utf8.len());
        self.0.extend_from_slice(utf8);
    }

    /// Raw bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.tagged(b'b', bytes.len());
        self.0.extend_from_slice(bytes);
    }

    /// The head of a sequence: as many values as `length` must follow.
    #[inline]
    pub fn sequence(&mut self, length: usize) {
        self.tagged(b'l', length);
    }

    /// A mapping of keys to values.
    pub fn mapping(&mut self, mut entries: Vec<(Self, Self)>) {
        entries.sort_by(|(a, _), (b, _)| a.0.cmp(&b.0));
        self.tagged(b'm', entries.len());
        for (key, value) in entries {
            self.0.extend_from_slice(&key.0);
            self.0.extend_from_slice(&value.0);
        }
    }

    #[inline]
    fn tagged(&mut self, tag: u8, length: usize) {
        self.0.push(tag);
        self.0.extend_from_slice(&(length as u64).to_le_bytes());
    }

    /// The bytes so far.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The hash of the value.
    #[must_use]
    pub fn hash(&self) -> u128 {
        xxh3_128(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(write: impl FnOnce(&mut Content)) -> Vec<u8> {
        let mut content = Content::new();
        write(&mut content);
        content.0
    }

    #[test]
    fn numbers_differ_by_value_alone() {
        let real = |x: f64| of(|c| assert!(c.real(x)));
        assert_eq!(real(3.0), of(|c| c.integer(3)));
        assert_eq!(real(-0.0), of(|c| c.integer(0)));
        assert_eq!(real(-(2f64.powi(100))), of(|c| c.integer(-(1 << 100))));
        assert_eq!(real(0.5), [b"f".as_slice(), &0.5f64.to_le_bytes()].concat());
        assert_eq!(real(WHOLE)[0], b'f');
        assert_eq!(real(f64::INFINITY)[0], b'f');
        assert!(!Content::new().real(f64::NAN));
    }

    #[test]
    fn lengths_keep_neighbours_apart() {
        let pair = |a: &str, b: &str| {
            of(|c| {
                c.sequence(2);
                c.text(a.as_bytes());
                c.text(b.as_bytes());
            })
        };
        assert_ne!(pair("ab", "c"), pair("a", "bc"));
        assert_ne!(of(|c| c.text(b"a")), of(|c| c.bytes(b"a")));
    }

    #[test]
    fn the_order_of_a_mapping_does_not_matter() {
        let entry = |key: &str, value: i128| {
            let (mut k, mut v) = (Content::new(), Content::new());
            k.text(key.as_bytes());
            v.integer(value);
            (k, v)
        };
        assert_eq!(
            of(|c| c.mapping(vec![entry("a", 1), entry("b", 2)])),
            of(|c| c.mapping(vec![entry("b", 2), entry("a", 1)]))
        );
    }

    #[test]
    fn hashes_are_pinned() {
        // Keys in saved snapshots must stay readable.
        let mut content = Content::new();
        content.sequence(2);
        content.text(b"go to the red ball");
        content.nothing();
        assert_eq!(
            content.hash(),
            27_677_292_693_306_421_706_358_378_969_489_690_925
        );
    }
}
