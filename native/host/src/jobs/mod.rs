//! What each job does, one file per noun. A job runs on a native thread and may wait in the kernel as long as it must.

mod bpf;
mod btrfs;
mod files;
mod kvm;
mod mounts;
mod network;
mod tree;
mod tree_copy;
mod tree_measure;
mod tree_remove;
#[cfg(test)]
mod tree_tests;
mod vsock;

use crate::bpf::{close, load_object, open_pin, pin_at};
use crate::layout::{Job, Values};
use fluxvm_libbpf::{can_load, has_tcx};
use fluxvm_sys::grace::wait_for_readers;
use rustix::io::Result;
use std::thread::sleep;
use std::time::Duration;

/// Runs one job to its end.
pub fn run(job: Job) -> Result<Values> {
    match job {
        Job::Sleep { milliseconds } => {
            sleep(Duration::from_millis(u64::from(milliseconds)));
            Ok(values([]))
        }
        Job::FileLock { path } => Ok(values([u64::from(files::lock(&path)?)])),
        Job::HandleClose { handle } => files::close_handle(handle).map(|()| values([])),
        Job::FileClone { source, target, mode } => files::clone(&source, &target, mode).map(|()| values([])),
        Job::FileSync { path, whole_file_system } => files::sync(&path, whole_file_system != 0).map(|()| values([])),
        Job::FileAllocate { path, bytes } => files::allocate(&path, bytes).map(|()| values([])),
        Job::FileSystemFacts { path } => files::file_system_facts(&path).map(values),
        Job::DirectoryRemove { path, timeout_ms } => {
            files::remove_directory(&path, Duration::from_millis(u64::from(timeout_ms))).map(|()| values([]))
        }
        Job::Mount { source, target, r#type, options, flags } => {
            mounts::mount(&source, &target, &r#type, &options, flags).map(|()| values([]))
        }
        Job::MountImage { image, target, r#type, options, flags } => {
            Ok(values([u64::from(mounts::mount_image(&image, &target, &r#type, &options, flags)?)]))
        }
        Job::Unmount { target, detach } => mounts::unmount(&target, detach != 0).map(|()| values([])),
        Job::BtrfsIdentity { path } => btrfs::identity(&path).map(values),
        Job::BtrfsEnableQuota { path } => Ok(values([u64::from(btrfs::enable_quota(&path)?)])),
        Job::BtrfsCreate { parent, name, limit_bytes, simple_quota, mode, uid, gid } => {
            let terms = btrfs::Terms { limit_bytes, simple_quota: simple_quota != 0, mode, uid, gid };
            Ok(values([btrfs::create(&parent, &name, terms)?]))
        }
        Job::BtrfsClone { source, parent, name, limit_bytes, simple_quota, mode, uid, gid } => {
            let terms = btrfs::Terms { limit_bytes, simple_quota: simple_quota != 0, mode, uid, gid };
            Ok(values([btrfs::clone(&source, &parent, &name, terms)?]))
        }
        Job::BtrfsDelete { parent, name } => Ok(values([btrfs::delete(&parent, &name)?])),
        Job::BtrfsSweep { path } => btrfs::sweep(&path).map(values),
        Job::TreeCopy { source, target, bytes_max, entries_max } => {
            let copied = tree_copy::copy(&source, &target, bytes_max, entries_max)?;
            Ok(values([copied.bytes, u64::from(copied.entries), u64::from(copied.skipped)]))
        }
        Job::TreeRemove { path } => Ok(values([u64::from(tree_remove::remove(&path)?)])),
        Job::KvmMeasure { instructions } => Ok(values([kvm::measure(instructions)?])),
        Job::VsockCidProbe { cid } => Ok(values([u64::from(vsock::cid_is_free(cid)?)])),
        Job::WayMake {
            namespace,
            link,
            inner,
            bridge,
            tap,
            label,
            group,
            host_address,
            inner_address,
            guest_address,
            bridge_address,
            prefix_length,
            owner,
            queues,
        } => {
            let way = network::Way {
                namespace,
                link,
                inner,
                bridge,
                tap,
                label,
                group,
                host_address,
                inner_address,
                guest_address,
                bridge_address,
                prefix_length,
                owner,
                queues,
            };
            Ok(values([u64::from(network::make(way)?)]))
        }
        Job::WayRemove { namespace, link, label, group } => {
            Ok(values([network::remove(&namespace, &link, &label, group)?]))
        }
        Job::LinkRaise { link, label } => network::raise(&link, &label).map(|()| values([])),
        Job::LinkFacts { link, label } => network::facts(&link, &label).map(values),
        Job::LinkGroup { link, group } => network::set_group(&link, group).map(|()| values([])),
        Job::TapMake { link, label, group, bridge, owner, queues } => {
            let new = network::Beside { link, label, group, lower: bridge };
            Ok(values([u64::from(network::make_tap(&new, owner, queues)?)]))
        }
        Job::MacvtapMake { link, label, group, lower, mac } => {
            let new = network::Beside { link, label, group, lower };
            Ok(values([u64::from(network::make_macvtap(&new, mac)?)]))
        }
        Job::TapOpen { namespace, link, multiqueue } => {
            Ok(values([u64::from(network::open_tap(&namespace, &link, multiqueue != 0)?.cast_unsigned())]))
        }
        Job::AddressProbe { address } => Ok(values([u64::from(network::has_address(address)?)])),
        Job::BpfObjectLoad { object } => Ok(values([u64::from(load_object(object)?)])),
        Job::BpfClose { handle } => close(handle).map(|()| values([])),
        Job::BpfPin { handle, path } => pin_at(handle, &path).map(|()| values([])),
        Job::BpfPinOpen { path } => open_pin(&path).map(|(handle, kind)| values([handle, kind].map(u64::from))),
        Job::BpfMapCreate { name, kind, key_bytes, value_bytes, max_entries, flags } => {
            let sizes = [key_bytes, value_bytes, max_entries];
            Ok(values([u64::from(bpf::create_map(kind, &name, sizes, flags)?)]))
        }
        Job::BpfMapMemory { map } => Ok(values([bpf::map_memory(map)?])),
        Job::BpfProgramById { id } => Ok(values([u64::from(bpf::program_by_id(id)?)])),
        Job::BpfLinkAttach { program, interface_index, egress, first, revision } => {
            Ok(values([u64::from(bpf::attach_link(program, interface_index, egress, first, revision)?)]))
        }
        Job::BpfLinkFacts { link } => bpf::link_facts(link).map(values),
        Job::BpfLinkReplace { link, program } => bpf::replace_program(link, program).map(|()| values([])),
        Job::BpfLinkDetach { link } => bpf::detach_link(link).map(|()| values([])),
        Job::BpfTcxPrograms { interface_index, egress, program_id } => {
            bpf::tcx_programs(interface_index, egress, program_id).map(values)
        }
        Job::BpfFilterAttach { program, interface_index, egress, priority, filter_handle, replace } => {
            let place = bpf::filter(interface_index, egress, priority, filter_handle);
            Ok(values([u64::from(bpf::attach_filter(place, program, replace)?)]))
        }
        Job::BpfFilterProgram { interface_index, egress, priority, filter_handle } => {
            let place = bpf::filter(interface_index, egress, priority, filter_handle);
            Ok(values([u64::from(place.program_id()?.unwrap_or(0))]))
        }
        Job::BpfFilterDetach { interface_index, egress, priority, filter_handle, program_id } => {
            let place = bpf::filter(interface_index, egress, priority, filter_handle);
            Ok(values([u64::from(place.detach(program_id)?)]))
        }
        Job::BpfXdpAttach { program, interface_index, generic } => {
            bpf::attach_as_xdp(program, interface_index, generic).map(|()| values([]))
        }
        Job::BpfXdpProgram { interface_index } => bpf::xdp_facts(interface_index).map(values),
        Job::BpfXdpDetach { interface_index, program_id } => {
            Ok(values([u64::from(bpf::remove_xdp(interface_index, program_id)?)]))
        }
        Job::BpfRingOpen { map } => Ok(values([bpf::open_ring(map)?])),
        Job::BpfProbeLoad {} => can_load().map(|()| values([])),
        Job::BpfProbeTcx {} => Ok(values([u64::from(has_tcx()?)])),
        Job::GracePeriod {} => wait_for_readers().map(|()| values([])),
        Job::TreeMeasure { path, entries_max } => {
            let size = tree_measure::measure(&path, entries_max)?;
            Ok(values([size.bytes, u64::from(size.entries)]))
        }
    }
}

/// Results in schema order, the rest 0.
fn values<const COUNT: usize>(results: [u64; COUNT]) -> Values {
    let mut all = Values::default();
    all[..COUNT].copy_from_slice(&results);
    all
}
