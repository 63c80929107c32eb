//! Manifests: what a set of trees holds, with a SHA-256 of every regular file, as whole listings or as the
//! difference from a listing the host already has.

mod cache;
mod listing;
mod piece;
mod walk;
mod writers;

use crate::root::{Root, starting_points};
use cache::Cache;
use listing::{Listing, Listings};
use serde_bytes::ByteBuf;
use std::io::Write;
use std::sync::atomic::AtomicBool;
use wire::request::{ManifestRequest, ManifestSummary};
use wire::{ErrorCode, Fault};

/// What the last walk had to do, for measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkReport {
    /// Regular files whose content was read.
    pub hashed: u64,
    /// Regular files whose fingerprint was known.
    pub known: u64,
}

/// Computes manifests of one root and remembers fingerprints and recent listings between calls.
#[derive(Debug)]
pub struct Manifests {
    root: Root,
    threads: usize,
    cache: Cache,
    listings: Listings,
    report: WalkReport,
}

impl Manifests {
    /// `threads`: how many walk and hash at a time, the caller's own included.
    pub fn new(root: Root, threads: usize) -> Self {
        let threads = threads.max(1);
        Self { root, threads, cache: Cache::default(), listings: Listings::default(), report: WalkReport::default() }
    }

    /// As many threads as there are processors to run on, within reason.
    pub fn threads_default() -> usize {
        std::thread::available_parallelism().map_or(1, |count| count.get().min(16))
    }

    /// Walks the paths of `request` and writes the listing, or the delta against `request.base` when that is still
    /// held, to `out`. Nothing is written unless the walk was complete. Setting `cancel` ends the walk soon.
    /// Errors: `WALK_FAILED`, `LIMIT`, `NOT_FOUND`, `NOT_DIRECTORY`, `SYMLINK`, `DENIED`, `BAD_ARGUMENT`, `CANCELLED`.
    pub fn run(
        &mut self,
        request: &ManifestRequest,
        cancel: &AtomicBool,
        out: &mut impl Write,
    ) -> Result<ManifestSummary, Fault> {
        let starts = starting_points(request)?;
        let limits = walk::Limits { files_max: request.files_max, listing_max: request.listing_max };
        let walked = walk::walk(&self.root, &starts, &self.cache, limits, self.threads, cancel)?;
        self.report = walked.report;
        let listing = Listing::assemble(walked.starts, walked.pieces, request.listing_max)?;
        let (answer, summary) = self.listings.answer(listing, starts, request.base.as_deref().map(Vec::as_slice))?;
        let written = out.write_all(answer);
        // The reader is still busy with the last of the listing.
        self.cache.learn(walked.learned, walked.generation);
        written.map_err(|_| Fault::new(ErrorCode::Cancelled, "nobody reads the listing"))?;
        Ok(ManifestSummary {
            digest: ByteBuf::from(summary.digest),
            entries: summary.entries,
            files: summary.files,
            delta: summary.delta,
            mode: "sha256".into(),
            unchanged: summary.unchanged,
        })
    }

    /// What the last successful walk had to do.
    pub fn report(&self) -> WalkReport {
        self.report
    }
}
