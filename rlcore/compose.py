"""A run's configuration out of YAML files and overrides: composed by Hydra, checked by pydantic.

`NAME.yaml` is looked for in `configs/` of the working directory, then in the repository's; the files that its defaults
list names (`algorithm/`, `model/`, `hardware/`) beside it, then in the other of the two. Relative paths of datasets
and of the model are taken from the working directory, or from the repository where they exist only there.
"""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from rlcore.config import AlgorithmConfig, Config
from rlcore.config_errors import ConfigError, Origin, describe, nearest
from rlcore.machine import cores, engines, fastest_dtype
from rlcore.pretrained import cache_directory

KEY = re.compile(r"(?!hydra\b)[A-Za-z_]\w*(\.[\w-]+)*")
DUMPED = ".dumped.yaml"
"""The file that a dumped configuration is composed from; not one that a user has written."""
REPOSITORY = Path(__file__).resolve().parent.parent

RESOLVERS = {
    "rlvr_cache": lambda: str(cache_directory()),
    "cores": cores,
    "engines": engines,
    "engine_threads": lambda: cores() // engines(),
    "fastest_dtype": fastest_dtype,
}
"""What a configuration file may ask of the machine that a run is started on: `${cores:}`."""

for _name, _resolver in RESOLVERS.items():
    OmegaConf.register_new_resolver(_name, _resolver, replace=True)


def compose(
    name: str, overrides: Sequence[str] = (), known: Callable[[Config], AlgorithmConfig | None] = lambda _: None
) -> Config:
    """The configuration `NAME.yaml`, changed by overrides of the form `key=value` or `group=option`, checked.

    Later overrides win over earlier ones, overrides over files, and `NAME.yaml` over its groups.

    Args:
        known: an algorithm that was checked before. It is not checked again, which takes seconds: it needs torch.

    Raises:
        ConfigError: no such configuration or option, a key that does not exist, a value that is not allowed, a file
            or override that cannot be read. Names every problem, with where it was written and what would be right.
    """
    # Where NAME.yaml is comes first: Hydra looks for the main file nowhere else.
    directories = sorted(_directories(), key=lambda path: not (path / f"{name}.yaml").is_file())
    if not any((path / f"{name}.yaml").is_file() for path in directories):
        presets = sorted({file.stem for path in directories for file in path.glob("*.yaml")})
        raise ConfigError(f"no configuration {name!r}; {nearest(name, presets)}")
    groups = _groups(directories)
    parsed = [_parse(override, groups) for override in overrides]
    return _compose_checked(f"configuration {name}", name, directories, groups, parsed, known)


def recompose(config: Config, overrides: Sequence[str], shown_as: str) -> Config:
    """A configuration that was composed before, changed by overrides as `compose` takes them, checked again.

    `group=option` replaces the group's section whole.

    Args:
        shown_as: what the configuration is called in errors.

    Raises:
        ConfigError: as `compose`.
    """
    directories = _directories()
    groups = _groups(directories)
    parsed = [_parse(line, groups) for line in overrides]
    replaced = groups & {line.key_or_group for line in parsed}
    with tempfile.TemporaryDirectory() as scratch:
        text = yaml.safe_dump(config.model_dump(mode="json", exclude=replaced))
        (Path(scratch) / DUMPED).write_text(text)
        places = [Path(scratch), *directories]
        return _compose_checked(shown_as, Path(DUMPED).stem, places, groups, parsed, lambda _: config.algorithm)


def _directories() -> list[Path]:
    """Where configurations and groups are looked for."""
    places = dict.fromkeys((Path.cwd() / "configs", REPOSITORY / "configs"))
    return [path for path in places if path.is_dir()]


def _groups(directories: Sequence[Path]) -> set[str]:
    return {group.name for path in directories for group in path.iterdir() if any(group.glob("*.yaml"))}


