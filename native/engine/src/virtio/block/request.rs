//! What a chain asks of a disk, checked: nothing else of the device looks at the bytes of a driver.

use super::space::{DISCARD_SECTORS_MAX, RANGES_MAX, ZERO_SECTORS_MAX};
use crate::virtio::disk::SECTOR_BYTES;
use crate::virtio::{Chain, GuestRam, QueueError};

const HEADER_BYTES: u64 = 16;
const STATUS_BYTES: u64 = 1;
const RANGE_BYTES: u64 = 16;
const RANGE_UNMAP: u32 = 1;
/// The most that one request moves.
const REQUEST_BYTES_MAX: u64 = 32 << 20;

const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 4;
const IDENTIFY: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

/// The answer to a request, as the driver reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Status {
    Ok = 0,
    Failed = 1,
    Unsupported = 2,
}

/// A part of the disk, in bytes; it lies on the disk and is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Into the writable buffers.
    Read(Range),
    /// From the readable buffers, behind the header.
    Write(Range),
    Flush,
    Identify,
    /// Ranges that shall read as zeros; true where their room may go.
    Zero(Vec<(Range, bool)>),
    /// Nothing: the driver asked for what is not on this disk, or not known.
    Refuse(Status),
}

/// Where the data of a request to write begins in its readable buffers.
pub(super) const DATA_OFFSET: u64 = HEADER_BYTES;

/// Reads a chain for a disk of `disk_bytes`.
///
/// # Errors
/// When the chain has no room for header and status, so that it cannot even be refused.
pub(super) fn parse(chain: &Chain, memory: &GuestRam, disk_bytes: u64, read_only: bool) -> Result<Request, QueueError> {
    let mut header = [0; HEADER_BYTES as usize];
    chain.read(memory, 0, &mut header)?;
    if chain.writable_bytes() < STATUS_BYTES {
        return Err(QueueError::Chain);
    }
    let [kind, _reserved, low, high] = words(&header);
    let sector = u64::from(low) | u64::from(high) << 32;
    let data_out = chain.readable_bytes() - HEADER_BYTES;
    let data_in = chain.writable_bytes() - STATUS_BYTES;
    let failed = Request::Refuse(Status::Failed);
    let request = match kind {
        READ => range(sector, data_in, disk_bytes).map_or(failed, Request::Read),
        WRITE | DISCARD | WRITE_ZEROES if read_only => failed,
        WRITE => range(sector, data_out, disk_bytes).map_or(failed, Request::Write),
        FLUSH => Request::Flush,
        IDENTIFY => Request::Identify,
        DISCARD => ranges(chain, memory, data_out, disk_bytes, DISCARD_SECTORS_MAX, 0)?,
        WRITE_ZEROES => ranges(chain, memory, data_out, disk_bytes, ZERO_SECTORS_MAX, RANGE_UNMAP)?,
        _ => Request::Refuse(Status::Unsupported),
    };
    Ok(request)
}

fn range(sector: u64, bytes: u64, disk_bytes: u64) -> Option<Range> {
    let offset = sector.checked_mul(SECTOR_BYTES)?;
    let end = offset.checked_add(bytes)?;
    let fits = bytes > 0 && bytes.is_multiple_of(SECTOR_BYTES) && bytes <= REQUEST_BYTES_MAX && end <= disk_bytes;
    fits.then_some(Range { offset, bytes })
}

fn ranges(
    chain: &Chain,
    memory: &GuestRam,
    bytes: u64,
    disk_bytes: u64,
    sectors_max: u32,
    flags_known: u32,
) -> Result<Request, QueueError> {
    if bytes == 0 || !bytes.is_multiple_of(RANGE_BYTES) || bytes / RANGE_BYTES > RANGES_MAX {
        return Ok(Request::Refuse(Status::Failed));
    }
    let mut found = Vec::new();
    for place in 0..bytes / RANGE_BYTES {
        let mut entry = [0; RANGE_BYTES as usize];
        chain.read(memory, HEADER_BYTES + place * RANGE_BYTES, &mut entry)?;
        let [low, high, sectors, flags] = words(&entry);
        if flags & !flags_known != 0 {
            return Ok(Request::Refuse(Status::Unsupported));
        }
        let offset = (u64::from(low) | u64::from(high) << 32).checked_mul(SECTOR_BYTES);
        let bytes = u64::from(sectors) * SECTOR_BYTES;
        let end = offset.and_then(|offset| offset.checked_add(bytes));
        match (offset, end) {
            (Some(offset), Some(end)) if sectors > 0 && sectors <= sectors_max && end <= disk_bytes => {
                // What is discarded may go; zeros keep their room unless the driver says otherwise.
                let unmap = flags_known == 0 || flags & RANGE_UNMAP != 0;
                found.push((Range { offset, bytes }, unmap));
            }
            _ => return Ok(Request::Refuse(Status::Failed)),
        }
    }
    Ok(Request::Zero(found))
}

fn words(bytes: &[u8; 16]) -> [u32; 4] {
    let (words, _) = bytes.as_chunks::<4>();
    std::array::from_fn(|place| u32::from_le_bytes(words[place]))
}
