//! What a leaf with more scalars than axes can hold is measured through: built-in encoders.
//!
//! Every result is the same on every platform: sums run in a fixed order, no operations are fused,
//! and the random signs are bits of a fixed integer hash.

use serde::{Deserialize, Serialize};

use crate::axis::{Axis, Unbinnable};
use crate::error::{Error, Result};

/// Signs of one input come from one 64-bit word.
const MOST_PROJECTIONS: u32 = 64;

/// How the scalars of a leaf become axes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Encoder {
    /// The hash of the exact content: one cell for each value, without an order.
    Exact,
    /// Means over the blocks of a grid.
    GreyGrid(GreyGrid),
    /// Sums of the scalars with random signs.
    Projection(Projection),
}

impl Encoder {
    /// Checks an encoder that came from a file, for a leaf of this shape with these axes.
    pub(crate) fn validate(&self, shape: &[usize], axes: &[Axis]) -> bool {
        let Some(scalars) = shape
            .iter()
            .try_fold(1usize, |size, &length| size.checked_mul(length))
        else {
            return false;
        };
        match self {
            Self::Exact => axes == [Axis::Content],
            Self::GreyGrid(grid) => {
                GreyGrid::new(grid.rows, grid.columns, shape).is_ok()
                    && axes.len() == grid.blocks()
                    && axes.iter().all(Axis::is_of_reals)
            }
            Self::Projection(projection) => {
                projection.inputs.len() == scalars
                    && scalars > 0
                    && (1..=MOST_PROJECTIONS).contains(&projection.axes)
                    && axes.len() == projection.axes as usize
                    && projection.inputs.iter().all(|axis| axis.validate().is_ok())
                    && axes.iter().all(Axis::is_of_reals)
            }
        }
    }

    /// How messages and snapshots call output `offset`.
    pub(crate) fn place(&self, name: &str, offset: usize) -> String {
        match self {
            Self::Exact => name.into(),
            Self::GreyGrid(grid) => {
                let columns = grid.columns as usize;
                format!("{name}.grey[{}, {}]", offset / columns, offset % columns)
            }
            Self::Projection(_) => format!("{name}.projection[{offset}]"),
        }
    }
}

/// Means over the blocks of an image, of all its channels and frames.
///
/// The two longest axes of an array are its height and width (the first of equal ones counts as
/// longer); pixel (y, x) belongs to block (y * rows / height, x * columns / width), rounded down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GreyGrid {
    rows: u32,
    columns: u32,
}

/// An image in C order: `outer` of `height` of `between` of `width` of `inner` elements.
struct Dimensions {
    outer: usize,
    height: usize,
    between: usize,
    width: usize,
    inner: usize,
}

impl Dimensions {
    /// `None` where there are not two axes, or no pixels, or more than can be counted.
    fn of(shape: &[usize]) -> Option<Self> {
        shape
            .iter()
            .try_fold(1usize, |size, &length| size.checked_mul(length))
            .filter(|&size| size > 0)?;
        let mut longest: Vec<usize> = (0..shape.len()).collect();
        longest.sort_by_key(|&axis| std::cmp::Reverse(shape[axis]));
        let &[a, b, ..] = longest.as_slice() else {
            return None;
        };
        let (y, x) = (a.min(b), a.max(b));
        let size = |part: &[usize]| part.iter().product();
        Some(Self {
            outer: size(&shape[..y]),
            height: shape[y],
            between: size(&shape[y + 1..x]),
            width: shape[x],
            inner: size(&shape[x + 1..]),
        })
    }
}

impl GreyGrid {
    /// A grid over images of `shape`.
    ///
    /// # Errors
    /// The image has no two axes, or fewer pixels along one than blocks.
    pub fn new(rows: u32, columns: u32, shape: &[usize]) -> Result<Self> {
        let fits = |blocks: u32, pixels: usize| blocks >= 1 && blocks as usize <= pixels;
        match Dimensions::of(shape) {
            Some(image) if fits(rows, image.height) && fits(columns, image.width) => {
                Ok(Self { rows, columns })
            }
            _ => Err(Error::parameter(
                "the grid",
                "of at least one block and at most one a pixel",
                format!("{rows} x {columns} blocks for an array of shape {shape:?}"),
            )),
        }
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.rows as usize * self.columns as usize
    }

