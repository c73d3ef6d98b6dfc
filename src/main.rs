//! The `reach` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    agent_reach::cli::main(&agent_reach::app::Root)
}
