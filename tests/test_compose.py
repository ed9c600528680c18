"""Composition of a run's configuration, and what is said of a wrong one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rlcore.compose import REPOSITORY, compose, dump, load
from rlcore.config import Config
from rlcore.config_errors import ConfigError

CONFIGS = REPOSITORY / "configs"
PRESETS = sorted(file.stem for file in CONFIGS.glob("*.yaml"))
OPTIONS = sorted(f"{file.parent.name}={file.stem}" for file in CONFIGS.glob("*/*.yaml"))


def refusal(*overrides: str, name: str = "arithmetic") -> str:
    with pytest.raises(ConfigError) as caught:
        compose(name, overrides)
    return str(caught.value)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory outside the repository with an empty configs/."""
    (tmp_path / "configs").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid(name: str) -> None:
    config = compose(name)
    assert config.run == name
    assert all(Path(path).is_relative_to(CONFIGS / "data") for path in config.data.train + config.data.held_out)


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_every_group_is_valid(option: str) -> None:
    assert isinstance(compose("arithmetic", [option]), Config)


def test_the_common_case_fits_in_60_lines() -> None:
    assert len((CONFIGS / "arithmetic.yaml").read_text().splitlines()) <= 60


def test_a_reference_model_is_used_where_a_preset_has_a_kl_term() -> None:
    used = {name: compose("arithmetic", [f"algorithm={name}"]).algorithm.uses_reference for name in ("grpo", "grpo_kl")}
    assert used == {"grpo": False, "grpo_kl": True}
    assert compose("arithmetic", ["algorithm=reinforce"]).algorithm.init_kl_coef > 0


def test_overrides_win_over_files_and_later_ones_over_earlier_ones() -> None:
    config = compose(
        "arithmetic", ["iterations=50", "algorithm.kl_loss_coef=0.5", "algorithm=grpo_kl", "iterations=60"]
    )
    assert (config.iterations, config.algorithm.kl_loss_coef) == (60, 0.5)


def test_an_override_sets_a_key_that_no_file_mentions() -> None:
    assert compose("arithmetic", ["algorithm.dual_clip=3.0", "tracking.wandb=off"]).algorithm.dual_clip == 3.0


def test_a_number_is_a_name_for_a_run() -> None:
    assert compose("arithmetic", ["run=7"]).run == "7"


def test_a_dumped_configuration_loads_as_the_same_one(tmp_path: Path) -> None:
    config = compose("mixed", ["algorithm=grpo_kl", "tracking.wandb=off", "trainer.learning_rate=3e-7"])
    file = tmp_path / "config.yaml"
    file.write_text(dump(config))
    assert load(dump(config)) == load(file) == config


