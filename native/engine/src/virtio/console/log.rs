//! A file that keeps the latest part of an endless text.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A log that never gets longer than its bound: when it is full, its older half goes.
pub struct LogFile {
    file: File,
    bytes: u64,
    bytes_max: u64,
}

/// Less would not hold a single message.
const BYTES_MIN: u64 = 4096;

impl LogFile {
    /// Goes on at the end of a file, which should be opened for reading and writing and not for appending.
    ///
    /// # Errors
    /// When the file cannot be asked for its size.
    pub fn new(file: File, bytes_max: u64) -> io::Result<Self> {
        let bytes = file.metadata()?.len();
        Ok(Self { file, bytes, bytes_max: bytes_max.max(BYTES_MIN) })
    }

    /// Adds text; of more than half of the bound only the end.
    ///
    /// # Errors
    /// When the host refuses. The text is then missing.
    pub fn append(&mut self, text: &[u8]) -> io::Result<()> {
        let half = (self.bytes_max / 2) as usize;
        let text = &text[text.len().saturating_sub(half)..];
        if self.bytes + text.len() as u64 > self.bytes_max {
            self.drop_older_half(half as u64)?;
        }
        self.file.write_all_at(text, self.bytes)?;
        self.bytes += text.len() as u64;
        Ok(())
    }

    fn drop_older_half(&mut self, half: u64) -> io::Result<()> {
        let kept = self.bytes.min(half);
        let mut latest = vec![0; kept as usize];
        self.file.read_exact_at(&mut latest, self.bytes - kept)?;
        self.file.write_all_at(&latest, 0)?;
        self.file.set_len(kept)?;
        self.bytes = kept;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; file.metadata().expect("its size").len() as usize];
        file.read_exact_at(&mut bytes, 0).expect("read");
        bytes
    }

    #[test]
    fn it_never_outgrows_its_bound_and_ends_with_the_latest() {
        let file = tempfile::tempfile().expect("a file");
        let mut log = LogFile::new(file.try_clone().expect("its twin"), 5000).expect("a log");
        let mut all = Vec::new();
        for number in 0..1000 {
            let line = format!("line {number}\n");
            log.append(line.as_bytes()).expect("written");
            all.extend_from_slice(line.as_bytes());
            let kept = content(&file);
            assert!(kept.len() <= 5000 && all.ends_with(&kept));
        }
        assert!(content(&file).len() >= 2500);
        log.append(&vec![7; 100_000]).expect("written");
        assert!(content(&file).len() <= 5000);
        assert_eq!(content(&file).last(), Some(&7));
    }

    #[test]
    fn it_goes_on_in_a_file_that_has_text() {
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(b"before ", 0).expect("written");
        let mut log = LogFile::new(file.try_clone().expect("its twin"), 4096).expect("a log");
        log.append(b"after").expect("written");
        assert_eq!(content(&file), b"before after");
    }
}
