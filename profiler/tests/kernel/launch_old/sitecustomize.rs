//! The modules that Python imports at its start: ours, and those of the user.

use std::process::Command;

use super::stage::{Stage, assert_named, said};
use crate::suite::{Python, Verdict, python, skip};

/// Says who it is, and hands on to nobody.
fn customizing(who: &str) -> String {
    format!("import os\nos.environ['CUSTOMIZED'] = os.environ.get('CUSTOMIZED', '') + '{who} '\n")
}

pub(super) fn customized(python: &Python) -> Verdict {
    let stage = Stage::new();
    let file = stage.text("started.py");
    let venv = stage.text("venv");
    let mut make = python.plain();
    let made = make
        .args([
            "-m",
            "venv",
            "--without-pip",
            "--system-site-packages",
            &venv,
        ])
        .status();
    assert!(made.unwrap().success());
    let (major, minor) = python.version;
    let installed = format!("venv/lib/python{major}.{minor}/site-packages/sitecustomize.py");
    let in_venv = format!("{venv}/bin/python");

    // In the environment's packages, and the user's own file behind it. Some distributions have one in the standard
    // library, which comes before these: what counts is that all is as without us.
    stage.write(&installed, &customizing("site"));
    let users = format!("home/lib/python{major}.{minor}/site-packages/usercustomize.py");
    stage.write(&users, &customizing("user"));
    let mut plain = Command::new(&in_venv);
    plain.args([&*file, "0"]).env_remove("PYTHONPATH");
    let without = plain.env("PYTHONUSERBASE", stage.path("home")).output();
    let without = without.unwrap();
    let mut command = stage.command(&[], &[&in_venv, &file, "0.6"]);
    let (output, recording) = stage.run(command.env("PYTHONUSERBASE", stage.path("home")));
    assert_named(&recording, &["<module>"], "in site-packages");
    assert!(said(&output, "customized by")[0].ends_with("user"));
    for words in ["customized by", "sitecustomize from"] {
        assert_eq!(said(&output, words), said(&without, words));
    }

    // In PYTHONPATH, which comes first.
    let own = stage.write("own/sitecustomize.py", &customizing("own"));
    let mut command = stage.command(&[], &[&in_venv, &file, "0.6"]);
    let (output, recording) = stage.run(command.env("PYTHONPATH", stage.path("own")));
    assert_named(&recording, &["<module>"], "in PYTHONPATH");
    assert_eq!(said(&output, "customized by"), ["own"]);
    assert_eq!(said(&output, "sitecustomize from"), [own.to_str().unwrap()]);
    assert_eq!(said(&output, "path clean:"), ["True"]);

    // One that puts its own folder first, as other launchers do, and calls the next: each runs once.
    let chain = "\nimport sys\nhere = sys.path.index(os.path.dirname(__file__))\nours = sys.modules.pop('sitecustomize')\n\
                 folder = sys.path.pop(here)\nimport sitecustomize\nsys.path.insert(here, folder)\n";
    stage.write("chain/sitecustomize.py", &(customizing("chain") + chain));
    let chain = stage.text("chain");
    let line = format!("PYTHONPATH='{chain}':\"$PYTHONPATH\" exec '{in_venv}' '{file}' 0.6");
    let mut command = stage.command(&[], &["sh", "-c", &line]);
    let (output, recording) = stage.run(command.env("PYTHONPATH", stage.path("own")));
    assert_named(&recording, &["<module>"], "behind another launcher");
    assert_eq!(said(&output, "customized by"), ["chain own"]);
    Ok(())
}

pub(super) fn customized_wrongly(python: &Python) -> Verdict {
    let stage = Stage::new();
    let (path, file) = (python.path.to_str().unwrap(), stage.text("started.py"));
    for (code, complaint) in [
        ("1 / 0", "ZeroDivisionError"),
        ("import no_such_module_here", "no_such_module_here"),
    ] {
        stage.write("own/sitecustomize.py", code);
        let mut command = stage.command(&[], &[path, &file, "0.6"]);
        let (_, recording) = stage.run(command.env("PYTHONPATH", stage.path("own")));
        assert_named(&recording, &["<module>"], code);
        let complaints = recording.report.matches(complaint).count();
        assert_eq!(complaints, 1, "{}", recording.report);
    }
    Ok(())
}

/// CPython 2.7 to 3.8, and PyPy.
pub(super) fn other_pythons(_: &Python) -> Verdict {
    let others = python::without_trampolines();
    if others.is_empty() {
        return skip("there is no Python that cannot have trampolines");
    }
    let stage = Stage::new();
    let own = stage.write("own/sitecustomize.py", &customizing("own"));
    for path in others {
        for users in ["", own.parent().unwrap().to_str().unwrap()] {
            // Through a shell, or its version would be known.
            let line = format!(
                "exec '{}' '{}' 0.3",
                path.display(),
                stage.text("started.py")
            );
            let mut command = stage.command(&[], &["sh", "-c", &line]);
            let (output, recording) = stage.run(command.env("PYTHONPATH", users));
            let what = path.display();
            assert_eq!(
                output.status.code(),
                Some(0),
                "{what}: {}",
                recording.report
            );
            assert_eq!(said(&output, "path clean:"), ["True"], "{what}");
            let customized = if users.is_empty() { "nobody" } else { "own" };
            assert_eq!(said(&output, "customized by"), [customized], "{what}");
            assert!(
                !recording.report.contains("sitecustomize"),
                "{}",
                recording.report
            );
        }
    }
    Ok(())
}
