//! What a vCPU says about itself: what the host's KVM supports, with the topology of the guest (one package, one thread a
//! core) instead of the host's, for Intel and AMD.

use super::layout::VCPUS_MAX;
use crate::error::{Error, Result};
use kvm_bindings::{CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, KVM_MAX_CPUID_ENTRIES, kvm_cpuid_entry2};
use kvm_ioctls::{Cap, Kvm, VcpuFd};
use std::arch::x86_64::__cpuid_count;

/// What the host's KVM can show to a guest, read once for all vCPUs.
#[derive(Clone)]
pub struct HostCpuid {
    entries: Vec<kvm_cpuid_entry2>,
    vendor: Vendor,
    tsc_deadline: bool,
    clock: [u32; 3],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vendor {
    Intel,
    Amd,
    Other,
}

const TSC_AND_CRYSTAL: u32 = 0x15;
const HYPERVISOR: u32 = 1 << 31;
const TSC_DEADLINE: u32 = 1 << 24;
const HYPER_THREADING: u32 = 1 << 28;
const TOPOLOGY_EXTENSIONS: u32 = 1 << 22;
const INTEL_LEVELS: [u32; 2] = [0xB, 0x1F];
const AMD_LEVELS: u32 = 0x8000_0026;
/// Levels of the topology leaves.
const LEVEL_THREAD: u32 = 1;
const LEVEL_CORE: u32 = 2;

impl HostCpuid {
    /// Asks KVM.
    ///
    /// # Errors
    /// [`Error::Kvm`].
    pub fn read(kvm: &Kvm) -> Result<Self> {
        let supported = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(Error::kvm("to list CPU features"))?;
        let entries = supported.as_slice().to_vec();
        let tsc_deadline = kvm.check_extension(Cap::TscDeadlineTimer);
        Ok(Self { vendor: vendor(&entries), entries, tsc_deadline, clock: host_clock() })
    }

    /// Gives a vCPU its features.
    ///
    /// # Errors
    /// [`Error::Kvm`].
    pub fn set(&self, vcpu: &VcpuFd, id: u8, vcpus: u8) -> Result<()> {
        let list = CpuId::from_entries(&self.for_vcpu(id, vcpus)).map_err(|_| Error::State("too many CPU features"))?;
        vcpu.set_cpuid2(&list).map_err(Error::kvm("CPU features"))
    }

    /// The entries for vCPU `id` of so many.
    fn for_vcpu(&self, id: u8, vcpus: u8) -> Vec<kvm_cpuid_entry2> {
        let topology = Topology { id: u32::from(id), cores: u32::from(vcpus) };
        let mut entries: Vec<_> =
            self.entries.iter().filter(|entry| !is_topology_level(entry.function)).copied().collect();
        for entry in &mut entries {
            match entry.function {
                0 if self.clock[0] != 0 => entry.eax = entry.eax.max(TSC_AND_CRYSTAL),
                1 => self.set_features(entry, topology),
                4 if self.vendor == Vendor::Intel => topology.set_intel_cache(entry),
                TSC_AND_CRYSTAL if entry.eax == 0 => [entry.eax, entry.ebx, entry.ecx] = self.clock,
                0x8000_0001 if self.vendor == Vendor::Amd => entry.ecx |= TOPOLOGY_EXTENSIONS,
                0x8000_0008 => topology.set_amd_size(entry, self.vendor),
                0x8000_001D if self.vendor == Vendor::Amd => topology.set_amd_cache(entry),
                0x8000_001E if self.vendor == Vendor::Amd => topology.set_amd_ids(entry),
                _ => (),
            }
        }
        if self.clock[0] != 0 && !entries.iter().any(|entry| entry.function == TSC_AND_CRYSTAL) {
            let [eax, ebx, ecx] = self.clock;
            entries.push(kvm_cpuid_entry2 { function: TSC_AND_CRYSTAL, eax, ebx, ecx, ..kvm_cpuid_entry2::default() });
        }
        for function in INTEL_LEVELS {
            if self.entries.iter().any(|entry| entry.function == function) {
                entries.extend(topology.levels(function));
            }
        }
        entries
    }