    /// The means of the blocks, row by row. `sum` adds up neighbours.
    fn means<T>(&self, shape: &[usize], pixels: &[T], sum: impl Fn(&[T], f64) -> f64) -> Vec<f64> {
        let mut sums = vec![0.0; self.blocks()];
        let Some(image) = Dimensions::of(shape) else {
            return sums;
        };
        let (rows, columns) = (self.rows as usize, self.columns as usize);
        // The first pixel of a block: where i * blocks / pixels first reaches it.
        let edge = |block: usize, pixels: usize, blocks: usize| (block * pixels).div_ceil(blocks);
        let line = image.width * image.inner;
        for (at, pixels) in pixels.chunks_exact(line).enumerate() {
            let y = at / image.between % image.height;
            let row = y * rows / image.height * columns;
            for column in 0..columns {
                let from = edge(column, image.width, columns) * image.inner;
                let to = edge(column + 1, image.width, columns) * image.inner;
                let total = &mut sums[row + column];
                *total = sum(&pixels[from..to], *total);
            }
        }
        for (block, total) in sums.iter_mut().enumerate() {
            let (row, column) = (block / columns, block % columns);
            let height = edge(row + 1, image.height, rows) - edge(row, image.height, rows);
            let width = edge(column + 1, image.width, columns) - edge(column, image.width, columns);
            *total /= (height * width * image.outer * image.between * image.inner) as f64;
        }
        sums
    }

    /// The means of the blocks of an array of bytes.
    #[must_use]
    pub fn means_of_bytes(&self, shape: &[usize], pixels: &[u8]) -> Vec<f64> {
        // Sums of whole numbers below 2^53 are exact in any order.
        self.means(shape, pixels, |part, total| {
            total + part.chunks(1 << 16).map(short_sum).sum::<u64>() as f64
        })
    }

    /// The means of the blocks of an array of numbers, added in C order.
    #[must_use]
    pub fn means_of_reals(&self, shape: &[usize], pixels: &[f64]) -> Vec<f64> {
        self.means(shape, pixels, |part, total| {
            part.iter().fold(total, |total, x| total + x)
        })
    }
}

/// The sum of at most 2^16 bytes, in 32 bits for the sake of wide registers.
fn short_sum(part: &[u8]) -> u64 {
    part.iter().map(|&x| u32::from(x)).sum::<u32>().into()
}

/// Random projection: the place u of each scalar on its own axis, from -1 to 1, enters every output
/// with a random sign, and the sum is divided by the square root of the number of scalars.
///
/// The sign of scalar i in output k is bit k of the splitmix64 hash of (seed, i).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Projection {
    axes: u32,
    seed: u64,
    inputs: Vec<Axis>,
}

impl Projection {
    /// A projection of scalars, whose places `inputs` say, to `axes` outputs.
    ///
    /// # Errors
    /// `axes` outside 1 to 64, or no inputs.
    pub fn new(axes: u32, seed: u64, inputs: Vec<Axis>) -> Result<Self> {
        if inputs.is_empty() {
            return Err(Error::parameter(
                "a random projection",
                "of at least one scalar",
                0,
            ));
        }
        if (1..=MOST_PROJECTIONS).contains(&axes) {
            Ok(Self { axes, seed, inputs })
        } else {
            Err(Error::parameter(
                "axes",
                format!("an integer from 1 to {MOST_PROJECTIONS}"),
                axes,
            ))
        }
    }

    /// The axis that says where each scalar lies.
    #[must_use]
    pub fn inputs(&self) -> &[Axis] {
        &self.inputs
    }

