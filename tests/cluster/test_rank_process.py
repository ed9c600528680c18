"""A rank that is killed leaves no process that it forked."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil

FORKS = """
import multiprocessing, time
from rlcore.cluster.rank_process import end_forks_with_this_process
end_forks_with_this_process()
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
child.start()
print(child.pid, flush=True)
child.join()
"""


def test_what_a_rank_forked_dies_with_it() -> None:
    """As the writer of a checkpoint, whose connections would hide from Ray that the rank is dead."""
    with subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        child = psutil.Process(int(rank.stdout.readline()))
        time.sleep(0.2)
        assert child.is_running()
        rank.kill()
        rank.wait()
        try:
            child.wait(timeout=5.0)
        finally:
            if child.is_running():
                child.kill()
