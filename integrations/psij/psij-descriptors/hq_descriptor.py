"""Registers the executor `hq` with PSI/J."""

from packaging.version import Version
from psij.descriptor import Descriptor

__PSI_J_EXECUTORS__ = [Descriptor(name="hq", nice_name="hq", version=Version("0.1.0"), cls="psij_hq.executor.HqJobExecutor")]
