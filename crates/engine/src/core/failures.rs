//! Devices that do not work: the interface is down, or was removed.

use scoutline_device::DeviceError;

use super::{Core, Net};

impl Net {
    /// It took or gave something.
    #[inline]
    pub(super) fn on_device_works(&mut self) {
        if self.failure.is_some() {
            self.on_device_works_again();
        }
    }

    #[cold]
    fn on_device_works_again(&mut self) {
        self.failure = None;
        eprintln!("scoutline: info: {} works again", self.device.name());
    }

    /// It is said once until the device works again, and stands in `stat`.
    #[cold]
    pub(super) fn on_device_failed(&mut self, error: &DeviceError) {
        let failure = error.to_string();
        if self.failure.as_ref() != Some(&failure) {
            eprintln!("scoutline: warn: {failure}");
            self.failure = Some(failure);
        }
    }
}

impl Core {
    /// Of devices that did not work when they were last used, for `stat`.
    pub(super) fn failures(&self) -> impl Iterator<Item = String> {
        self.nets.iter().filter_map(|net| Some(format!("when last used: {}", net.failure.as_ref()?)))
    }
}
