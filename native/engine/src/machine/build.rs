//! Makes a machine from its description: KVM, memory, interrupt controllers, devices, kernel, vCPUs, in this order.

use super::machine::{Machine, Parts};
use crate::arch::boot::{self, BootSource};
use crate::arch::cpuid::HostCpuid;
use crate::arch::layout::{self, VirtioSlot};
use crate::arch::{interrupts, msr, registers, state, write_tables};
use crate::bus::{BusDevice, SharedDevice};
use crate::devices::{keyboard, power, rtc, serial};
use crate::error::{Error, Result};
use crate::memory::GuestRam;
use crate::vcpu::{Buses, End, Gate, Vcpu};
use crate::virtio::{QUEUE_NOTIFY, Reactor, VirtioDevice, VirtioMmio};
use fluxvm_sys::guest_vm::{GuestVm, handle_kicks};
use fluxvm_sys::kvm;
use kvm_ioctls::{Cap, IoEventAddress, Kvm};
use std::fs::File;
use std::io::{self, Write};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

const KVM_API_VERSION: i32 = 12;

/// What the engine cannot do without, and its name in messages.
const EXTENSIONS: [(Cap, &str); 6] = [
    (Cap::Irqchip, "interrupt controllers"),
    (Cap::UserMemory, "memory of user space"),
    (Cap::Irqfd, "interrupts by events"),
    (Cap::Ioeventfd, "events by writes of the guest"),
    (Cap::ImmediateExit, "immediate exit"),
    (Cap::SetTssAddr, "task state segment"),
];

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
    match EXTENSIONS.iter().find(|(extension, _)| !kvm.check_extension(*extension)) {
        Some((_, name)) => Err(Error::KvmExtension(name)),
        None => Ok(kvm),
    }
}

/// See [`Machine::new`].
pub(super) fn build(config: MachineConfig, ends: Sender<End>) -> Result<Machine> {
    let vcpu_count = vcpu_count(config.vcpus)?;
    let kvm = open_kvm(config.kvm)?;
    handle_kicks().map_err(Error::errno("a signal handler"))?;
    let vm = kvm.create_vm().map_err(Error::kvm("a virtual machine"))?;
    let vm = GuestVm::new(vm, config.ram.memory().clone()).map_err(Error::errno("guest memory"))?;
    let vm = Arc::new(vm);
    interrupts::create(vm.fd())?;

    let reactor = Reactor::start("devices").map_err(Error::Thread)?;
    let mut buses = Buses::default();
    let platform = Platform { vm: &vm, ends: &ends };
    let serial = platform.add_serial(&mut buses, config.serial)?;
    let power = platform.add_power(&mut buses)?;
    let rtc = platform.add_clock(&mut buses)?;
    let mut virtio = Vec::new();
    let mut slots = Vec::new();
    for (index, device) in config.devices.into_iter().enumerate() {
        let slot = layout::virtio_slot(index)?;
        virtio.push(platform.add_virtio(&mut buses, &reactor, device, slot)?);
        slots.push(slot);
    }

    write_tables(vm.memory(), vcpu_count, &slots)?;
    let command_line = layout::command_line(&config.command_line, &slots);
    let (mut kernel, mut initrd) = (config.kernel, config.initrd);
    let source = BootSource { kernel: &mut kernel, initrd: initrd.as_mut(), command_line: &command_line };
    let entry = boot::load(vm.memory(), source)?;

    let (buses, gate) = (Arc::new(buses), Arc::new(Gate::new()));
    let (cpuid, msrs) = (HostCpuid::read(&kvm)?, state::msr_indices(&kvm)?);
    let mut guests = Vec::new();
    for id in 0..vcpu_count {
        let vcpu = vm.create_vcpu(id).map_err(Error::errno("a vCPU"))?;
        cpuid.set(vcpu.fd(), id, vcpu_count)?;
        msr::set_boot(vcpu.fd())?;
        registers::set_fpu(vcpu.fd())?;
        interrupts::set_local_pins(vcpu.fd())?;
        if id == 0 {
            registers::set_entry(&vm, vcpu.fd(), entry)?;
        }
        guests.push(vcpu);
    }
    let mut vcpus = Vec::new();
    for (id, vcpu) in (0..).zip(guests) {
        let ends = ends.clone();
        let ended = move |end| drop(ends.send(end));
        match Vcpu::start(id, vcpu, Arc::clone(&buses), Arc::clone(&gate), ended) {
            Ok(vcpu) => vcpus.push(vcpu),
            Err(error) => {
                gate.set(crate::vcpu::Want::Stop);
                vcpus.into_iter().for_each(Vcpu::join);
                return Err(error);
            }
        }
    }
    Ok(Machine::from_parts(Parts { ram: config.ram, vm, gate, vcpus, reactor, virtio, serial, power, rtc, msrs }))
}

