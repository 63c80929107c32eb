//! The extended state of an x86 processor, whose size only the host's KVM knows.

use crate::guest_vm::{GuestVcpu, errno};
use crate::{Errno, Result};
use kvm_bindings::{Xsave, kvm_xsave, kvm_xsave2};
use kvm_ioctls::Cap;

impl GuestVcpu {
    /// Reads the area of processor extensions: FPU, vectors and more, as large as this host's KVM says.
    ///
    /// # Errors
    /// What KVM says.
    pub fn xsave(&self) -> Result<Vec<u32>> {
        let extra = self.xsave_extra_words();
        if extra == 0 {
            return self.fd().get_xsave().map(|area| area.region.to_vec()).map_err(errno);
        }
        let mut area = Xsave::new(extra).map_err(|_| Errno::NOMEM)?;
        // SAFETY: the area is as large as KVM says that it may become.
        unsafe { self.fd().get_xsave2(&mut area) }.map_err(errno)?;
        Ok([&area.as_fam_struct_ref().xsave.region, area.as_slice()].concat())
    }

    /// Puts back what [`GuestVcpu::xsave`] gave.
    ///
    /// # Errors
    /// `EINVAL` when it is not as large as on this host; what KVM says.
    pub fn set_xsave(&self, words: &[u32]) -> Result<()> {
        let (region, extra) = words.split_first_chunk().ok_or(Errno::INVAL)?;
        if extra.len() != self.xsave_extra_words() {
            return Err(Errno::INVAL);
        }
        let fixed = kvm_xsave { region: *region, ..kvm_xsave::default() };
        let mut area = Xsave::from_header(kvm_xsave2 { len: extra.len(), xsave: fixed }).map_err(|_| Errno::NOMEM)?;
        area.as_mut_slice().copy_from_slice(extra);
        // SAFETY: the area is as large as KVM says that it reads.
        unsafe { self.fd().set_xsave2(&area) }.map_err(errno)
    }

    /// How many words the area has beyond the fixed part.
    fn xsave_extra_words(&self) -> usize {
        let bytes = usize::try_from(self.machine().check_extension_int(Cap::Xsave2)).unwrap_or(0);
        bytes.saturating_sub(size_of::<kvm_xsave>()).div_ceil(size_of::<u32>())
    }
}
