//! What the browser test needs: chromium, Node.js, and the modules that the test's
//! `package.json` names.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use crate::{
    command::{self, Patience},
    host,
};

/// Where the browser test lies.
const FOLDER: &str = "profiler/tests/browser";
/// Names that the browser goes by.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Installs what is missing; gives the browser. `Ok(None)` when there is no such test.
pub(crate) fn prepare() -> Result<Option<PathBuf>> {
    let folder = host::workspace().join(FOLDER);
    if !folder.join("package.json").is_file() {
        return Ok(None);
    }
    if host::which("npm").is_none() {
        command::apt_install(&["nodejs", "npm"])?;
    }
    if find().is_none() {
        command::apt_install(&["chromium"])?;
    }
    if !folder.join("node_modules").is_dir() {
        eprintln!("Installing the browser test's modules");
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund"]);
        command::run_patiently(npm.current_dir(folder), Patience::seconds(180))?;
    }
    find()
        .context("no browser after its installation")
        .map(Some)
}

/// The browser on `PATH`.
fn find() -> Option<PathBuf> {
    BROWSERS.into_iter().find_map(host::which)
}
