"""Requests of a job of Snakemake, in the words of hq."""

from __future__ import annotations

import math
from typing import Any, Dict, Mapping, Optional

from snakemake_interface_common.exceptions import WorkflowError

#: Variables of the process that submits which say where it runs, not what jobs need.
_OWN_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "HOSTNAME",
    "OLDPWD",
    "OMP_NUM_THREADS",
    "PWD",
    "ROCR_VISIBLE_DEVICES",
    "SHLVL",
    "SNAKEMAKE_PROFILE",
    "TMPDIR",
    "_",
)
_OWN_PREFIXES = ("HQ_", "LSB_", "PBS_", "SLURM_", "SLURMD_", "SBATCH_")

#: Steps between two powers of two for rounding up memory, so that jobs with a request computed from the size of their input can share
#: interpreters.
_SIZES = 16


def environment(variables: Mapping[str, str]) -> Dict[str, str]:
    """Variables for jobs: all variables, as with `sbatch`, except machine-specific ones and variables that are not text."""
    return {
        name: value
        for name, value in variables.items()
        if name not in _OWN_VARIABLES and not name.startswith(_OWN_PREFIXES) and _is_text(name + value)
    }


def _is_text(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)


def options(job: Any, gpu_resource: str, with_memory: bool) -> Dict[str, Any]:
    """Options of `hq.Executor` for a job or a group of jobs: its threads and resources."""
    resources = job.resources
    nodes = _whole(job, "nodes", resources.get("nodes"))
    if nodes is not None and nodes > 1:
        amounts: Dict[str, Any] = {"nodes": nodes}
    else:
        amounts = {"cpus": cpus(job)}
        memory = _memory_mib(job, resources, amounts["cpus"]) if with_memory else None
        if memory:
            amounts["mem"] = f"{memory}MiB"
        gpus = _whole(job, "gpu", resources.get("gpu", resources.get("gpus")))
        if gpus:
            amounts[gpu_resource] = gpus
        amounts.update(_others(job, resources.get("hq_resources")))
    found: Dict[str, Any] = {"resources": amounts}
    minutes = _number(job, "runtime", resources.get("runtime"))
    if minutes:
        found["time_limit"] = math.ceil(minutes * 60)
    # The highest of Snakemake is beyond what a priority can be.
    found["priority"] = max(-(2**31), min(2**31 - 1, int(job.priority)))
    return found


def cpus(job: Any) -> int:
    """Cpus of a job or group; at least one."""
    per_task = _whole(job, "cpus_per_task", job.resources.get("cpus_per_task"))
    tasks = _whole(job, "tasks", job.resources.get("tasks")) or 1
    return max(1, (per_task or job.threads) * tasks)


def _memory_mib(job: Any, resources: Any, cpu_count: int) -> Optional[int]:
    """Memory in MiB, rounded up; `None` = nothing is asked for."""
    mib = _number(job, "mem_mib", resources.get("mem_mib"))
    mb = _number(job, "mem_mb", resources.get("mem_mb"))
    per_cpu = _number(job, "mem_mb_per_cpu", resources.get("mem_mb_per_cpu"))
    if per_cpu:
        wanted = per_cpu * cpu_count * 1e6 / 2**20
    elif mib:
        wanted = mib
    elif mb:
        wanted = mb * 1e6 / 2**20
    else:
        return None
    step = max(1, 2 ** max(0, math.floor(math.log2(max(wanted, 1)))) // _SIZES)
    return math.ceil(wanted / step) * step


def _others(job: Any, text: Any) -> Dict[str, str]:
    """Amounts by name, of `hq_resources="licence=1,fpga=2"`."""
    if text is None:
        return {}
    found = {}
    for part in str(text).split(","):
        name, equals, amount = part.strip().partition("=")
        if not (name and equals and amount):
            raise WorkflowError(
                f"{job.name}: expected hq_resources as name=amount, several of them separated by commas, found {str(text)!r}"
            )
        found[name] = amount
    return found


def _number(job: Any, name: str, value: Any) -> Optional[float]:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise WorkflowError(f"{job.name}: expected a number that is not negative as resource {name}, found {value!r}")
    return value


def _whole(job: Any, name: str, value: Any) -> Optional[int]:
    number = _number(job, name, value)
    if number is not None and number != int(number):
        raise WorkflowError(f"{job.name}: expected a whole number as resource {name}, found {value!r}")
    return None if number is None else int(number)
