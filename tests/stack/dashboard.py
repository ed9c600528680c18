"""A run that fails because a volume is not mounted, and that a user retries in Prefect's dashboard once it is.

`python -m tests.stack.dashboard` makes the two pictures of docs/durability.md.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, expect

from rlcore.pretrained import smollm2_directory
from rlcore.store import LedgerEntry
from tests.stack.browser import opened
from tests.stack.conftest import save_tiny_llama
from tests.stack.pipeline import REPOSITORY, Up, store_of, tiny_training, up, wait_until

FAILED, COMPLETED = "retry-failed.png", "retry-completed.png"
RUN = "mounted"
RETRY_SECONDS = 120.0
"""The worker asks for flow runs every 10 s, and the page for their states."""


def fail_and_retry(running: Up, workplace: list[str], volume: Path, pictures: Path) -> tuple[str, list[LedgerEntry]]:
    """One iteration whose checkpoints go to another volume by a link: not mounted at first, mounted before Retry.

    Args:
        running: Prefect, Ray and a worker.
        workplace: what `tiny_training` gave.
        volume: a path where nothing is yet.
        pictures: where the graph is put as it failed, and as it completed.

    Returns:
        The flow run's id, and the ledger as the failure left it.
    """
    overrides = [*workplace, f"run={RUN}", "eval_steps=0", "save_steps=1"]
    store = store_of(overrides, RUN)
    store.directory.mkdir(parents=True)
    (store.directory / "checkpoints").symlink_to(volume)
    flow_run = running.start_deployment(overrides)
    wait_until(lambda: running.state_of(flow_run) in ("FAILED", "COMPLETED", "CRASHED"), "the flow run is over")
    ledger = store.ledger()
    with opened(f"{running.services.ui_url}/runs/flow-run/{flow_run}", {"width": 1280, "height": 500}) as page:
        _picture(page, "Failed", pictures / FAILED)
        volume.mkdir()
        page.get_by_role("button", name="Retry").click()
        page.get_by_role("dialog").get_by_role("button", name="Retry").click()
        _state(page, "Completed", RETRY_SECONDS)
        page.reload()
        _picture(page, "Completed", pictures / COMPLETED)
    return flow_run, ledger


def _picture(page: Page, state: str, path: Path) -> None:
    """The page once its graph, whose nodes only a picture shows, stands still."""
    _state(page, state, seconds=20.0)
    page.wait_for_load_state("networkidle")
    before, now = b"", page.screenshot()
    while now != before:
        time.sleep(1.0)
        before, now = now, page.screenshot()
    path.write_bytes(now)


def _state(page: Page, state: str, seconds: float) -> None:
    expect(page.locator(".state-badge")).to_have_text(state, timeout=1000 * seconds)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        model = save_tiny_llama(directory / "model", tokenizer_from=smollm2_directory(), seed=0)
        with up(directory / "cache") as running:
            fail_and_retry(running, tiny_training(directory, model), directory / "volume", REPOSITORY / "docs")


if __name__ == "__main__":
    main()
