//! Writes the kernel of the engine's own test guest to a file: `bare-guest FILE`. Tests in other languages boot it.

#[allow(dead_code, reason = "tests of the engine use the rest")]
#[path = "../../engine/tests/guest/image.rs"]
mod image;

use std::fs::File;
use std::io::{self, Seek};

fn main() -> io::Result<()> {
    let path = std::env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: bare-guest FILE"))?;
    let mut kernel = image::kernel();
    kernel.rewind()?;
    io::copy(&mut kernel, &mut File::create(path)?).map(drop)
}
