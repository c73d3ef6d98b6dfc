//! Compiles `proto/` into Rust with `protox`, so that no system `protoc` is needed.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    Ok(())
}