fn vcpu_count(vcpus: u32) -> Result<u8> {
    let count = u8::try_from(vcpus).ok().filter(|count| (1..=layout::VCPUS_MAX).contains(&u32::from(*count)));
    count.ok_or(Error::VcpuCount(vcpus))
}

struct Platform<'a> {
    vm: &'a Arc<GuestVm>,
    ends: &'a Sender<End>,
}

impl Platform<'_> {
    /// An event that is an edge on an interrupt line.
    fn line(&self, gsi: u32) -> Result<EventFd> {
        let event = EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).map_err(|error| Error::Kvm("an event", error))?;
        self.vm.fd().register_irqfd(&event, gsi).map_err(Error::kvm("an interrupt by an event"))?;
        Ok(event)
    }

    fn add_serial(&self, buses: &mut Buses, output: Box<dyn Write + Send>) -> Result<Arc<Mutex<serial::SerialPort>>> {
        let port = Arc::new(Mutex::new(serial::SerialPort::new(self.line(layout::SERIAL_GSI)?, output)));
        buses.ports.insert(layout::SERIAL_PORT, serial::PORTS, Arc::clone(&port) as SharedDevice)?;
        Ok(port)
    }

    /// Everything around power: the ACPI registers, and the reset of the keyboard controller.
    fn add_power(&self, buses: &mut Buses) -> Result<Arc<Mutex<power::Power>>> {
        let vm = Arc::clone(self.vm);
        let interrupt = move |level| {
            // Refused only without interrupt controllers, and there are some.
            let _ = vm.fd().set_irq_line(layout::SCI_GSI, level);
        };
        let power = Arc::new(Mutex::new(power::Power::new(interrupt, self.ending(End::PowerOff))));
        buses.ports.insert(layout::ACPI_PORT, power::PORTS, Arc::clone(&power) as SharedDevice)?;
        let keyboard = keyboard::Keyboard::new(self.ending(End::Reset));
        buses.ports.insert(layout::KEYBOARD_PORT, keyboard::PORTS, Arc::new(Mutex::new(keyboard)))?;
        Ok(power)
    }

    fn add_clock(&self, buses: &mut Buses) -> Result<Arc<Mutex<rtc::Rtc>>> {
        let clock = Arc::new(Mutex::new(rtc::Rtc::default()));
        buses.ports.insert(layout::RTC_PORT, rtc::PORTS, Arc::clone(&clock) as SharedDevice)?;
        Ok(clock)
    }

    fn ending(&self, end: End) -> impl FnMut() + Send + 'static {
        let ends = self.ends.clone();
        move || drop(ends.send(end.clone()))
    }

    fn add_virtio(
        &self,
        buses: &mut Buses,
        reactor: &Reactor,
        device: Box<dyn VirtioDevice>,
        slot: VirtioSlot,
    ) -> Result<Arc<VirtioMmio>> {
        let memory = Arc::new(self.vm.memory().clone());
        let device = VirtioMmio::new(reactor, memory, device, self.line(slot.gsi)?)
            .map_err(|error| Error::Device("virtio", error.into()))?;
        let address = IoEventAddress::Mmio(slot.address + QUEUE_NOTIFY);
        for (queue, event) in (0u32..).zip(device.notify_events()) {
            self.vm.fd().register_ioevent(event, &address, queue).map_err(Error::kvm("an event by a write"))?;
        }
        let window = Arc::new(Mutex::new(Window(Arc::clone(&device))));
        buses.memory.insert(slot.address, layout::VIRTIO_MMIO_BYTES, window)?;
        Ok(device)
    }
}