    fn set_features(&self, entry: &mut kvm_cpuid_entry2, topology: Topology) {
        const ID_SHIFT: u32 = 24;
        const COUNT_SHIFT: u32 = 16;
        let counted = topology.cores.next_power_of_two();
        entry.ebx = entry.ebx & 0xFFFF | topology.id << ID_SHIFT | counted << COUNT_SHIFT;
        entry.ecx |= HYPERVISOR;
        entry.ecx = if self.tsc_deadline { entry.ecx | TSC_DEADLINE } else { entry.ecx & !TSC_DEADLINE };
        entry.edx = if topology.cores > 1 { entry.edx | HYPER_THREADING } else { entry.edx & !HYPER_THREADING };
    }
}

/// Ratio of the time stamp counter to the crystal and the crystal's frequency in Hz, or zeros where the host does not tell.
fn host_clock() -> [u32; 3] {
    if __cpuid_count(0, 0).eax < TSC_AND_CRYSTAL {
        return [0; 3];
    }
    let clock = __cpuid_count(TSC_AND_CRYSTAL, 0);
    if clock.eax == 0 || clock.ebx == 0 { [0; 3] } else { [clock.eax, clock.ebx, clock.ecx] }
}

fn vendor(entries: &[kvm_cpuid_entry2]) -> Vendor {
    let Some(entry) = entries.iter().find(|entry| entry.function == 0) else { return Vendor::Other };
    let name: Vec<u8> = [entry.ebx, entry.edx, entry.ecx].into_iter().flat_map(u32::to_le_bytes).collect();
    match name.as_slice() {
        b"GenuineIntel" => Vendor::Intel,
        b"AuthenticAMD" | b"HygonGenuine" => Vendor::Amd,
        _ => Vendor::Other,
    }
}

/// Leaves that list the levels of the topology, one entry each: AMD's own one is left out, as it may be.
fn is_topology_level(function: u32) -> bool {
    INTEL_LEVELS.contains(&function) || function == AMD_LEVELS
}

/// One package of cores with one thread each; the number of a vCPU is its APIC id.
#[derive(Clone, Copy)]
struct Topology {
    id: u32,
    cores: u32,
}

impl Topology {
    /// So many bits of the APIC id number the cores.
    fn core_bits(self) -> u32 {
        self.cores.next_power_of_two().trailing_zeros()
    }

    /// Levels 1 and 2 belong to a core, level 3 to all.
    fn sharers(self, level: u32) -> u32 {
        if level >= 3 { self.cores.next_power_of_two() } else { 1 }
    }

    fn set_intel_cache(self, entry: &mut kvm_cpuid_entry2) {
        const KIND: u32 = 0x1F;
        const KEPT: u32 = 0x3FFF;
        if entry.eax & KIND == 0 {
            return;
        }
        let sharers = self.sharers(entry.eax >> 5 & 7);
        entry.eax = entry.eax & KEPT | (sharers - 1) << 14 | (self.cores.next_power_of_two() - 1) << 26;
    }

    fn set_amd_cache(self, entry: &mut kvm_cpuid_entry2) {
        const KIND: u32 = 0x1F;
        const KEPT: u32 = !(0xFFF << 14);
        if entry.eax & KIND != 0 {
            let sharers = self.sharers(entry.eax >> 5 & 7);
            entry.eax = entry.eax & KEPT | (sharers - 1) << 14;
        }
    }

    /// Number of cores and of the bits for them; Intel keeps these bits reserved.
    fn set_amd_size(self, entry: &mut kvm_cpuid_entry2, vendor: Vendor) {
        if vendor == Vendor::Amd {
            entry.ecx = entry.ecx & !0xF0FF | self.core_bits() << 12 | (self.cores - 1);
        } else {
            entry.ecx = 0;
        }
    }

    /// APIC id; core id with one thread a core; one node.
    fn set_amd_ids(self, entry: &mut kvm_cpuid_entry2) {
        (entry.eax, entry.ebx, entry.ecx) = (self.id, self.id, 0);
    }

    /// The entries of one of the leaves that list levels: threads, cores, and the end of the list.
    fn levels(self, function: u32) -> [kvm_cpuid_entry2; 3] {
        let level = |index: u32, kind: u32, shift: u32, processors: u32| kvm_cpuid_entry2 {
            function,
            index,
            flags: KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
            eax: shift,
            ebx: processors,
            ecx: index | kind << 8,
            edx: self.id,
            ..kvm_cpuid_entry2::default()
        };
        [level(0, LEVEL_THREAD, 0, 1), level(1, LEVEL_CORE, self.core_bits(), self.cores), level(2, 0, 0, 0)]
    }
}

const _: () = assert!(VCPUS_MAX <= 254, "the number of a vCPU is its 8-bit APIC id");

#[cfg(test)]
mod tests {
    use super::*;

