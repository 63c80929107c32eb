//! The harness that boots a guest of our own on the engine and looks at what it does.

pub mod driver;
pub mod image;

use fluxvm_engine::machine::{Machine, MachineConfig};
use fluxvm_engine::memory::{GuestRam, Mapping};
use fluxvm_engine::vcpu::End;
use fluxvm_engine::virtio::VirtioDevice;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vm_memory::{Bytes, GuestAddress};

pub const RAM_BYTES: u64 = 16 << 20;
/// Where the guest counts.
pub const COUNTER: u64 = 0x5_0000;
/// Where the second vCPU counts.
pub const SECOND_COUNTER: u64 = 0x5010;
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A machine with our guest.
pub struct Guest {
    pub machine: Machine,
    ends: Receiver<End>,
    output: Output,
}

impl Guest {
    /// A machine whose guest does what the letter says, once it is started.
    pub fn new(letter: char, vcpus: u32, devices: Vec<Box<dyn VirtioDevice>>) -> Self {
        Self::with_ram(letter, vcpus, devices, ram_file())
    }

    /// The same in RAM behind a file.
    pub fn with_ram(letter: char, vcpus: u32, devices: Vec<Box<dyn VirtioDevice>>, file: File) -> Self {
        Self::on_kvm(None, letter, vcpus, devices, file)
    }

    /// The same in memory that is there already.
    pub fn in_memory(letter: char, vcpus: u32, devices: Vec<Box<dyn VirtioDevice>>, ram: GuestRam) -> Self {
        Self::make(None, image::kernel(), &letter.to_string(), vcpus, devices, ram)
    }

    /// A machine with another kernel.
    pub fn with_kernel(kernel: File) -> Self {
        Self::make(None, kernel, "", 1, vec![], guest_ram(ram_file()))
    }

    /// The same on a KVM that was opened before.
    pub fn on_kvm(
        kvm: Option<File>,
        letter: char,
        vcpus: u32,
        devices: Vec<Box<dyn VirtioDevice>>,
        file: File,
    ) -> Self {
        Self::make(kvm, image::kernel(), &letter.to_string(), vcpus, devices, guest_ram(file))
    }

    fn make(
        kvm: Option<File>,
        kernel: File,
        command_line: &str,
        vcpus: u32,
        devices: Vec<Box<dyn VirtioDevice>>,
        ram: GuestRam,
    ) -> Self {
        let (sender, ends) = channel();
        let output = Output::default();
        let config = MachineConfig {
            kvm,
            ram,
            vcpus,
            kernel,
            initrd: None,
            command_line: command_line.to_owned(),
            serial: Box::new(output.clone()),
            devices,
        };
        let ended = Arc::new(move |end| drop(sender.send(end)));
        Self { machine: Machine::new(config, ended).unwrap(), ends, output }
    }

    /// What the guest has printed.
    pub fn printed(&self) -> String {
        String::from_utf8_lossy(&self.output.0.lock().unwrap()).into_owned()
    }

    /// Waits until the guest has printed so much.
    pub fn wait_printed(&self, text: &str) {
        wait(|| self.printed() == text, || format!("printed {:?} instead of {text:?}", self.printed()));
    }

    /// A number in guest memory.
    pub fn word(&self, address: u64) -> u32 {
        self.machine.ram().memory().read_obj(GuestAddress(address)).unwrap()
    }

    /// Waits until a number in guest memory is larger.
    pub fn wait_beyond(&self, address: u64, value: u32) {
        wait(|| self.word(address) > value, || format!("{address:#x} stays {}", self.word(address)));
    }

    /// Why the guest ended.
    pub fn end(&self) -> End {
        self.ends.recv_timeout(PATIENCE).expect("the guest ends")
    }
}

/// A file as RAM whose writes reach it.
pub fn guest_ram(file: File) -> GuestRam {
    GuestRam::new(file, RAM_BYTES, Mapping::Shared).unwrap()
}

/// An empty file of the right size.
pub fn ram_file() -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(RAM_BYTES).unwrap();
    file
}

/// Another file as RAM with the same content.
pub fn copy(file: &File) -> File {
    let (mut bytes, copy) = (vec![0; RAM_BYTES as usize], ram_file());
    file.read_exact_at(&mut bytes, 0).unwrap();
    copy.write_all_at(&bytes, 0).unwrap();
    copy
}

/// Waits until it is so; `what` says what is instead.
pub fn wait(done: impl Fn() -> bool, what: impl Fn() -> String) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "{}", what());
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Whether machines can be run here; says so when not.
pub fn can_run() -> bool {
    let can = File::options().read(true).write(true).open("/dev/kvm").is_ok();
    if !can {
        eprintln!("missing capability: /dev/kvm");
    }
    can
}
