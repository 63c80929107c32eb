//! Makes a machine from its description: KVM, memory, interrupt controllers, devices, kernel, vCPUs, in this order.

use super::machine::{Machine, Parts};
use crate::arch::boot::{self, BootSource};
use crate::arch::layout::{self, VirtioSlot};
use crate::arch::platform::{self, Platform, line};
use crate::arch::{interrupts, processors, state, write_tables};
use crate::bus::BusDevice;
use crate::error::{Error, Result};
use crate::memory::GuestRam;
use crate::vcpu::{Buses, End, Gate, Vcpu};
use crate::virtio::{INTERRUPT_ACKNOWLEDGE, QUEUE_NOTIFY, Reactor, USED_BUFFER, VirtioDevice, VirtioMmio};
use fluxvm_sys::guest_vm::{GuestVm, handle_kicks};
use fluxvm_sys::kvm;
use kvm_ioctls::{Cap, IoEventAddress, Kvm};
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use vm_memory::GuestMemoryBackend;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

const KVM_API_VERSION: i32 = 12;

/// What the engine cannot do without on any architecture, and its name in messages.
const EXTENSIONS: [(Cap, &str); 5] = [
    (Cap::Irqchip, "interrupt controllers"),
    (Cap::UserMemory, "memory of user space"),
    (Cap::Irqfd, "interrupts by events"),
    (Cap::Ioeventfd, "events by writes of the guest"),
    (Cap::ImmediateExit, "immediate exit"),
];

/// Who is told why a machine ended by itself, possibly more than once and on any thread.
pub type Ends = Arc<dyn Fn(End) + Send + Sync>;

/// The description of a machine.
pub struct MachineConfig {
    /// `/dev/kvm`, for a process that cannot open it by name any more.
    pub kvm: Option<File>,
    /// Its RAM.
    pub ram: GuestRam,
    /// How many vCPUs.
    pub vcpus: u32,
    /// An ELF kernel with a PVH entry, or a bzImage.
    pub kernel: File,
    /// The initial RAM disk.
    pub initrd: Option<File>,
    /// The kernel's command line.
    pub command_line: String,
    /// Where the first serial port prints.
    pub serial: Box<dyn Write + Send>,
    /// Virtio devices, in the order in which the guest finds them.
    pub devices: Vec<Box<dyn VirtioDevice>>,
}

/// A virtio device's window on the bus.
struct Window(Arc<VirtioMmio>);

impl BusDevice for Window {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        self.0.read(offset, data);
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        self.0.write(offset, data);
    }
}

/// Opens `/dev/kvm`, if that was not done before, and looks whether it has what the engine needs.
///
/// # Errors
/// [`Error::OpenKvm`] or [`Error::KvmExtension`].
pub(super) fn open_kvm(device: Option<File>) -> Result<Kvm> {
    let kvm = match device {
        Some(device) => kvm::on_descriptor(device.into()),
        None => Kvm::new().map_err(|error| Error::OpenKvm(io::Error::from_raw_os_error(error.errno())))?,
    };
    if kvm.get_api_version() != KVM_API_VERSION {
        return Err(Error::KvmExtension("API of version 12"));
    }
    match EXTENSIONS.iter().chain(&platform::EXTENSIONS).find(|(extension, _)| !kvm.check_extension(*extension)) {
        Some((_, name)) => Err(Error::KvmExtension(name)),
        None => Ok(kvm),
    }
}

