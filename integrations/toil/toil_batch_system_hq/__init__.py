"""A batch system of Toil, which finds it by the name of this package: `--batchSystem hq`."""

from toil.batchSystems.registry import add_batch_system_factory


def _class():
    from ._batch_system import HqBatchSystem

    return HqBatchSystem


add_batch_system_factory("hq", _class)
