//! A `/tmp` of its own for a program that a test starts in a mount namespace.

/// A shell function, `empty_tmp [OPTIONS]`: mounts an empty file system on `/tmp` with these options of tmpfs. This
/// repository and what is built of it stay where they are, should they be below `/tmp` themselves.
pub(crate) const EMPTY_TMP: &str = concat!(
    "
empty_tmp() {
    repository=$(cd '",
    env!("CARGO_MANIFEST_DIR"),
    "/..' && pwd -P) && built=$(cd '",
    env!("CARGO_TARGET_TMPDIR"),
    "/..' && pwd -P) || return
    exec 8<\"$repository\" 9<\"$built\" || return
    mount -t tmpfs -o \"mode=1777${1:+,$1}\" none /tmp || return
    for folder in \"8$repository\" \"9$built\"; do
        case ${folder#?} in
        /tmp/*)
            mkdir -p \"${folder#?}\" &&
                mount --no-canonicalize --bind \"/proc/self/fd/${folder%%/*}\" \"${folder#?}\" || return ;;
        esac
    done
    exec 8<&- 9<&-
}
"
);
