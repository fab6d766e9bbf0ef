"""A bundle that serves more than the new one, or another kind of file, is replaced on demand only."""

import contextlib
import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fractune_core.errors import BadRequest, StateUnusable
from fractune_core.files.bundles import JOINED_FORMAT, Bundle, write_bundle
from fractune_core.files.compared import MODEL, ONNX_RUNTIME, Compared, Runtime, Timed
from fractune_core.files.new_bundle import NewBundle, Serves
from fractune_core.files.sealed import MANIFEST
from tests.support.client_samples import bundle_at, bundle_bytes

SHARES = ["cpu:1", "cpu:4"]
SHAPE = {"data": [1, 3]}


def timed_beside(ratio: tuple[float, float, float]) -> dict[str, Any]:
    """The fields of a bundle that was timed beside ONNX Runtime at cpu:1."""
    times = {"fractune": Timed(1.0, 1.0), ONNX_RUNTIME: Timed(1.0, 1.0, ratio, ratio)}
    return {
        "compared": {"cpu:1": Compared(times).to_json()},
        "runtimes": {ONNX_RUNTIME: Runtime("1.0", {}).to_json()},
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A bundle for cpu:1 and cpu:4."""
    (tmp_path / "m.fractune").write_bytes(bundle_bytes())
    return tmp_path / "m.fractune"


@pytest.mark.parametrize(
    ("shares", "shape", "lost"),
    [
        (SHARES, {}, ""),
        ([*SHARES, "cpu:2"], SHAPE, ""),
        (["cpu:4"], SHAPE, "the share cpu:1"),
        (SHARES, {"data": [2, 3]}, "the shape data 1x3"),
        (["cpu:2"], {"data": [2, 3]}, "the share cpu:1 and the share cpu:4 and the shape data 1x3"),
    ],
)
def test_what_would_be_lost_is_named_with_both_remedies(
    path: Path, shares: list[str], shape: dict[str, list[int]], lost: str
) -> None:
    new = Serves(shares, [shape])
    NewBundle(path, force=True).check(new)
    NewBundle(path.with_name("none.fractune")).check(new)
    if not lost:
        NewBundle(path).check(new)
        return
    with pytest.raises(BadRequest, match=rf"{path} is a bundle, .* without {lost}; .*--out, or pass --force"):
        NewBundle(path).check(new)


def newer(data: bytes) -> bytes:
    """A bundle of a later version, with the digest of its manifest."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        manifest = {**json.loads(archive.read(MANIFEST)), "format": JOINED_FORMAT + 1}
    file = io.BytesIO()
    write_bundle(file, manifest, {})
    return file.getvalue()


@pytest.mark.parametrize(
    ("held", "why"),
    [(b"torn", "not a fractune bundle"), (b"", "not a fractune bundle"), (newer(bundle_bytes()), "of a newer format")],
)
def test_a_file_that_is_no_bundle_or_a_newer_one_stays(path: Path, held: bytes, why: str) -> None:
    path.write_bytes(held)
    says = rf"{path} is no bundle that this version can read \(.*{why}.*\); name .* with --out, or pass --force"
    with pytest.raises(BadRequest, match=says):
        NewBundle(path).check(Serves([], []))
    with pytest.raises(BadRequest, match=says), NewBundle(path).writing() as file:
        file.write(bundle_bytes())
    assert path.read_bytes() == held
    with NewBundle(path, force=True).writing() as file:
        file.write(bundle_bytes())
    assert path.read_bytes() == bundle_bytes()


def test_a_link_is_replaced_and_what_it_names_stays(path: Path) -> None:
    """It is judged by the bundle that it names."""
    before, link = path.read_bytes(), path.with_name("link.fractune")
    link.symlink_to(path)
    with pytest.raises(BadRequest, match="the share cpu:1"):
        NewBundle(link).check(Serves(["cpu:4"], [SHAPE]))
    with NewBundle(link, force=True).writing() as file:
        file.write(bundle_at(1))
    assert not link.is_symlink()
    assert path.read_bytes() == before
    link.unlink()
    link.symlink_to(path.with_name("none.fractune"))
    NewBundle(link).check(Serves([], []))


def test_a_folder_or_a_pipe_stays(path: Path) -> None:
    path.unlink()
    path.mkdir()
    with pytest.raises(BadRequest, match="this is a folder"):
        NewBundle(path).check(Serves([], []))
    with pytest.raises(StateUnusable), NewBundle(path, force=True).writing() as file:
        file.write(bundle_bytes())
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(BadRequest, match="no bundle that this version can read"):
        NewBundle(path).check(Serves([], []))


def test_the_bundle_there_stays_as_it_was_when_the_new_one_serves_less(path: Path) -> None:
    before, less = path.read_bytes(), bundle_at(1)
    with pytest.raises(BadRequest, match="the share cpu:4"), NewBundle(path).writing() as file:
        file.write(less)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    with NewBundle(path, force=True).writing() as file:
        file.write(less)
    assert path.read_bytes() == less


def test_a_runtime_is_lost_where_it_was_faster_unless_it_is_timed_again(path: Path) -> None:
    made = path.with_name("made.fractune")
    made.write_bytes(bundle_bytes())
    for ratio in (0.5, 2.0):
        with contextlib.closing(Bundle(made)) as bundle, path.open("wb") as file:
            bundle.copy_to(file, extra={MODEL: b"model"}, format=4, **timed_beside((ratio, ratio - 0.1, ratio + 0.1)))
        if ratio < 1:  # it serves nothing
            NewBundle(path).check_made(made)
    with pytest.raises(BadRequest, match="would be without onnxruntime, which serves where it is faster; name another"):
        NewBundle(path).check_made(made)
    NewBundle(path, runtimes=frozenset({ONNX_RUNTIME})).check_made(made)
    NewBundle(path).check(Serves(SHARES, [SHAPE]))  # it is not known yet which runtimes will serve
