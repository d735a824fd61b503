//! A template compiled for this worker. Everything that its tasks share is encoded only once.
//!
//! Each task adds only ids, its entry, indices and rendered paths. Arguments and environment are
//! shared by reference.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hq_core::done::command_digest;
use hq_core::params::variable;
use hq_core::placeholder::{PathPatterns, PathValues, TaskPaths};
use hq_core::resource::pool::PoolSet;
use hq_core::resource::request::{Policy, ResourceEntry, ResourceRequest};
use hq_core::template::{ByteText, PinMode};
use hq_core::worker_state::{InstanceKey, LaunchTask, WorkTemplate};
use hq_spawn::{ArgBlock, EnvBlock, PlanError, TaskEnv};

use crate::done::Done;
use crate::hardware::{CPUS, GPUS_AMD, GPUS_NVIDIA};

/// The part of the environment that is the same for all tasks of this worker.
#[derive(Debug)]
pub(crate) struct BaseEnvironment {
    /// The worker's own environment.
    pub(crate) env: EnvBlock,
    /// The value of `HQ`.
    pub(crate) hq_path: PathBuf,
    /// The uid of the server, for `%{SERVER_UID}` and for the marker in the environment of tasks.
    pub(crate) server_uid: Box<str>,
}

/// A template that is ready for launches.
#[derive(Debug)]
pub(crate) struct CompiledTemplate {
    pub(crate) work: Arc<WorkTemplate>,
    pub(crate) args: ArgBlock,
    paths: PathPatterns,
    variants: Vec<CompiledVariant>,
}

/// The result of [`CompiledTemplate::index_values`].
#[derive(Debug, Default)]
pub(crate) struct IndexValues {
    pub(crate) fixed: Vec<(String, String)>,
    pub(crate) of_call: Vec<(String, String)>,
}

#[derive(Debug)]
struct CompiledVariant {
    env: EnvBlock,
    /// The variables for granted indices, for each entry of the request.
    index_variables: Vec<IndexVariables>,
}

#[derive(Debug)]
struct IndexVariables {
    /// The position of the resource in the grant.
    entry: usize,
    /// The variables that are set to the comma-separated indices.
    names: Vec<String>,
    /// Whether `OMP_PLACES` is set to the indices as well.
    is_omp_places: bool,
    is_cpus: bool,
}

impl CompiledTemplate {
    /// Encodes everything that the tasks share.
    pub(crate) fn new(
        work: &Arc<WorkTemplate>,
        surroundings: &BaseEnvironment,
        pools: &PoolSet,
    ) -> Result<Self, PlanError> {
        let task = &work.task;
        let args = ArgBlock::new(task.args.iter().map(|arg| OsStr::from_bytes(arg)))?;
        let requests = task.requests.as_slice();
        let compile = |(number, request): (usize, &ResourceRequest)| {
            // A single variant needs no number.
            let number = (requests.len() > 1).then_some(number);
            CompiledVariant::new(work, request, number, surroundings, pools)
        };
        let variants = requests
            .iter()
            .enumerate()
            .map(compile)
            .collect::<Result<_, _>>()?;
        let paths = PathPatterns::new(task);
        Ok(Self {
            work: Arc::clone(work),
            args,
            paths,
            variants,
        })
    }

    /// Returns the parameter values of one task. The list is empty if it has no parameters.
    pub(crate) fn params(&self, key: InstanceKey) -> Vec<(&str, ByteText)> {
        let params = self.work.task.params.as_deref();
        params.map_or_else(Vec::new, |params| params.values(key.task.task))
    }

    /// Returns the arguments of a task.
    pub(crate) fn args(&self, launch: &LaunchTask) -> Result<ArgBlock, PlanError> {
        let task = &self.work.task;
        let values = task.arg_values(launch.key.task.task, launch.entry());
        // Most tasks share the encoded arguments.
        if values.is_empty() {
            return Ok(self.args.clone());
        }
        let filled = task.filled_args(&values);
        ArgBlock::new(filled.iter().map(|arg| OsStr::from_bytes(arg)))
    }

    /// Returns the paths of one task.
    pub(crate) fn paths(&self, key: InstanceKey, server_uid: &str) -> TaskPaths {
        self.paths.render(&PathValues {
            job: key.task.job,
            task: key.task.task,
            instance: key.instance,
            submit_dir: &self.work.submit_dir,
            server_uid,
            cwd: &[],
        })
    }

