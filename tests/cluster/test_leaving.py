"""A process that leaves its cluster is not ended by Ray for what another thread collects meanwhile."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc, sys, threading
import ray
from rlcore.cluster.leaving import uncollected

def litter():
    # Every few objects a collection; each frees references that are garbage in a cycle.
    gc.set_threshold(50, 1, 1)
    while not left.is_set():
        cycle = [reference for reference in references[:20]]
        del references[:20]
        cycle.append(cycle)

left = threading.Event()
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
references = [ray.put(number) for number in range(4000)]
threads = [threading.Thread(target=litter, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
with LEAVING:
    ray.shutdown()
left.set()
for thread in threads:
    thread.join()
print("left")
"""


def test_no_other_thread_collects_garbage_while_ray_is_left() -> None:
    command = [sys.executable, "-c", PROGRAM.replace("LEAVING", "uncollected()")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr
