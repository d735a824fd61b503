from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from hydra.core.config_store import ConfigStore
from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf


@dataclass
class HqQueueConf(BaseQueueConf):
    """Requests of jobs: the options of the other launchers, and options of hq alone."""

    _target_: str = "hydra_plugins.hydra_submitit_hq.launcher.HqLauncher"

    # name of the resource that gpus_per_node asks for
    gpu_resource: str = "gpus/nvidia"
    # further options of `hq submit`: {priority: 3}
    options: Dict[str, Any] = field(default_factory=dict)
    # lines for a shell ahead of Python
    setup: Optional[List[str]] = None
    # time between the request for a checkpoint and the time limit
    signal_delay_s: int = 120
    # how often a job that has reached its time limit goes on from a checkpoint
    max_num_timeout: int = 0


ConfigStore.instance().store(group="hydra/launcher", name="submitit_hq", node=HqQueueConf(), provider="submitit_hq")