    /// Returns the inputs and outputs of one task, or `None` if its outputs are not declared.
    pub(crate) fn done(&self, launch: &LaunchTask, cwd: &Path, server_uid: &str) -> Option<Done> {
        let task = &self.work.task;
        // Most tasks declare no outputs.
        if task.files.outputs.is_empty() {
            return None;
        }
        let files = self.paths.files(&PathValues {
            job: launch.key.task.job,
            task: launch.key.task.task,
            instance: launch.key.instance,
            submit_dir: &self.work.submit_dir,
            server_uid,
            cwd: cwd.as_os_str().as_bytes(),
        });
        let params = self.params(launch.key);
        let command = command_digest(task, &params, launch.entry());
        let cwd = cwd.as_os_str().as_bytes();
        let how = (task.files.must_exist, task.files.by_content);
        Done::new(files, (command, cwd), how)
    }

    /// Returns the variables of one task that name granted indices. Programs read the `fixed` ones
    /// when they start. The others may differ for the next call of an interpreter.
    pub(crate) fn index_values(&self, launch: &LaunchTask, pools: &PoolSet) -> IndexValues {
        let mut values = IndexValues::default();
        let Some(variant) = self.variants.get(launch.variant as usize) else {
            return values;
        };
        for variables in &variant.index_variables {
            let list = index_list(launch, variables.entry, pools);
            if variables.is_omp_places {
                let places = ("OMP_PLACES".to_owned(), format!("{{{list}}}"));
                values.fixed.push(places);
            }
            for name in &variables.names {
                let of_call = name.starts_with("HQ_");
                let pair = (name.clone(), list.clone());
                let to = if of_call {
                    &mut values.of_call
                } else {
                    &mut values.fixed
                };
                to.push(pair);
            }
        }
        values
    }

    /// Returns the environment of one task: the shared block plus its own variables.
    pub(crate) fn environment(
        &self,
        launch: &LaunchTask,
        pools: &PoolSet,
    ) -> Result<Option<(EnvBlock, TaskEnv)>, PlanError> {
        let Some(variant) = self.variants.get(launch.variant as usize) else {
            return Ok(None);
        };
        let mut env = TaskEnv::new();
        env.set_display("HQ_TASK_ID", launch.key.task.task)?;
        env.set_display("HQ_INSTANCE_ID", launch.key.instance)?;
        // The entry of a call is passed to its interpreter instead.
        let entry = launch.entry().filter(|_| !self.work.task.is_call);
        if let Some(entry) = entry {
            env.set("HQ_ENTRY", OsStr::from_bytes(entry))?;
        }
        for (name, value) in self.params(launch.key) {
            env.set(&variable(name), OsStr::from_bytes(&value))?;
        }
        for variables in &variant.index_variables {
            let list = index_list(launch, variables.entry, pools);
            for name in &variables.names {
                env.set(name, &list)?;
            }
            if variables.is_omp_places {
                env.set_display("OMP_PLACES", format_args!("{{{list}}}"))?;
            }
        }
        Ok(Some((variant.env.clone(), env)))
    }

    /// Returns the names of the granted cpus. The list is empty if the task has none.
    pub(crate) fn cpu_names<'a>(&self, launch: &'a LaunchTask, pools: &'a PoolSet) -> Vec<&'a str> {
        let variant = self.variants.get(launch.variant as usize);
        let cpus = variant.and_then(|v| v.index_variables.iter().find(|vars| vars.is_cpus));
        cpus.map_or_else(Vec::new, |vars| {
            index_names(launch, vars.entry, pools).collect()
        })
    }
}

impl CompiledVariant {
    fn new(
        work: &WorkTemplate,
        request: &ResourceRequest,
        number: Option<usize>,
        surroundings: &BaseEnvironment,
        pools: &PoolSet,
    ) -> Result<Self, PlanError> {
        let task = &work.task;
        let is_user_set = |name: &str| task.env.iter().any(|(key, _)| **key == *name.as_bytes());
        let mut env = SharedEnv(Vec::new());
        env.0.extend(
            task.env
                .iter()
                .map(|(name, value)| (os_string(name), os_string(value))),
        );
        // These are set after the user's variables, because a later variable replaces an earlier
        // one with the same name.
        env.set("HQ_JOB_ID", work.job.to_string());
        env.set("HQ_SUBMIT_DIR", os_string(&work.submit_dir));
        env.set("HQ", surroundings.hq_path.clone().into_os_string());
        if let Some(number) = number {
            env.set("HQ_RESOURCE_VARIANT", number.to_string());
        }
        let mut index_variables = Vec::new();
        for (position, entry) in request.entries.iter().enumerate() {
            // Resource names may contain characters that are not allowed in variable names.
            let suffix = variable_suffix(&entry.resource);
            env.set(&format!("HQ_RESOURCE_REQUEST_{suffix}"), entry.to_string());
            // A number that the user sets suits the program better.
            if &*entry.resource == CPUS
                && !is_user_set("OMP_NUM_THREADS")
                && let Some(count) = whole_amount(entry, pools)
            {
                env.set("OMP_NUM_THREADS", count.to_string());
            }
            index_variables.extend(index_variables_of(
                entry, position, &suffix, &mut env, pools,
            ));
        }
        // A multi-node task has whole nodes and no granted cpus.
        if request.n_nodes == 0 {
            set_pin(task.pin, &is_user_set, &mut env, &mut index_variables);
        }
        Ok(Self {
            env: surroundings.env.overlay(env.0)?,
            index_variables,
        })
    }
}

