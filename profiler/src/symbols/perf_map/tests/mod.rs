//! Whole maps: as written by others, random ones, large ones; and the files they are in.

mod file;
mod index;
mod random;
mod writers;
