//! TODO
pub(crate) fn run(_: &[&str]) -> anyhow::Result<()> {
    Ok(())
}
