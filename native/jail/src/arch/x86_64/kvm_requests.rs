//! Requests to KVM about a machine that exists and its virtual CPUs: to run it, to interrupt it, and to read and write its
//! state. None makes a machine or a virtual CPU, changes what it is made of (its memory, its events, what its processors say of
//! themselves), or asks for what only debugging needs.

use kvm_bindings::*;

const fn number(direction: u32, number: u32, bytes: usize) -> u32 {
    direction << 30 | (bytes as u32) << 16 | 0xAE << 8 | number
}

const fn plain(request: u32) -> u32 {
    number(0, request, 0)
}

/// The kernel reads a structure.
const fn put<T>(request: u32) -> u32 {
    number(1, request, size_of::<T>())
}

/// The kernel writes one.
const fn get<T>(request: u32) -> u32 {
    number(2, request, size_of::<T>())
}

/// Both.
const fn exchange<T>(request: u32) -> u32 {
    number(3, request, size_of::<T>())
}

/// In the order of the kernel's numbers.
pub const KVM_REQUESTS: [u32; 31] = [
    plain(0x03),                   // CHECK_EXTENSION
    put::<kvm_irq_level>(0x61),    // IRQ_LINE
    exchange::<kvm_irqchip>(0x62), // GET_IRQCHIP
    get::<kvm_irqchip>(0x63),      // SET_IRQCHIP, whose direction the kernel has wrong
    put::<kvm_clock_data>(0x7B),   // SET_CLOCK
    get::<kvm_clock_data>(0x7C),   // GET_CLOCK
    plain(0x80),                   // RUN
    get::<kvm_regs>(0x81),         // GET_REGS
    put::<kvm_regs>(0x82),         // SET_REGS
    get::<kvm_sregs>(0x83),        // GET_SREGS
    put::<kvm_sregs>(0x84),        // SET_SREGS
    exchange::<kvm_msrs>(0x88),    // GET_MSRS
    put::<kvm_msrs>(0x89),         // SET_MSRS
    get::<kvm_lapic_state>(0x8E),  // GET_LAPIC
    put::<kvm_lapic_state>(0x8F),  // SET_LAPIC
    get::<kvm_mp_state>(0x98),     // GET_MP_STATE
    put::<kvm_mp_state>(0x99),     // SET_MP_STATE
    get::<kvm_vcpu_events>(0x9F),  // GET_VCPU_EVENTS
    get::<kvm_pit_state2>(0x9F),   // GET_PIT2
    put::<kvm_vcpu_events>(0xA0),  // SET_VCPU_EVENTS
    put::<kvm_pit_state2>(0xA0),   // SET_PIT2
    get::<kvm_debugregs>(0xA1),    // GET_DEBUGREGS
    put::<kvm_debugregs>(0xA2),    // SET_DEBUGREGS
    plain(0xA2),                   // SET_TSC_KHZ
    plain(0xA3),                   // GET_TSC_KHZ
    get::<kvm_xsave>(0xA4),        // GET_XSAVE
    put::<kvm_xsave>(0xA5),        // SET_XSAVE
    get::<kvm_xcrs>(0xA6),         // GET_XCRS
    put::<kvm_xcrs>(0xA7),         // SET_XCRS
    plain(0xAD),                   // KVMCLOCK_CTRL
    get::<kvm_xsave>(0xCF),        // GET_XSAVE2
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_numbers_that_the_kernel_knows() {
        // From the headers of Linux: KVM_RUN, KVM_GET_MSRS, KVM_GET_REGS, KVM_GET_SREGS, KVM_GET_XSAVE.
        for known in [0xAE80, 0xC008_AE88, 0x8090_AE81, 0x8138_AE83, 0x9000_AEA4] {
            assert!(KVM_REQUESTS.contains(&known), "{known:#x}");
        }
    }

    #[test]
    fn what_a_machine_is_made_of_cannot_be_changed() {
        // KVM_CREATE_VM, KVM_CREATE_VCPU, KVM_CREATE_DEVICE, KVM_SET_USER_MEMORY_REGION, KVM_SET_USER_MEMORY_REGION2,
        // KVM_SET_GSI_ROUTING, KVM_IRQFD, KVM_IOEVENTFD, KVM_SET_CPUID2, KVM_GET_DIRTY_LOG, KVM_SET_GUEST_DEBUG,
        // KVM_ENABLE_CAP, KVM_SET_NESTED_STATE.
        for other in [
            0xAE01,
            0xAE41,
            0xC00C_AEE0,
            0x4020_AE46,
            0x40A0_AE49,
            0x4008_AE6A,
            0x4020_AE76,
            0x4040_AE79,
            0x4008_AE90,
            0x4010_AE42,
            0x4048_AE9B,
            0x4068_AEA3,
            0x4080_AEBF,
        ] {
            assert!(!KVM_REQUESTS.contains(&other), "{other:#x}");
        }
    }
}
