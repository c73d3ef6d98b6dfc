//! `reach token`: makes access tokens.

use crate::cli::out::say;
use crate::cli::{Common, Exit, Failure, Out};
use crate::config::auth::{hash, new_token};
use clap::Subcommand;
use serde_json::json;

/// Makes access tokens.
#[derive(Subcommand, Debug)]
pub enum TokenCommand {
    /// Prints a new random token and the hash to write into the configuration.
    New,
}

impl TokenCommand {
    pub(super) fn run(&self, common: &Common, out: &Out) -> Result<Exit, Failure> {
        let Self::New = self;
        let token = new_token().map_err(Failure::words)?;
        let hash = hex::encode(hash(&token));
        if common.json {
            out.json(&json!({"token": token, "sha256": hash}))?;
        } else {
            out.line(&format!("token   {token}\nsha256  {hash}"))?;
            say(
                "The token is shown this once. Write its hash into the configuration:\n\n  [[auth.tokens]]\n  sha256 = \"…\"\n  caller = \"a name\"\n  namespaces = [\"orders\"]\n  scopes = []",
            );
        }
        Ok(Exit::Ok)
    }
}
