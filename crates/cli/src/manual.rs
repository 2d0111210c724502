//! Manual pages and completions, from the one definition of the command line.

use std::path::Path;

use clap::CommandFactory;

use crate::arguments::Arguments;
use crate::failure::{Failure, plain};
use crate::output;

/// Writes `scoutline.1`, `scoutline-up.1`, ….
pub(crate) fn man(dir: &Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::failed(format!("cannot write manual pages to {}: {}", dir.display(), plain(&error)))
    };
    std::fs::create_dir_all(dir).map_err(failed)?;
    clap_mangen::generate_to(Arguments::command(), dir).map_err(failed)
}

/// Prints a completion script.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "scoutline", &mut text);
    output::print(&String::from_utf8_lossy(&text))
}

#[cfg(test)]
mod tests {
    use super::{Arguments, CommandFactory};

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }
}
