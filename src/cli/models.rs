//! `reach models`: the arguments; what they do is `app`.

use clap::Subcommand;
use std::path::PathBuf;

/// Shows, fetches and checks embedding models.
#[derive(Subcommand, Debug)]
pub enum ModelsCommand {
    /// Lists the catalogue, and what of it is on this machine.
    List,
    /// Fetches a model.
    Pull {
        /// Name in the catalogue, such as bge-small-zh-v1.5; several may be given.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Takes a model from files that were brought by hand.
    Import {
        /// Folder or archive with the model's files.
        #[arg(value_name = "PATH")]
        path: PathBuf,
        /// Name in the catalogue; told by the files when left out.
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
    },
    /// Checks the files on this machine against their checksums.
    Verify {
        /// Names; all that are here when left out.
        #[arg(value_name = "NAME")]
        names: Vec<String>,
    },
}
