"""The flow `train`: iteration after iteration, in one process, on warm engines."""

from __future__ import annotations

from prefect import flow

from flows.publish import tracker
from flows.rlvr import rlvr
from flows.runs import CONFIG_FILE, next_iteration, open_run
from flows.runtime import flow_run_name, stage_runner
from rlcore.cluster.residents import release
from rlcore.ownership import owned
from rlcore.tracking.report import write_report


@flow(name="train", task_runner=stage_runner(), flow_run_name=flow_run_name)
async def train(config: str = "arithmetic", overrides: list[str] | None = None, iterations: int | None = None) -> None:
    """Train up to `iterations`, from wherever the run is.

    Args:
        config: name of a configuration in configs/.
        overrides: `key=value`, as on the command line.
        iterations: instead of the configuration's.
    """
    overrides = [*(overrides or []), *([f"iterations={iterations}"] if iterations is not None else [])]
    settings, store = open_run(config, overrides)
    with owned(store, wait=True):
        # Where metrics cannot go, that is better known before the first iteration.
        tracker(store.url)
        try:
            for number in range(next_iteration(settings, store), settings.iterations + 1):
                # The run's own configuration: a file edited meanwhile does not change a training under way.
                await rlvr(f"{store.url}/{CONFIG_FILE}", iteration=number)
        except Exception:
            # A retry goes on at the failed stage, and finds its engines warm.
            raise
        except BaseException:
            release(store.run_id)
            raise
        write_report(store.directory)
        release(store.run_id)