struct SharedEnv(Vec<(OsString, OsString)>);

impl SharedEnv {
    fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.0.push((name.into(), value.into()));
    }
}

fn set_pin(
    pin: PinMode,
    is_user_set: &impl Fn(&str) -> bool,
    env: &mut SharedEnv,
    index_variables: &mut [IndexVariables],
) {
    match pin {
        PinMode::None => {}
        PinMode::Taskset => env.set("HQ_PIN", "taskset"),
        PinMode::OpenMp => {
            env.set("HQ_PIN", "omp");
            if !is_user_set("OMP_PROC_BIND") {
                env.set("OMP_PROC_BIND", "close");
            }
            let cpus = index_variables
                .iter_mut()
                .find(|variables| variables.is_cpus);
            // This is set for each task, because the places depend only on its grant.
            if let Some(cpus) = cpus.filter(|_| !is_user_set("OMP_PLACES")) {
                cpus.is_omp_places = true;
            }
        }
    }
}

/// Returns the variables that contain the indices of one resource, or `None` for a sum.
fn index_variables_of(
    entry: &ResourceEntry,
    position: usize,
    suffix: &str,
    env: &mut SharedEnv,
    pools: &PoolSet,
) -> Option<IndexVariables> {
    let pool = pools.position(&entry.resource)?;
    // Items of a sum have no names.
    if pools.index_name(pool, 0).is_empty() {
        return None;
    }
    let mut names = vec![format!("HQ_RESOURCE_VALUES_{suffix}")];
    let is_cpus = &*entry.resource == CPUS;
    match &*entry.resource {
        CPUS => names.push("HQ_CPUS".to_string()),
        GPUS_NVIDIA => {
            names.push("CUDA_VISIBLE_DEVICES".to_string());
            // Our indices follow bus addresses. By default, CUDA numbers the fastest GPU first.
            env.set("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        }
        GPUS_AMD => names.push("ROCR_VISIBLE_DEVICES".to_string()),
        _ => {}
    }
    Some(IndexVariables {
        entry: position,
        names,
        is_omp_places: false,
        is_cpus,
    })
}

/// Returns the requested number of items if it has no fraction.
fn whole_amount(entry: &ResourceEntry, pools: &PoolSet) -> Option<u64> {
    let amount = match entry.policy {
        Policy::All => pools.total(pools.position(&entry.resource)?),
        Policy::Compact
        | Policy::ForceCompact
        | Policy::Tight
        | Policy::ForceTight
        | Policy::Scatter => entry.amount,
    };
    // Half a cpu is not a number of threads.
    (amount.fraction_units() == 0).then_some(amount.whole_part())
}

fn index_names<'a>(
    launch: &'a LaunchTask,
    entry: usize,
    pools: &'a PoolSet,
) -> impl Iterator<Item = &'a str> {
    let granted = launch.grant.entries.get(entry).into_iter();
    granted.flat_map(|entry| {
        entry
            .indices
            .iter()
            .map(|granted| pools.index_name(entry.pool, granted.index))
    })
}

fn index_list(launch: &LaunchTask, entry: usize, pools: &PoolSet) -> String {
    let mut list = String::new();
    for name in index_names(launch, entry, pools) {
        if !list.is_empty() {
            list.push(',');
        }
        list.push_str(name);
    }
    list
}

/// Returns a resource's name as part of a variable's name.
fn variable_suffix(resource: &str) -> String {
    resource
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect()
}

fn os_string(bytes: &ByteText) -> OsString {
    OsString::from_vec(bytes.to_vec())
}
