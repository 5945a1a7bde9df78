//! Whole maps: written files, random ones, large ones.

mod file;
mod files;
mod index;
mod random;
