//! Jobs on BPF: loading, pinning, attaching and closing, which wait for the kernel's locks and grace periods.

use crate::bpf::{HeldLink, HeldMap, HeldProgram, add_link, add_map, add_program};
use crate::ring_reader;
use fluxvm_libbpf::{Direction, Filter, Map, Program, XdpMode, attach, attach_xdp, detach_xdp, programs, query_xdp};
use rustix::io::{Errno, Result};
use std::ffi::CStr;

/// A number on the wire.
fn direction(egress: u32) -> Direction {
    if egress == 0 { Direction::Ingress } else { Direction::Egress }
}

/// Makes a map that is in no object.
pub fn create_map(kind: u32, name: &CStr, sizes: [u32; 3], flags: u32) -> Result<u32> {
    let [key_bytes, value_bytes, max_entries] = sizes;
    add_map(Map::create(kind, name, key_bytes, value_bytes, max_entries, flags)?)
}

/// Memory that a map takes.
pub fn map_memory(map: u32) -> Result<u64> {
    HeldMap::by(map)?.memory_bytes()
}

/// The loaded program with this number.
pub fn program_by_id(id: u32) -> Result<u32> {
    add_program(Program::by_id(id)?)
}

/// Attaches by TCX.
pub fn attach_link(program: u32, interface_index: u32, egress: u32, first: u32, revision: u64) -> Result<u32> {
    let program = HeldProgram::by(program)?;
    add_link(attach(&program, interface_index, direction(egress), first != 0, revision)?)
}

/// Number of the link, of its program and its interface, and whether it is the way out.
pub fn link_facts(link: u32) -> Result<[u64; 4]> {
    let facts = HeldLink::by(link)?.facts()?;
    let egress = u32::from(facts.direction == Direction::Egress);
    Ok([facts.id, facts.program_id, facts.interface_index, egress].map(u64::from))
}

/// Puts another program in the place of a link's.
pub fn replace_program(link: u32, program: u32) -> Result<()> {
    HeldLink::by(link)?.replace_program(&*HeldProgram::by(program)?)
}

/// Ends an attachment.
pub fn detach_link(link: u32) -> Result<()> {
    HeldLink::by(link)?.detach()
}

/// Revision of a hook, how many programs are there, the place of this one among them from 1 on, 0 if it is not, and the first.
pub fn tcx_programs(interface_index: u32, egress: u32, program_id: u32) -> Result<[u64; 4]> {
    let found = programs(interface_index, direction(egress))?;
    let position = found.ids.iter().position(|&id| id == program_id).map_or(0, |index| index as u64 + 1);
    Ok([found.revision, found.ids.len() as u64, position, u64::from(found.ids.first().copied().unwrap_or(0))])
}

/// One place for a filter, of numbers on the wire.
pub fn filter(interface_index: u32, egress: u32, priority: u32, handle: u32) -> Filter {
    Filter { interface_index, direction: direction(egress), priority, handle }
}

/// Attaches by a filter; returns the program's number.
pub fn attach_filter(place: Filter, program: u32, replace: u32) -> Result<u32> {
    place.attach(&*HeldProgram::by(program)?, replace != 0)
}

/// Attaches as XDP where there is none.
pub fn attach_as_xdp(program: u32, interface_index: u32, generic: u32) -> Result<()> {
    let mode = if generic == 0 { XdpMode::Native } else { XdpMode::Generic };
    attach_xdp(&*HeldProgram::by(program)?, interface_index, mode)
}

/// Number of the XDP program, 1 in the driver or 2 behind it (0: otherwise or not at all), and whether there is any.
pub fn xdp_facts(interface_index: u32) -> Result<[u64; 3]> {
    let facts = query_xdp(interface_index)?;
    let mode = facts.mode.map_or(0, |mode| if mode == XdpMode::Native { 1 } else { 2 });
    Ok([u64::from(facts.program_id), mode, u64::from(facts.occupied)])
}

/// Removes the XDP program when it is this one.
pub fn remove_xdp(interface_index: u32, program_id: u32) -> Result<bool> {
    detach_xdp(interface_index, program_id)
}

/// Starts a reader of a ring buffer; returns its socket.
pub fn open_ring(map: u32) -> Result<u64> {
    let socket = ring_reader::open(&*HeldMap::by(map)?)?;
    u64::try_from(socket).map_err(|_| Errno::BADF)
}
