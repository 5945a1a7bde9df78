//! Whole maps: written files, random ones, large ones.

mod files;
mod index;
mod random;