/// See [`Machine::new`].
pub(super) fn build(config: MachineConfig, ends: Ends) -> Result<Machine> {
    let vcpu_count = vcpu_count(config.vcpus)?;
    let kvm = open_kvm(config.kvm)?;
    handle_kicks().map_err(Error::errno("a signal handler"))?;
    let vm = kvm.create_vm().map_err(Error::kvm("a virtual machine"))?;
    let vm = GuestVm::new(vm, config.ram.whole().clone(), config.ram.memory().num_regions())
        .map_err(Error::errno("guest memory"))?;
    let vm = Arc::new(vm);
    interrupts::create(vm.fd())?;

    let reactor = Reactor::start("devices").map_err(Error::Thread)?;
    let broken = Arc::clone(&ends);
    reactor.when_broken(move || broken(End::Crash("a device of the monitor panicked".to_owned())));
    let mut buses = Buses::default();
    let platform = Platform::new(&vm, config.ram.memory(), &mut buses, config.serial, &ends)?;
    let mut virtio = Vec::new();
    let mut slots = Vec::new();
    for (index, device) in config.devices.into_iter().enumerate() {
        let slot = layout::virtio_slot(index)?;
        virtio.push(add_virtio(&vm, &mut buses, &reactor, device, slot)?);
        slots.push(slot);
    }

    write_tables(config.ram.memory(), vcpu_count, &slots)?;
    let command_line = layout::command_line(&config.command_line, &slots);
    let (mut kernel, mut initrd) = (config.kernel, config.initrd);
    let source = BootSource { kernel: &mut kernel, initrd: initrd.as_mut(), command_line: &command_line };
    let entry = boot::load(config.ram.memory(), source)?;

    let (buses, gate) = (Arc::new(buses), Arc::new(Gate::new()));
    let guests = processors::make(&kvm, &vm, vcpu_count, entry)?;
    let registers = state::register_list(&kvm)?;
    let mut vcpus = Vec::new();
    for (id, vcpu) in (0..).zip(guests) {
        let ends = Arc::clone(&ends);
        let ended = move |end| ends(end);
        match Vcpu::start(id, vcpu, Arc::clone(&buses), Arc::clone(&gate), ended) {
            Ok(vcpu) => vcpus.push(vcpu),
            Err(error) => {
                gate.set(crate::vcpu::Want::Stop);
                vcpus.into_iter().for_each(Vcpu::join);
                return Err(error);
            }
        }
    }
    Ok(Machine::from_parts(Parts { ram: config.ram, vm, gate, vcpus, reactor, virtio, platform, registers }))
}

fn vcpu_count(vcpus: u32) -> Result<u8> {
    let count = u8::try_from(vcpus).ok().filter(|count| (1..=layout::VCPUS_MAX).contains(&u32::from(*count)));
    count.ok_or(Error::VcpuCount(vcpus))
}

/// Puts a device behind the transport and onto the bus, with its notifications as events.
fn add_virtio(
    vm: &GuestVm,
    buses: &mut Buses,
    reactor: &Reactor,
    device: Box<dyn VirtioDevice>,
    slot: VirtioSlot,
) -> Result<Arc<VirtioMmio>> {
    let memory = Arc::new(vm.memory().clone());
    let device = VirtioMmio::new(reactor, memory, device, line(vm, slot.gsi)?)
        .map_err(|error| Error::Device("virtio", error.into()))?;
    let address = IoEventAddress::Mmio(slot.address + QUEUE_NOTIFY);
    for (queue, event) in (0u32..).zip(device.notify_events()) {
        vm.fd().register_ioevent(event, &address, queue).map_err(Error::kvm("an event by a write"))?;
    }
    swallow_acknowledgements(vm, slot)?;
    let window = Arc::new(Mutex::new(Window(Arc::clone(&device))));
    buses.memory.insert(slot.address, layout::VIRTIO_MMIO_BYTES, window)?;
    Ok(device)
}

/// A driver acknowledges each interrupt for used buffers. Nothing hangs on that: the line is an edge, and a driver that reads
/// the same reason again looks at its queues, in which there is nothing. So the write ends in KVM, as an event for nobody.
fn swallow_acknowledgements(vm: &GuestVm, slot: VirtioSlot) -> Result<()> {
    let nobody = EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).map_err(|error| Error::Kvm("an event", error))?;
    let address = IoEventAddress::Mmio(slot.address + INTERRUPT_ACKNOWLEDGE);
    vm.fd().register_ioevent(&nobody, &address, USED_BUFFER).map_err(Error::kvm("an event by a write"))
}
