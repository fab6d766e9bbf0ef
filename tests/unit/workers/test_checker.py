"""The call that checks a bundle: what a child's end and a hostile child's answer mean."""

from pathlib import Path
from typing import Any

import pytest

from fractune_core.errors import BadRequest, OutputsDiffer
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import Checked
from fractune_core.files.manifests import checked_of
from fractune_workers.child.errors import ChildDied, ChildTimeout, LimitMet
from fractune_workers.reader import CHECKING_CHILD, check_bundle, reader_child, write_checked
from tests.support.paths import REPOSITORY
from tests.support.real_bundle import Small


class Answering:
    """A child that answers so, or raises so."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def call(self, method: str, _timeout_s: float, **_payload: Any) -> Any:
        assert method == "check"
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def asked(answer: Any) -> Any:
    child: Any = Answering(answer)
    return check_bundle(child, Path("b"), Path("m"), {})


@pytest.mark.parametrize("error", [ChildDied("it crashed"), ChildTimeout("no answer"), LimitMet("too much memory")])
def test_a_child_that_ends_has_compared_nothing(error: Exception) -> None:
    found = asked(error)
    assert not found.sets
    assert str(error) in found.line


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        [],
        {"checked": 1},
        {"checked": {"reference": 3}},
        {"checked": {"sets": {"random": float("nan")}}},
        {"checked": {"ranges": {"x": [3, 2]}}},
        {"checked": {"ranges": {"x": [-1, 2]}}},
        {"checked": {"ranges": {"a\x1b[2J": [0, 2]}}},
        {"checked": {"sets": {"a\x1b[2J": 0.0}}},
        {"differs": 3},
    ],
)
def test_a_hostile_answer_is_no_result(answer: Any) -> None:
    assert "gave no result" in asked(answer).line


def test_a_difference_and_wrong_arrays_are_errors() -> None:
    with pytest.raises(OutputsDiffer, match="the first node"):
        asked({"differs": "the first node"})
    with pytest.raises(BadRequest):
        asked(BadRequest("arrays"))


def test_the_real_child_reads_model_and_bundle_in_its_sandbox(small: Small, tmp_path: Path) -> None:
    model, bundle = small.model, small.bundle
    scratch, secret = tmp_path / "scratch", tmp_path / "secret"
    scratch.mkdir()
    secret.write_text("a secret")
    env = {"PYTHONPATH": str(REPOSITORY)}
    child = reader_child(CHECKING_CHILD, model=model, own_dir=scratch, also=[bundle], hidden=[secret], env=env)
    try:
        found = check_bundle(child, bundle, model, {})
        assert not [each for each in child.lacking if "it can" in each]
    finally:
        child.stop()
    assert list(found.sets) == ["random", "random above zero", "zeros"]
    assert found.variants == ("cpu:1", "cpu:2", "untuned")
    write_checked(bundle, tmp_path / "written", found)
    written = Bundle(tmp_path / "written")
    assert checked_of(written.manifest) == found
    written.verify()
    assert checked_of(Bundle(bundle).manifest) is None
    write_checked(bundle, tmp_path / "other", Checked(reason="why"))
    assert checked_of(Bundle(tmp_path / "other").manifest) == Checked(reason="why")
