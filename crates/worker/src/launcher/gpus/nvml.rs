//! NVML, the library of NVIDIA's driver. It is loaded on demand, so programs are built without it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::rc::Rc;

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device as Handle, Nvml};

use super::watch::Names;
use super::{Device, Devices, Process};

/// The unversioned name is part of developer packages only.
const NAME: &str = "libnvidia-ml.so.1";

/// Loads the library. Fails if there is no library or driver, as on most machines. May block
/// indefinitely.
pub(super) fn open() -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(OsStr::new(NAME)).init()
}

/// Handles to devices. Each device is looked up only once, because the driver initializes a device
/// on the first access.
pub(super) struct Handles<'a> {
    library: &'a Nvml,
    /// The devices in the order programs of tasks count them, as far as needed: by bus
    /// address, without inaccessible ones.
    listed: Vec<Rc<Handle<'a>>>,
    /// The index of the next device in the library's order.
    next: u32,
    found: BTreeMap<Box<str>, Rc<Handle<'a>>>,
}

impl<'a> Handles<'a> {
    pub(super) const fn new(library: &'a Nvml) -> Self {
        Self {
            library,
            listed: Vec::new(),
            next: 0,
            found: BTreeMap::new(),
        }
    }

    /// Returns the data of these devices.
    pub(super) fn look(&mut self, names: &Names) -> Devices {
        let mut devices = Devices::new();
        let mut is_lost = false;
        for name in names {
            match self.device(name) {
                Ok(device) => {
                    devices.insert(name.clone(), device);
                }
                Err(_) => is_lost = true,
            }
        }
        self.found.retain(|name, _| names.contains(name));
        if is_lost {
            // After a reset, the device may be a different one.
            *self = Self::new(self.library);
        }
        devices
    }

    fn device(&mut self, name: &str) -> Result<Device, NvmlError> {
        if let Some(handle) = self.found.get(name) {
            return device(handle);
        }
        let handle = self.find(name)?;
        let device = device(&handle);
        self.found.insert(name.into(), handle);
        device
    }

    /// Returns the device or device part with a name that `CUDA_VISIBLE_DEVICES` may contain.
    fn find(&mut self, name: &str) -> Result<Rc<Handle<'a>>, NvmlError> {
        if let Ok(position) = name.parse::<usize>() {
            self.list(position)?;
            let handle = self.listed.get(position).ok_or(NvmlError::NotFound)?;
            return Ok(Rc::clone(handle));
        }
        let found = self.library.device_by_uuid(name);
        if !matches!(found, Err(NvmlError::NotFound | NvmlError::InvalidArg)) {
            return found.map(Rc::new);
        }
        self.list(usize::MAX)?;
        // A unique prefix of an id is enough.
        let begins =
            |handle: &&Rc<Handle<'_>>| handle.uuid().is_ok_and(|uuid| uuid.starts_with(name));
        let mut alike = self.listed.iter().filter(begins);
        match (alike.next(), alike.next()) {
            (Some(handle), None) => Ok(Rc::clone(handle)),
            _ => found.map(Rc::new),
        }
    }

    /// Lists devices up to a position, or all if there are fewer.
    fn list(&mut self, position: usize) -> Result<(), NvmlError> {
        let count = self.library.device_count()?;
        while self.listed.len() <= position && self.next < count {
            match self.library.device_by_index(self.next) {
                Ok(handle) => self.listed.push(Rc::new(handle)),
                Err(NvmlError::NoPermission) => {}
                // Whether this device counts is unknown, and therefore all later positions are too.
                Err(error) => return Err(error),
            }
            self.next += 1;
        }
        Ok(())
    }
}

/// Returns the data of a device, or an error if the device is lost.
fn device(handle: &Handle<'_>) -> Result<Device, NvmlError> {
    let busy = supported(handle.utilization_rates())?;
    let memory = supported(handle.memory_info())?;
    Ok(Device {
        busy_milli: busy.map(|busy| u64::from(busy.gpu).saturating_mul(10)),
        memory_kib: memory.map(|memory| (memory.used / 1024, memory.total / 1024)),
        processes: processes(handle)?,
    })
}

/// Includes graphics processes. A process that computes and renders has its full memory in each
/// list.
fn processes(handle: &Handle<'_>) -> Result<Option<Vec<Process>>, NvmlError> {
    let computing = match supported(handle.running_compute_processes())? {
        Some(found) => Some(found),
        // This is for drivers before release 510.
        None => supported(handle.running_compute_processes_v2())?,
    };
    let Some(computing) = computing else {
        return Ok(None);
    };
    let drawing = handle.running_graphics_processes().unwrap_or_default();
    let mut found: BTreeMap<u32, Option<u64>> = BTreeMap::new();
    for ProcessInfo {
        pid,
        used_gpu_memory,
        ..
    } in computing.into_iter().chain(drawing)
    {
        let kib = match used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes / 1024),
            UsedGpuMemory::Unavailable => None,
        };
        let known = found.entry(pid).or_default();
        *known = (*known).max(kib);
    }
    let found = found.into_iter();
    Ok(Some(found.map(|(pid, kib)| Process { pid, kib }).collect()))
}

/// Returns `None` if the driver or the device does not report the value, or an error if the device
/// is lost.
fn supported<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(
            error @ (NvmlError::GpuLost
            | NvmlError::ResetRequired
            | NvmlError::Uninitialized
            | NvmlError::DriverNotLoaded
            | NvmlError::LibRmVersionMismatch
            | NvmlError::InvalidArg),
        ) => Err(error),
        Err(_) => Ok(None),
    }
}
