"""The Ray node that this process is connected through."""

from __future__ import annotations

from pathlib import Path

import ray

UNIX_SOCKETS = Path("/proc/net/unix")

_seen: set[str] = set()


class NodeGone(RuntimeError):
    """Ray has died, or been started again: what was submitted to it will not be answered."""


def node_is_gone() -> bool:
    """Whether the raylet that this driver talks to listened when this was asked before, and does so no more.

    Ray does not always say it. Where another head has been started on the port of one that died, a driver of the old
    one takes it for its own, and may wait for ever.
    """
    node = ray._private.worker._global_node
    if node is None:
        return False
    name = str(node.raylet_socket_name)
    listens = f" {name}\n" in UNIX_SOCKETS.read_text()
    if listens:
        _seen.add(name)
    return name in _seen and not listens
