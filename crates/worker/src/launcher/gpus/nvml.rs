//! NVML, the library of NVIDIA's driver. It is loaded when it is needed: programs are built without it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device as Handle, Nvml};

use super::{Device, Devices, Process};

/// The name without a number belongs to packages for developers.
const NAME: &str = "libnvidia-ml.so.1";

/// The loaded library.
pub(super) struct Library(Nvml);

impl Library {
    /// Loads it; `None` = there is none, or no driver, as on most machines.
    pub(super) fn open() -> Option<Self> {
        match Nvml::builder().lib_path(OsStr::new(NAME)).init() {
            Ok(library) => Some(Self(library)),
            Err(error) => {
                tracing::debug!("Nothing is known of what tasks use of NVIDIA GPUs: {error}");
                None
            }
        }
    }

    /// Devices as programs of tasks count them: by bus address, without those that are closed to us.
    fn handles(&self) -> Vec<Result<Handle<'_>, NvmlError>> {
        let count = self.0.device_count().unwrap_or(0);
        let all = (0..count).map(|index| self.0.device_by_index(index));
        all.filter(|handle| !matches!(handle, Err(NvmlError::NoPermission)))
            .collect()
    }

    /// The device, or part of a device, of a name that `CUDA_VISIBLE_DEVICES` may hold.
    fn handle(&self, name: &str) -> Result<Handle<'_>, NvmlError> {
        if let Ok(position) = name.parse::<usize>() {
            let mut handles = self.handles();
            if position >= handles.len() {
                return Err(NvmlError::NotFound);
            }
            return handles.swap_remove(position);
        }
        let found = self.0.device_by_uuid(name);
        if !matches!(found, Err(NvmlError::NotFound | NvmlError::InvalidArg)) {
            return found;
        }
        // The beginning of an id is enough if no other one begins like it.
        let begins = |handle: &Handle<'_>| handle.uuid().is_ok_and(|uuid| uuid.starts_with(name));
        let mut alike: Vec<Handle<'_>> = self
            .handles()
            .into_iter()
            .filter_map(Result::ok)
            .filter(begins)
            .collect();
        match alike.pop() {
            Some(handle) if alike.is_empty() => Ok(handle),
            Some(_) | None => found,
        }
    }
}

impl super::Library for Library {
    fn look(&self, names: &BTreeSet<Box<str>>) -> Devices {
        let look = |name: &str| match self.handle(name).and_then(|handle| device(&handle)) {
            Ok(device) => Some((name.into(), device)),
            Err(error) => {
                tracing::debug!(gpu = name, "A GPU tells nothing: {error}");
                None
            }
        };
        names.iter().filter_map(|name| look(name)).collect()
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

/// `None` where driver or device do not tell; other errors mean that there is nothing to be told at this time.
fn told<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(
            NvmlError::NotSupported
            | NvmlError::NoPermission
            | NvmlError::FunctionNotFound
            | NvmlError::FailedToLoadSymbol(_),
        ) => Ok(None),
        Err(error) => Err(error),
    }
}