def dump(config: Config) -> str:
    """The whole configuration as YAML, defaults included; `load` reads it back."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def load(source: str | Path) -> Config:
    """A configuration that was dumped: YAML text, or the file at a Path.

    Raises:
        ConfigError: not YAML, an unknown key, or a value that is not allowed.
    """
    name = str(source) if isinstance(source, Path) else "configuration"
    text = source.read_text() if isinstance(source, Path) else source
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not valid YAML: {error}") from None
    return _validate(values, name, lambda path: None)


@dataclass(frozen=True)
class _File:
    """A file that went into the configuration, and the section that it filled."""

    path: Path
    section: tuple[str, ...]

    def line_of(self, key: tuple[str, ...]) -> int | None:
        """The line, from 1, where the file sets a key; None if it does not."""
        if key[: len(self.section)] != self.section:
            return None
        node, line = yaml.compose(self.path.read_text()), None
        for part in key[len(self.section) :]:
            pairs = node.value if isinstance(node, yaml.MappingNode) else []
            found = next((pair for pair in pairs if pair[0].value == part), None)
            if found is None:
                return None
            line, node = found[0].start_mark.line + 1, found[1]
        return line


def _compose_checked(
    shown_as: str,
    name: str,
    directories: Sequence[Path],
    groups: set[str],
    overrides: Sequence[Override],
    known: Callable[[Config], AlgorithmConfig | None],
) -> Config:
    try:
        values, files = _compose(name, directories, groups, overrides)
    except MissingConfigException as error:
        raise ConfigError(_describe_missing(error)) from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"not valid YAML: {error}") from None
    except OmegaConfBaseException as error:
        raise ConfigError(f"{shown_as}: {error.full_key}: {str(error).splitlines()[0]}") from None
    except HydraException as error:
        raise ConfigError(f"{shown_as}: {str(error).strip().splitlines()[0]}") from None
    settings = [override for override in overrides if override.key_or_group not in groups]
    origin = partial(_origin, settings, [file for file in files if file.path.name != DUMPED])
    config = _validate(values, shown_as, origin)
    if known(config) != config.algorithm:
        _check_algorithms(config, shown_as, origin)
    return _with_absolute_paths(config)


def _compose(
    name: str, directories: Sequence[Path], groups: set[str], overrides: Sequence[Override]
) -> tuple[Any, list[_File]]:
    """Hydra's composition: the resolved values, and the files they came from in order of precedence."""
    first, *others = directories
    search = [f"hydra.searchpath={[f'file://{path}' for path in others]}"]
    with initialize_config_dir(str(first), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()

        def chosen(lines: list[str]) -> list[ResultDefault]:
            defaults = loader.compute_defaults_list(name, lines, RunMode.RUN).defaults
            return [item for item in defaults if not (item.package or "").startswith("hydra")]

        listed = {str(item.config_path).rpartition("/")[0] for item in chosen(search)}
        lines = search + [_hydra_line(override, groups, listed) for override in overrides]
        values = OmegaConf.to_container(hydra_compose(name, lines), resolve=True, throw_on_missing=True)
        return values, [_file(item, directories) for item in chosen(lines)]


def _file(item: ResultDefault, directories: Sequence[Path]) -> _File:
    paths = [directory / f"{item.config_path}.yaml" for directory in directories]
    return _File(next(filter(Path.is_file, paths)), tuple(item.package.split(".") if item.package else ()))


def _parse(text: str, groups: set[str]) -> Override:
    """An override, its leading `+` left out: which keys exist is for `Config` to say.

    Raises:
        ConfigError: it is not of the form that `compose` takes.
    """
    shape = "write key=value, group=option, key=[a, b], ~key, or key='a value with blanks, ~ or commas'"
    try:
        override = OverridesParser.create().parse_override(text.lstrip("+"))
    except HydraException:
        raise ConfigError(f"override {text!r} cannot be read; {shape}") from None
    key = override.key_or_group
    if not KEY.fullmatch(key) or override.package is not None or override.is_sweep_override():
        raise ConfigError(f"override {text!r} is not of a form that is taken here; {shape}")
    if key in groups and not isinstance(override.value(), str):
        raise ConfigError(f"override {text!r}: {key} takes the name of an option; one of its keys is {key}.KEY=value")
    return override


def _hydra_line(override: Override, groups: set[str], listed: set[str]) -> str:
    """The override as Hydra wants it: `+` for a group that no defaults list names, `++` for a value."""
    key, line = override.key_or_group, str(override.input_line)
    if override.type is OverrideType.DEL or key in listed:
        return line
    return f"+{line}" if key in groups else f"++{line}"


def _describe_missing(error: MissingConfigException) -> str:
    group, _, option = str(error.missing_cfg_file).rpartition("/")
    return f"no {group or 'configuration'} {option!r}; {nearest(option, error.options or [])}"


def _origin(overrides: Sequence[Override], files: Sequence[_File], path: tuple[str, ...]) -> str | None:
    """Where a path was set: the last override of it, or the last file with it and the overrides below it."""
    keys = [(tuple(override.key_or_group.split(".")), f"override {override.input_line}") for override in overrides]
    covering = [line for key, line in keys if path[: len(key)] == key]
    if covering:
        return covering[-1]
    lines = [f"{_shown(file.path)}:{line}" for file in files if path and (line := file.line_of(path))]
    below = [line for key, line in keys if path and key[: len(path)] == path]
    return ", ".join([*lines[-1:], *below]) or None


def _shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _validate(values: Any, name: str, origin: Origin) -> Config:
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{name}:\n{describe(error, Config, origin)}") from None


def _check_algorithms(config: Config, name: str, origin: Origin) -> None:
    lines = []
    for key, problem in _algorithm_problems(config.algorithm):
        where = origin(("algorithm", *key.split(".")))
        lines.append(f"  algorithm.{key}{f' ({where})' if where else ''}: {problem}")
    if lines:
        raise ConfigError("\n".join([f"{name}:", *lines]))


def _algorithm_problems(algorithm: AlgorithmConfig) -> list[tuple[str, str]]:
    """As `rlcore.algorithm_check.problems`, which reads the algorithms themselves and so takes torch.

    A process that has no torch asks another one: a training would hold its 170 MB to the end.
    """
    if "torch" in sys.modules:
        from rlcore.algorithm_check import problems

        return problems(algorithm)
    command = [sys.executable, "-m", "rlcore.algorithm_check"]
    answer = subprocess.run(command, input=pickle.dumps(algorithm), stdout=subprocess.PIPE, check=True).stdout
    return [(key, problem) for key, problem in json.loads(answer)]


def _with_absolute_paths(config: Config) -> Config:
    data = {"train": [*map(_absolute, config.data.train)], "held_out": [*map(_absolute, config.data.held_out)]}
    model = {"path": _absolute(config.model.path)}
    critic = {"path": config.critic.path and _absolute(config.critic.path)}
    return config.model_copy(
        update={
            "data": config.data.model_copy(update=data),
            "model": config.model.model_copy(update=model),
            "critic": config.critic.model_copy(update=critic),
        }
    )


def _absolute(path: str) -> str:
    """A path as it is if absolute or a URL, else from the working directory, or from the repository if only there."""
    if "://" in path:
        return path
    local = Path(path).expanduser()
    candidates = [base / local for base in (Path.cwd(), REPOSITORY)]
    return str(next((candidate for candidate in candidates if candidate.exists()), candidates[0]))
