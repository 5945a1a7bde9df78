//! The edges: C callers of the writer, and the interpreter that this library is loaded into.
//!
//! `c_api` is the writer for C. `interpreter` finds the functions of CPython that are needed, `evaluator` puts
//! trampolines under it, `module` is the extension module `_native`. `fork` tells the rest when a child begins.

pub mod c_api;
mod evaluator;
mod fork;
mod interpreter;
mod module;

pub(crate) use fork::watch as watch_forks;
