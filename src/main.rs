//! The `reach` binary.

fn main() {}
