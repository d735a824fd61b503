"""`python -m hq` runs the program `hq`, also where its directory is not in `$PATH`."""

import os
import sys

from ._bridge import find_hq

os.execv(find_hq(), ["hq", *sys.argv[1:]])
