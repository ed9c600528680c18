"""Writes the datasets that ship in configs/data: `python -m rlcore.data.generate DIR`.

Each has a train and a held-out file that share no prompt, and no problem in other words: where 3 + 4
is held out, 4 + 3 is not in training either. The same files every time, for the same version of reasoning-gym.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from rlcore.data.generate.arithmetic import arithmetic
from rlcore.data.generate.countdown import countdown
from rlcore.data.generate.format import format_following
from rlcore.data.generate.ifeval import ifeval
from rlcore.data.generate.multiple_choice import multiple_choice
from rlcore.data.generate.reasoning_gym import reasoning_gym_mix
from rlcore.data.generate.split import SEED


def write_all(directory: Path) -> None:
    """Write `DATASET.{train,held_out}.jsonl` for each."""
    directory.mkdir(parents=True, exist_ok=True)
    datasets = {
        "arithmetic": arithmetic(random.Random(SEED)),
        "countdown": countdown(random.Random(SEED)),
        "format": format_following(),
        "ifeval": ifeval(random.Random(SEED)),
        "multiple_choice": multiple_choice(random.Random(SEED)),
        "reasoning_gym": reasoning_gym_mix(),
    }
    for name, split in datasets.items():
        for part, rows in split._asdict().items():
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            (directory / f"{name}.{part}.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m rlcore.data.generate DIR")
    write_all(Path(sys.argv[1]))
