use super::*;
use crate::process::{ProgramChange, ProgramEvent, Target, read_executable_mappings};

#[inline(never)]
fn is_sampled_last(n: u64) -> u64 {
    std::hint::black_box(n).wrapping_mul(5)
}

#[test]
fn what_is_asked_for_last_gets_its_name() {
    let pid = Pid(std::process::id());
    let image = ImageId(1);
    // A profiler does not check itself.
    let (exited, _alive) = std::io::pipe().expect("a pipe");
    let target = Target::made_up(pid, 0, exited.into());
    let mappings = read_executable_mappings(pid).expect("maps").mappings;
    let mut resolver = Resolver::start(SymbolProcess::start()).expect("starts");
    let python = &PythonInfo::unknown();
    let started = ProgramChange::Started {
        target: &target,
        python,
        is_sampled: true,
    };
    let mapped = ProgramChange::Mapped {
        mappings: &mappings,
        python,
        perf_map: None,
    };
    for change in [started, mapped] {
        while !resolver.apply(&ProgramEvent { pid, image, change }) {}
    }
    let at = Avma(is_sampled_last as *const () as u64);
    let stack = UnwoundStack {
        pid,
        image,
        user: vec![UserFrame::Native(CodeAddress::Leaf(at))],
        ..UnwoundStack::empty()
    };
    let mut resolved = ResolvedStack::empty();
    resolver.resolve(&stack, &mut resolved);
    let location = resolved.locations[0];
    // Nothing was handed over yet: the symbol process has not even been started.
    let named = resolver.last_names_of(&[location], Duration::from_mins(1));
    let names = named.frames(LocationId(0));
    assert!(
        names.iter().any(|it| it.name.contains("is_sampled_last")),
        "{names:?}"
    );
}
