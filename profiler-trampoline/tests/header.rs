//! The header for C is what the sources say, and compilers take it.
//!
//! After a change of `src/ffi/c_api.rs`, make it anew:
//!
//! ```console
//! $ cargo xtask header
//! ```

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{env, fs, path::Path, process::Command};

use libtest_mimic::{Arguments, Completion, Trial};

/// Set, and not empty: the header is written, not compared.
const REFRESH: &str = "PYPROF_REFRESH_HEADER";
const HEADER: &str = "include/pyprof_trampoline.h";

fn main() -> std::process::ExitCode {
    let mut trials = vec![Trial::test("the_header_is_what_the_sources_say", || {
        is_current();
        Ok(())
    })];
    for (compiler, options) in [
        ("cc", &["-std=c99", "-xc"][..]),
        ("cc", &["-std=c17", "-xc"]),
        ("c++", &["-std=c++11", "-xc++"]),
        ("c++", &["-std=c++20", "-xc++"]),
    ] {
        let name = format!("{compiler}_takes_the_header_as{}", options[0]);
        trials.push(Trial::ignorable_test(name, move || {
            Ok(compiles(compiler, options))
        }));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The header, from `src/ffi/c_api.rs` alone: the crate has other functions that are exported, for Python.
fn generated() -> String {
    let config = cbindgen::Config::from_file(package().join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new()
        .with_config(config)
        .with_src(package().join("src/ffi/c_api.rs"))
        .generate()
        .unwrap();
    let mut text = Vec::new();
    bindings.write(&mut text);
    for_c(&String::from_utf8(text).unwrap())
}

/// Rust's headings and quotes are of no use in C, and a macro must not come apart in an expression.
fn for_c(text: &str) -> String {
    let text = text.replace(" * # Safety\n *\n * ", " * ").replace('`', "");
    let line = |line: &str| match line.rsplit_once(" -") {
        Some((start, number)) if start.starts_with("#define ") => format!("{start} (-{number})\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

fn is_current() {
    let file = package().join(HEADER);
    let generated = generated();
    if env::var_os(REFRESH).is_some_and(|value| !value.is_empty()) {
        fs::write(&file, &generated).unwrap();
        return;
    }
    let committed = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        committed == generated,
        "{HEADER} is not what src/ffi/c_api.rs says: run `cargo xtask header`"
    );
}

/// Every warning is an error, and every function is used as C uses it.
fn compiles(compiler: &str, options: &[&str]) -> Completion {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("uses.c");
    fs::write(
        &source,
        "#include \"pyprof_trampoline.h\"\n\
         #include \"pyprof_trampoline.h\"\n\
         int main(void) {\n\
         \tint status = pyprof_perf_map_init();\n\
         \tstatus |= pyprof_perf_map_write_entry(\"\", (size_t)1 << 33, \"name\");\n\
         \tstatus |= pyprof_perf_map_copy_from(\"/tmp/perf-1.map\");\n\
         \tpyprof_perf_map_fini();\n\
         \treturn status == PYPROF_PERF_MAP_OK || status == PYPROF_PERF_MAP_ERROR\n\
         \t\t|| status == PYPROF_PERF_MAP_LOCKED;\n\
         }\n",
    )
    .unwrap();
    let mut command = Command::new(compiler);
    command
        .args(options)
        .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-c", "-o"])
        .arg(folder.path().join("uses.o"))
        .arg("-I")
        .arg(package().join("include"))
        .arg(&source);
    let done = match command.output() {
        Ok(done) => done,
        Err(err) => return Completion::ignored_with(format!("cannot start {compiler}: {err}")),
    };
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    Completion::Completed
}
