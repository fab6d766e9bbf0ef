"""The one version of Triton that the kernels are written for. Triton itself is not needed."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path

import pytest

from fractune_core.errors import FractuneError
from fractune_workers.children.triton_kernels import compiler
from tests.support.paths import REPOSITORY


def _with_triton(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "triton").mkdir()
    (folder / "triton" / "__init__.py").touch()
    about = folder / f"triton-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: triton\nVersion: {version}\n")
    monkeypatch.syspath_prepend(folder)


def test_a_machine_without_triton_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert not compiler.is_installed()
    with pytest.raises(
        FractuneError, match=r"has no Triton, and .* with Triton 3\.9\.0; pip install 'fractune\[triton\]'"
    ):
        compiler.load_triton()


def test_another_version_of_triton_is_skipped_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Hosts with PyTorch have one, with which each build would fail."""
    _with_triton(tmp_path, "3.6.0", monkeypatch)
    assert not compiler.is_installed()
    assert not compiler.is_installed()
    assert caplog.messages == ["Triton 3.6.0 is skipped: its kernels need Triton 3.9.0; pip install 'fractune[triton]'"]
    with pytest.raises(FractuneError, match=r"has Triton 3\.6\.0, and the candidate is built with Triton 3\.9\.0"):
        compiler.load_triton()


def test_the_version_is_that_of_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert f"triton=={compiler.VERSION}" in tomllib.loads(text)["project"]["optional-dependencies"]["triton"]
    _with_triton(tmp_path, compiler.VERSION, monkeypatch)
    assert compiler.is_installed()
