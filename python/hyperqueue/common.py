"""Types that many modules use."""

from __future__ import annotations

import os
from typing import Dict, Sequence, Union

GenericPath = Union[str, "os.PathLike[str]"]
EnvType = Dict[str, str]
ProgramArgs = Union[Sequence[str], str]
