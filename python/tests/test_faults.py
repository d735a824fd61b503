"""A short run of faults.py: every future settles, whichever process is killed."""

import faults
import pytest


@pytest.mark.parametrize(
    "deeds",
    [
        ["interpreter", "interpreter", "worker", "interpreter"],
        ["server", "interpreter", "server"],
        ["interpreter", "bridge"],
    ],
    ids=["worker", "server", "bridge"],
)
def test_every_future_settles_whichever_process_is_killed(tmp_path, deeds):
    killed, (died, _) = faults.play(tmp_path, 1, 400, deeds)
    assert died <= killed["interpreter"]
