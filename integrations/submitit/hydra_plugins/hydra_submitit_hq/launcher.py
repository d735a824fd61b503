from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher

# Hydra searches this module for launchers; the neighboring module registers the configuration.
from . import config as _config  # noqa: F401


class HqLauncher(BaseSubmititLauncher):
    """Submits the jobs of a sweep to an hq server."""

    _EXECUTOR = "hq"
