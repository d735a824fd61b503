//! NVML, the library of NVIDIA's driver. It is loaded when it is needed: programs are built without it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::rc::Rc;

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device as Handle, Nvml};

use super::watch::Names;
use super::{Device, Devices, Process};

/// The name without a number belongs to packages for developers.
const NAME: &str = "libnvidia-ml.so.1";

/// Loads it; an error if there is none, or no driver, as on most machines. May block for as long as it likes.
pub(super) fn open() -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(OsStr::new(NAME)).init()
}

/// Devices, which are looked up once: the driver starts each that it is asked for.
pub(super) struct Handles<'a> {
    library: &'a Nvml,
    /// Devices as programs of tasks count them, as far as they were needed: by bus address, without those that are closed to us.
    listed: Vec<Rc<Handle<'a>>>,
    /// Index of the next one, as the library counts.
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

    /// What is known of these.
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
            // It may be another one when it is back.
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

    /// The device, or part of a device, of a name that `CUDA_VISIBLE_DEVICES` may hold.
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
        // The beginning of an id is enough if no other one begins like it.
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
                // Whether it counts is not known, so nor are the positions after it.
                Err(error) => return Err(error),
            }
            self.next += 1;
        }
        Ok(())
    }
}

/// What there is; an error if the device is lost.
fn device(handle: &Handle<'_>) -> Result<Device, NvmlError> {
    let busy = told(handle.utilization_rates())?;
    let memory = told(handle.memory_info())?;
    Ok(Device {
        busy_milli: busy.map(|busy| u64::from(busy.gpu).saturating_mul(10)),
        memory_kib: memory.map(|memory| (memory.used / 1024, memory.total / 1024)),
        processes: processes(handle)?,
    })
}

/// With those that draw; one that does both has the memory of both in each list.
fn processes(handle: &Handle<'_>) -> Result<Option<Vec<Process>>, NvmlError> {
    let computing = match told(handle.running_compute_processes())? {
        Some(found) => Some(found),
        // A driver of before 510.
        None => told(handle.running_compute_processes_v2())?,
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

/// `None` where driver or device do not tell, for now or ever; an error if the device is lost.
fn told<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
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
