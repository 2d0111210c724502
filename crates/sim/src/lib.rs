//! Engines in virtual time (DESIGN.md §8): what stands around one when its driver holds the clock.
#![allow(unsafe_code)] // copies to and from shared rings; each block says why it holds

pub mod model;
