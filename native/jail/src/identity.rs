//! Who the process is and what it may: one user and one group without any capability, and limits.

use crate::enter::Limits;
use crate::{JailError, io_step, step};
use fluxvm_sys::signals::survive_file_limit;
use rustix::process::{Gid, Pid, Resource, Rlimit, Uid, setrlimit};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

/// Gives the user namespace of `inner` one user and one group, with the same numbers inside as outside.
pub fn map_ids(inner: Pid, uid: u32, gid: u32) -> Result<(), JailError> {
    let process = format!("/proc/{}", inner.as_raw_nonzero());
    let put = |file: &str, text: String| std::fs::write(format!("{process}/{file}"), text);
    put("uid_map", format!("{uid} {uid} 1\n")).map_err(io_step("map the user"))?;
    put("gid_map", format!("{gid} {gid} 1\n")).map_err(io_step("map the group"))
}

/// Becomes this user and group, with no others and no capability, now or by any program.
pub fn drop_rights(uid: u32, gid: u32) -> Result<(), JailError> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    for capability in CapabilitySet::all().iter() {
        // A kernel that does not know one has it in no set.
        if capability_is_in_bounding_set(capability).unwrap_or(false) {
            remove_capability_from_bounding_set(capability).map_err(step("drop a capability"))?;
        }
    }
    set_capabilities_secure_bits(LOCKED).map_err(step("lock the rights of root"))?;
    set_thread_groups(&[]).map_err(step("drop groups"))?;
    set_thread_res_gid(group, group, group).map_err(step("change the group"))?;
    set_thread_res_uid(user, user, user).map_err(step("change the user"))?;
    clear_ambient_capability_set().map_err(step("drop ambient capabilities"))?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, sets).map_err(step("drop all capabilities"))
}

/// Being root gives nothing, and no bit of this can be changed.
const LOCKED: CapabilitiesSecureBits = CapabilitiesSecureBits::NO_ROOT
    .union(CapabilitiesSecureBits::NO_ROOT_LOCKED)
    .union(CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED)
    .union(CapabilitiesSecureBits::KEEP_CAPS_LOCKED)
    .union(CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE)
    .union(CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED);

/// Sets limits that cannot be raised again. Reaching that of files is an error of one write.
pub fn set_limits(limits: Limits) -> Result<(), JailError> {
    survive_file_limit();
    let wanted = [
        (Resource::Nofile, limits.descriptors),
        (Resource::Nproc, limits.threads),
        (Resource::Fsize, limits.file_bytes),
        (Resource::Core, 0),
        (Resource::Msgqueue, 0),
    ];
    for (resource, most) in wanted {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(resource, limit).map_err(step("set a resource limit"))?;
    }
    Ok(())
}