    /// The outputs, and whether a scalar lies outside its range. `values` holds one for each input.
    ///
    /// # Errors
    /// The first scalar that has no place, and why.
    pub fn project(
        &self,
        values: &[f64],
    ) -> std::result::Result<(Vec<f64>, bool), (usize, Unbinnable)> {
        let mut sums = vec![0.0; self.axes as usize];
        let mut flow = false;
        for (i, (&x, axis)) in values.iter().zip(&self.inputs).enumerate() {
            let (place, outside) = axis.place(x).map_err(|why| (i, why))?;
            flow |= outside;
            let u = 2.0 * place - 1.0;
            let signs = splitmix64(self.seed, i as u64);
            for (k, sum) in sums.iter_mut().enumerate() {
                // The sign bit; a product with +-1 without a branch.
                let sign = ((signs >> k) & 1) << 63;
                *sum += f64::from_bits(u.to_bits() ^ sign);
            }
        }
        let scale = (self.inputs.len() as f64).sqrt();
        for sum in &mut sums {
            *sum /= scale;
        }
        Ok((sums, flow))
    }
}

/// Output `index` of the splitmix64 generator (Steele, Lea and Flood 2014) started at `seed`.
fn splitmix64(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_averages_blocks_of_every_channel() {
        // 2 x 3 pixels of 2 channels, in blocks of 2 x 1 and 2 x 2 pixels.
        let pixels = [0, 2, 4, 6, 8, 10, 100, 102, 104, 106, 108, 110];
        let grid = GreyGrid::new(1, 2, &[2, 3, 2]).unwrap();
        let expected = [
            f64::from(2 + 4 + 6 + 100 + 102 + 104 + 106) / 8.0,
            f64::from(8 + 10 + 108 + 110) / 4.0,
        ];
        assert_eq!(grid.means_of_bytes(&[2, 3, 2], &pixels), expected);
        let reals = pixels.map(f64::from);
        assert_eq!(grid.means_of_reals(&[2, 3, 2], &reals), expected);
        // The same image with its channels first.
        let planes = [0, 4, 8, 100, 104, 108, 2, 6, 10, 102, 106, 110];
        let grid = GreyGrid::new(1, 2, &[2, 2, 3]).unwrap();
        assert_eq!(grid.means_of_bytes(&[2, 2, 3], &planes).len(), 2);
    }

    #[test]
    fn a_grid_is_not_finer_than_its_image() {
        assert!(GreyGrid::new(8, 8, &[8, 8]).is_ok());
        for shape in [&[7, 8][..], &[8], &[], &[8, 8, 0], &[usize::MAX, 8, 8]] {
            assert!(GreyGrid::new(8, 8, shape).is_err(), "{shape:?}");
        }
        assert!(GreyGrid::new(0, 8, &[8, 8]).is_err());
    }

    #[test]
    fn splitmix64_is_the_published_one() {
        // The first outputs of the generator started at 1234567.
        assert_eq!(splitmix64(1_234_567, 0), 6_457_827_717_110_365_317);
        assert_eq!(splitmix64(1_234_567, 1), 3_203_168_211_198_807_973);
    }

    #[test]
    fn a_projection_adds_places_with_the_signs_of_the_hash() {
        let inputs = vec![Axis::real(-1.0, 1.0, 10, 1.0, true).unwrap(); 4];
        let projection = Projection::new(2, 7, inputs).unwrap();
        let values = [0.5, -0.25, 1.0, 3.0];
        let (outputs, flow) = projection.project(&values).unwrap();
        assert!(flow);
        for (k, &output) in outputs.iter().enumerate() {
            let sum: f64 = [0.5, -0.25, 1.0, 1.0]
                .iter()
                .zip(0..)
                .map(|(u, i)| {
                    if splitmix64(7, i) >> k & 1 == 1 {
                        -u
                    } else {
                        *u
                    }
                })
                .sum();
            assert_eq!(output, sum / 2.0);
        }
        assert_eq!(
            projection.project(&[0.0, f64::NAN, 0.0, 0.0]),
            Err((1, Unbinnable::NotANumber))
        );
    }
}