def test_loading_names_the_file_and_the_key(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(dump(compose("arithmetic")).replace("gamma:", "gama:"))
    with pytest.raises(
        ConfigError, match=r"config\.yaml:\n  algorithm\.gama: unknown key; did you mean algorithm\.gamma"
    ):
        load(file)
    with pytest.raises(ConfigError, match="not valid YAML"):
        load("a: [")


def test_an_unknown_key_is_refused_with_its_path_its_origin_and_the_nearest_key() -> None:
    assert "seeed (override seeed=3): unknown key; did you mean seed?" in refusal("seeed=3")
    assert (
        "rollout.rollout_batch_sise (override rollout.rollout_batch_sise=32): unknown key; "
        "did you mean rollout.rollout_batch_size?"
    ) in refusal("rollout.rollout_batch_sise=32")
    assert "rolout (override rolout.temperature=1): unknown key; did you mean rollout?" in refusal(
        "rolout.temperature=1"
    )
    assert "did you mean rewards.music.grader?" in refusal("rewards.music.gradr=math")


def test_a_key_of_another_section_is_found() -> None:
    assert "did you mean rollout.rollout_batch_size?" in refusal("rollout_batch_size=32")


def test_a_key_like_no_other_is_refused_with_all_that_are_there() -> None:
    assert "there are: async_ratio, domain_quotas, extra_prompts, filter, inter" in refusal("rollout.zzz=1")


def test_an_unknown_key_in_a_file_is_refused_with_its_line(project: Path) -> None:
    (project / "configs/mine.yaml").write_text("defaults:\n  - arithmetic\n  - _self_\n\nrollout:\n  tempratur: 0.9\n")
    assert "rollout.tempratur (configs/mine.yaml:6): unknown key; did you mean rollout.temperature?" in refusal(
        name="mine"
    )


def test_a_wrong_value_in_a_group_file_is_refused_with_its_line(project: Path) -> None:
    (project / "configs/algorithm").mkdir()
    (project / "configs/algorithm/mine.yaml").write_text("adv_estimator: grpo\npolicy_loss: ppoo\n")
    (project / "configs/run.yaml").write_text("defaults:\n  - arithmetic\n  - override algorithm: mine\n  - _self_\n")
    problem = "algorithm.policy_loss (configs/algorithm/mine.yaml:2): no policy loss 'ppoo'; did you mean 'ppo'? there "
    assert problem in refusal(name="run")


def test_a_wrong_value_is_refused_with_what_is_allowed() -> None:
    assert (
        "algorithm.loss_agg_mode (override algorithm.loss_agg_mode=mean): 'mean' is not one of 'token-mean', "
        in refusal("algorithm.loss_agg_mode=mean")
    )
    assert "trainer.learning_rate (override trainer.learning_rate=-1): -1 is refused; " in (
        text := refusal("trainer.learning_rate=-1")
    )
    assert "greater than 0" in text
    assert "iterations (override iterations=many): 'many' is refused" in refusal("iterations=many")
    assert "'a/b' is refused" in refusal("run=a/b")
    assert "trainer (override trainer=5): 5 is not a section with the keys learning_rate, " in refusal("trainer=5")


def test_all_problems_are_told_at_once() -> None:
    text = refusal("seeed=3", "rollout.temperature=0", "algorithm.loss_agg_mode=mean")
    assert [line.split()[0] for line in text.splitlines()[1:]] == [
        "rollout.temperature",
        "algorithm.loss_agg_mode",
        "seeed",
    ]


def test_probabilities_that_do_not_sum_to_one_are_refused_with_their_sum() -> None:
    text = refusal("data.domain_interleave_probs.format=0.15", name="mixed")
    assert "must sum to 1, but arithmetic 0.5 + reasoning_gym 0.25 + format 0.15 = 0.9" in text
    assert "override data.domain_interleave_probs.format=0.15" in text


def test_a_domain_without_a_grader_is_refused() -> None:
    text = refusal("data.domain_interleave_probs={arithmetic: 0.5, music: 0.5}")
    assert "no grader for domain music: add it under rewards (there: arithmetic)" in text


def test_an_unknown_configuration_is_refused_with_those_that_are_there() -> None:
    assert refusal(name="aritmetic") == (
        f"no configuration 'aritmetic'; did you mean arithmetic? there are: {', '.join(PRESETS)}"
    )


def test_an_unknown_option_is_refused_with_those_that_are_there(project: Path) -> None:
    assert "no algorithm 'gropo'; did you mean grpo? there are: cispo, dapo, " in refusal("algorithm=gropo")
    (project / "configs/mine.yaml").write_text("defaults:\n  - hardware: cpuu\n")
    assert "no hardware 'cpuu'; did you mean cpu?" in refusal(name="mine")


@pytest.mark.parametrize(
    "override",
    ["iterations", "iterations=1,2", "iterations=[1", "=3", "hydra.run.dir=x", "algorithm@model=grpo", "a b"],
)
def test_an_override_of_another_form_is_refused_with_the_forms_there_are(override: str) -> None:
    assert refusal(override).startswith(f"override {override!r} ")
    assert "write key=value" in refusal(override)


def test_a_section_of_values_is_no_option_of_a_group() -> None:
    assert "algorithm takes the name of an option" in refusal("algorithm={gamma: 1}")


def test_a_value_that_cannot_be_resolved_is_refused_with_its_key() -> None:
    assert "model.path: " in (text := refusal("model.path=${oc.env:RLVR_NO_SUCH_VARIABLE}"))
    assert "RLVR_NO_SUCH_VARIABLE" in text
    assert "iterations: Interpolation key 'nowhere' not found" in refusal("iterations=${nowhere}")


def test_a_file_that_is_not_yaml_is_refused_with_its_name_and_line(project: Path) -> None:
    (project / "configs/broken.yaml").write_text("defaults:\n  - arithmetic\nrun: [1\nseed: 2\n")
    text = refusal(name="broken")
    assert "broken.yaml" in text
    assert "line 4" in text


def test_the_working_directory_comes_before_the_repository(project: Path) -> None:
    (project / "configs/arithmetic.yaml").write_text((CONFIGS / "arithmetic.yaml").read_text().replace("30", "31"))
    assert compose("arithmetic").iterations == 31


def test_a_project_adds_an_option_to_a_configuration_of_the_repository(project: Path) -> None:
    (project / "configs/hardware").mkdir()
    (project / "configs/hardware/mine.yaml").write_text("trainer_threads: 5\nengine_threads: 3\n")
    assert compose("arithmetic", ["hardware=mine"]).hardware.trainer_threads == 5


def test_a_project_adds_a_group_that_its_configuration_does_not_list(project: Path) -> None:
    lines = [line for line in (CONFIGS / "arithmetic.yaml").read_text().splitlines() if "algorithm:" not in line]
    (project / "configs/mine.yaml").write_text("\n".join(lines))
    assert compose("mine", ["algorithm=reinforce"]).algorithm.adv_estimator == "reinforce"


def test_relative_paths_are_those_of_the_working_directory_else_of_the_repository(project: Path) -> None:
    (project / "mine.jsonl").touch()
    config = compose("arithmetic", ["data.train=[mine.jsonl, pyproject.toml, nowhere.jsonl, 's3://bucket/x.jsonl']"])
    assert config.data.train == [
        str(project / "mine.jsonl"),
        str(REPOSITORY / "pyproject.toml"),
        str(project / "nowhere.jsonl"),
        "s3://bucket/x.jsonl",
    ]


def test_the_model_of_the_preset_is_the_one_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLVR_CACHE", str(tmp_path))
    assert compose("arithmetic").model.path == str(tmp_path / "models/SmolLM2-135M-Instruct")


@pytest.mark.parametrize("module", ["rlcore.config", "rlcore.compose"])
def test_configuration_is_read_without_the_engines(module: str) -> None:
    heavy = {"torch", "ray", "prefect", "vllm", "megatron", "transformers", "polars"}
    program = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert not heavy & set(loaded.stdout.split())


def test_a_process_that_composes_keeps_no_torch_and_knows_the_algorithms_all_the_same() -> None:
    program = (
        "import sys\n"
        "from rlcore.compose import compose\n"
        "from rlcore.config_errors import ConfigError\n"
        "compose('arithmetic')\n"
        "try:\n"
        "    compose('arithmetic', ['algorithm.policy_loss=ppoo'])\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert "no policy loss 'ppoo'; did you mean 'ppo'?" in done.stdout
    assert done.stdout.endswith("False\n")
