//! Laws of the public API.
