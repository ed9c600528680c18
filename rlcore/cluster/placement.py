"""Room for processes that work together: Ray placement groups, found again by their names.

Ray looks a group up in the namespace of the calling job, and every flow run is a job of its own. So the names here say
what they belong to, and are looked up among all groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import ray
from ray.util.placement_group import (
    PlacementGroup,
    PlacementGroupID,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

ROOM_SECONDS = 300
"""How long a group waits for resources that others hold, or for machines that an autoscaler adds."""


class NoRoom(RuntimeError):
    """The cluster has not the resources for a placement group."""


@dataclass(frozen=True)
class Room:
    """A placement group with one bundle for each process."""

    group: PlacementGroup
    bundles: tuple[int, ...]
    """Numbers of the bundles, those of one node beside each other."""

    def place(self, process: int) -> PlacementGroupSchedulingStrategy:
        """Where the actor of that number goes: consecutive numbers share a node as far as it has room."""
        return PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=self.bundles[process])


def reserve(name: str, processes: int, num_gpus: float) -> Room:
    """Room for so many processes with so many GPUs each, on as few nodes as can be. It stays until it is removed.

    Raises:
        NoRoom: it was not there within ROOM_SECONDS.
    """
    # A bundle must hold something. A byte of memory is on every node, also on those that were started without CPUs.
    bundle = {"GPU": num_gpus} if num_gpus else {"memory": 1}
    group = placement_group([bundle] * processes, strategy="PACK", name=name, lifetime="detached")
    if not group.wait(ROOM_SECONDS):
        remove_placement_group(group)
        raise NoRoom(
            f"{name} needs {processes} × {bundle}, and after {ROOM_SECONDS} s the cluster has only "
            f"{ray.available_resources()} free of {ray.cluster_resources()}"
        )
    nodes: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
    return Room(group, tuple(sorted(nodes, key=lambda bundle: (nodes[bundle], bundle))))


def remove(prefix: str) -> None:
    """Remove all groups whose names begin so. What still runs in them ends."""
    for identifier, record in placement_group_table().items():
        if record["name"].startswith(prefix) and record["state"] != "REMOVED":
            remove_placement_group(PlacementGroup(PlacementGroupID.from_hex(identifier)))
