//! Python arrays through the built-in encoders.

use pyo3::prelude::*;

use super::arrays::{self, Sink};
use super::content;
use crate::encoder::{Encoder, GreyGrid};
use crate::error::{Error, Result};
use crate::layout::Leaf;

/// Gives what the encoder of `leaf` makes of `value` to `sink`.
pub(super) fn encode(
    value: &Bound<'_, PyAny>,
    leaf: &Leaf,
    encoder: &Encoder,
    sink: &mut impl Sink,
) -> PyResult<()> {
    match encoder {
        Encoder::Exact => sink.content(content::of_array(value, leaf)?.hash())?,
        Encoder::GreyGrid(grid) => {
            let mut means = Means {
                grid,
                numbers: Numbers::of(leaf),
                of_bytes: None,
            };
            arrays::read(value, leaf, &mut means)?;
            let means = means
                .of_bytes
                .unwrap_or_else(|| grid.means_of_reals(leaf.shape(), &means.numbers.values));
            means.into_iter().try_for_each(|x| sink.real(x))?;
        }
        Encoder::Projection(projection) => {
            let mut numbers = Numbers::of(leaf);
            numbers.values.reserve(leaf.scalars());
            arrays::read(value, leaf, &mut numbers)?;
            let (outputs, flow) = projection
                .project(&numbers.values)
                .map_err(|(i, why)| leaf.error(i, why))?;
            if flow {
                sink.mark_flow();
            }
            outputs.into_iter().try_for_each(|x| sink.real(x))?;
        }
    }
    Ok(())
}

/// The scalars of an array as float64.
struct Numbers<'a> {
    leaf: &'a Leaf,
    values: Vec<f64>,
}

impl<'a> Numbers<'a> {
    fn of(leaf: &'a Leaf) -> Self {
        Self {
            leaf,
            values: Vec::new(),
        }
    }
}

impl Sink for Numbers<'_> {
    #[inline]
    fn real(&mut self, x: f64) -> Result<()> {
        if x.is_nan() {
            let place = self.leaf.scalar_place(self.values.len());
            return Err(Error::NotANumber { place });
        }
        self.values.push(x);
        Ok(())
    }

    #[inline]
    fn integer(&mut self, x: i128) -> Result<()> {
        self.values.push(x as f64);
        Ok(())
    }

    fn content(&mut self, _hash: u128) -> Result<()> {
        let place = self.leaf.name().to_owned();
        Err(Error::Ordered { place })
    }
}

/// The means of a grid, at once where the pixels are bytes.
struct Means<'a> {
    grid: &'a GreyGrid,
    numbers: Numbers<'a>,
    of_bytes: Option<Vec<f64>>,
}

impl Sink for Means<'_> {
    fn real(&mut self, x: f64) -> Result<()> {
        self.numbers.real(x)
    }

    fn integer(&mut self, x: i128) -> Result<()> {
        self.numbers.integer(x)
    }

    fn content(&mut self, hash: u128) -> Result<()> {
        self.numbers.content(hash)
    }

    fn bytes(&mut self, scalars: &[u8]) -> Result<()> {
        let shape = self.numbers.leaf.shape();
        self.of_bytes = Some(self.grid.means_of_bytes(shape, scalars));
        Ok(())
    }
}
