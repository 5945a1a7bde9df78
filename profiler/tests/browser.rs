//! A flame graph in a real browser: see `browser/flamegraph.mjs` for what is tried.
//!
//! Needs node, Chromium (`CHROMIUM`, default `/usr/bin/chromium`) and `npm install` in `tests/browser`; without them it
//! says so and passes, unless `PYPROF_BPF_REQUIRE_BROWSER` is set. The picture and a screenshot of it stay in the
//! target directory's `tmp`.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    reason = "a test says what it skips, and what the browser said"
)]

use std::{env, fs, path::Path, process::Command};

use pyprof_bpf::{
    model::{
        Frame, FrameKind, ImageId, KtimeNs, Location, LocationId, LocationTable, Pid, ResolveMiss,
        ResolvedStack, StackEnd, ThreadName, Tid,
    },
    output::{Format, OutputOptions, write},
    profile::{Aggregator, Profile, View},
};

/// Stacks of a small web service: `kind:name:where`, outermost first, then the samples.
const STACKS: &[(&str, u64)] = &[
    (
        "m p:handle d:Router.dispatch v:orders p:load_orders n:sqlite3_step:libsqlite3.so.0 k:ext4_file_read_iter",
        143,
    ),
    (
        "m p:handle d:Router.dispatch v:orders p:load_orders n:sqlite3_step:libsqlite3.so.0",
        412,
    ),
    (
        "m p:handle d:Router.dispatch v:orders p:price_all p:Price.total p:Price.round",
        388,
    ),
    (
        "m p:handle d:Router.dispatch v:orders p:price_all p:Price.total",
        201,
    ),
    ("m p:handle d:Router.dispatch v:orders p:price_all", 96),
    (
        "m p:handle d:Router.dispatch v:orders j:dumps j:JSONEncoder.iterencode n:c_make_encoder:_json.so",
        187,
    ),
    (
        "m p:handle d:Router.dispatch v:report l:fit l:step n:dgemm_kernel_HASWELL:libopenblas.so.0",
        655,
    ),
    (
        "m p:handle d:Router.dispatch v:report l:fit l:step u:libopenblas.so.0+0x1f2c40:libopenblas.so.0",
        118,
    ),
    (
        "m p:handle d:Router.dispatch v:report l:fit t:kernel_7",
        152,
    ),
    (
        "m p:handle d:Router.dispatch v:report l:fit l:fib l:fib l:fib l:fib",
        89,
    ),
    ("m p:handle d:Router.dispatch v:report l:Worker.run", 75),
    ("m p:handle d:Router.dispatch v:orders p:Worker.run", 48),
    (
        "m p:handle p:write_log n:__GI___libc_write:libc.so.6 k:ksys_write k:vfs_write",
        131,
    ),
    (
        "n:start_thread:libc.so.6 n:blas_thread_server:libopenblas.so.0 n:dgemm_kernel_HASWELL:libopenblas.so.0",
        240,
    ),
    ("? d:Router.dispatch v:report l:deep l:deep l:deep", 35),
];

fn frame(text: &str) -> Frame {
    let mut parts = text.splitn(3, ':');
    let (kind, name, place) = (
        parts.next().unwrap_or(""),
        parts.next().unwrap_or(""),
        parts.next(),
    );
    let (kind, file) = match kind {
        "m" => {
            return Frame {
                name: "<module>".into(),
                ..frame("p:")
            };
        }
        "p" => (FrameKind::Python, Some("/srv/shop/app/service.py")),
        "v" => (FrameKind::Python, Some("/srv/shop/app/views.py")),
        "l" => (FrameKind::Python, Some("/srv/shop/lib/forecast.py")),
        "d" => (
            FrameKind::Python,
            Some("/srv/shop/.venv/lib/python3.12/site-packages/routing/router.py"),
        ),
        "j" => (
            FrameKind::Python,
            Some("/usr/lib/python3.12/json/encoder.py"),
        ),
        "i" => (FrameKind::Interpreter, None),
        "k" => (FrameKind::Kernel, None),
        "t" => (FrameKind::Jit, None),
        _ => (FrameKind::Native, None),
    };
    Frame {
        kind,
        name: name.into(),
        file: file.map(Into::into),
        line: None,
        first_line: None,
        module: place.map(Into::into),
        miss: text.starts_with('u').then_some(ResolveMiss::NoSymbol),
    }
}

fn profile() -> Profile {
    let mut aggregator = Aggregator::new(false);
    let mut table = LocationTable::default();
    for (stack, count) in STACKS {
        let mut frames: Vec<Frame> = Vec::new();
        for frame in stack.split(' ').filter(|frame| *frame != "?").map(frame) {
            if frame.kind == FrameKind::Python {
                let eval = self::frame("i:_PyEval_EvalFrameDefault:libpython3.12.so.1.0");
                frames.push(eval);
            }
            frames.push(frame);
        }
        let sample = ResolvedStack {
            image: ImageId(1),
            ktime: KtimeNs(0),
            pid: Pid(4242),
            tid: Tid(4242),
            thread_name: ThreadName::default(),
            in_kernel: stack.contains("k:"),
            guessed: false,
            end: if stack.starts_with('?') {
                StackEnd::DepthLimit
            } else {
                StackEnd::Root
            },
            locations: frames
                .into_iter()
                .rev()
                .map(|frame| {
                    table.locations.push(Location {
                        frames: vec![frame],
                    });
                    LocationId(table.locations.len() as u32 - 1)
                })
                .collect(),
        };
        for _ in 0..*count {
            aggregator.add(&sample);
        }
    }
    aggregator.finish(table)
}

#[test]
fn a_person_can_use_the_flame_graph_of_each_view() {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser");
    let browser = env::var_os("CHROMIUM").unwrap_or_else(|| "/usr/bin/chromium".into());
    let missing = [scripts.join("node_modules/playwright-core"), browser.into()]
        .into_iter()
        .find(|path| !path.exists());
    let profile = profile();
    for view in [View::Python, View::Mixed, View::Native] {
        let options = OutputOptions {
            view,
            title: "python -m shop.service --port 8000 (pid 4242)".to_owned(),
            subtitle: "2,970 samples at 99 Hz (cpu-clock), 98.82 % complete".to_owned(),
            ..OutputOptions::default()
        };
        let mut svg = Vec::new();
        write(&profile, Format::Svg, &options, &mut svg).expect("a picture");
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("flamegraph-{view}.svg"));
        fs::write(&path, svg).expect("the target directory can be written to");
        if let Some(missing) = &missing {
            println!(
                "skipped: {} is not there; see tests/browser.rs",
                missing.display()
            );
            assert!(
                env::var_os("PYPROF_BPF_REQUIRE_BROWSER").is_none(),
                "the browser test is required"
            );
            continue;
        }
        let node = Command::new("node")
            .arg(scripts.join("flamegraph.mjs"))
            .arg(&path)
            .arg(path.with_extension("png"))
            .output()
            .expect("node starts");
        let said = [node.stdout, node.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .concat();
        println!("{view}:\n{said}");
        assert!(node.status.success(), "{view}:\n{said}");
    }
}