    fn host(vendor: Vendor) -> HostCpuid {
        let entry = |function, index, eax| kvm_cpuid_entry2 { function, index, eax, ..kvm_cpuid_entry2::default() };
        let entries = vec![
            entry(0, 0, 0xD),
            kvm_cpuid_entry2 { ebx: 0x3F10_0800, ..entry(1, 0, 0) },
            entry(4, 0, 0x7C00_4121),
            entry(4, 3, 0x7C00_4163),
            entry(4, 4, 0),
            entry(0xB, 0, 1),
            entry(0xB, 1, 7),
            entry(0x8000_0001, 0, 0),
            kvm_cpuid_entry2 { ecx: 0x703F, ..entry(0x8000_0008, 0, 0x3030) },
            entry(0x8000_001D, 3, 0x1FC163),
            entry(0x8000_001E, 0, 63),
        ];
        HostCpuid { entries, vendor, tsc_deadline: true, clock: [2, 100, 24_000_000] }
    }

    fn find(entries: &[kvm_cpuid_entry2], function: u32, index: u32) -> kvm_cpuid_entry2 {
        let found: Vec<_> = entries.iter().filter(|entry| entry.function == function && entry.index == index).collect();
        assert_eq!(found.len(), 1, "{function:#x}.{index}");
        *found[0]
    }

    #[test]
    fn features_name_the_vcpu_and_count_the_cores() {
        let leaf = find(&host(Vendor::Intel).for_vcpu(3, 6), 1, 0);
        assert_eq!(leaf.ebx, 0x0308_0800);
        assert_eq!(leaf.ecx, HYPERVISOR | TSC_DEADLINE);
        assert_eq!(leaf.edx, HYPER_THREADING);
        assert_eq!(find(&host(Vendor::Intel).for_vcpu(0, 1), 1, 0).edx, 0);
    }

    #[test]
    fn caches_of_intel_are_private_up_to_the_second_level() {
        let entries = host(Vendor::Intel).for_vcpu(0, 4);
        assert_eq!(find(&entries, 4, 0).eax, 3 << 26 | 0x121);
        assert_eq!(find(&entries, 4, 3).eax, 3 << 26 | 3 << 14 | 0x163);
        assert_eq!(find(&entries, 4, 4).eax, 0);
        assert_eq!(find(&entries, 0x8000_0008, 0).ecx, 0);
    }

    #[test]
    fn levels_are_one_thread_and_all_cores() {
        let entries = host(Vendor::Intel).for_vcpu(5, 6);
        assert_eq!((find(&entries, 0xB, 0).eax, find(&entries, 0xB, 0).ebx, find(&entries, 0xB, 0).ecx), (0, 1, 0x100));
        assert_eq!((find(&entries, 0xB, 1).eax, find(&entries, 0xB, 1).ebx, find(&entries, 0xB, 1).ecx), (3, 6, 0x201));
        assert_eq!((find(&entries, 0xB, 2).ecx, find(&entries, 0xB, 2).edx), (2, 5));
    }

    #[test]
    fn amd_has_its_own_leaves() {
        let entries = host(Vendor::Amd).for_vcpu(2, 4);
        assert_eq!(find(&entries, 0x8000_0001, 0).ecx, TOPOLOGY_EXTENSIONS);
        assert_eq!(find(&entries, 0x8000_0008, 0).ecx, 2 << 12 | 3);
        assert_eq!(find(&entries, 0x8000_001D, 3).eax, 3 << 14 | 0x163);
        assert_eq!(find(&entries, 0x8000_001E, 0).eax, 2);
        assert_eq!(find(&entries, 0x8000_001E, 0).ebx, 2);
    }

    #[test]
    fn the_clock_of_the_host_is_shown_when_kvm_hides_it() {
        let entries = host(Vendor::Intel).for_vcpu(0, 1);
        assert_eq!(find(&entries, 0, 0).eax, TSC_AND_CRYSTAL);
        assert_eq!(find(&entries, TSC_AND_CRYSTAL, 0).ecx, 24_000_000);
    }
}
