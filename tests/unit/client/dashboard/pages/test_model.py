"""A model: its operators at a share, its knee, its shapes."""

from __future__ import annotations

import html
import json
import re

from fractune_core.pb import fractune_pb2 as pb
from tests.support.processes.scripted_server import ScriptedServer
from tests.unit.client.dashboard.conftest import Pages, until
from tests.unit.client.dashboard.pages.samples import Elements


def test_a_model_shows_what_its_operators_use_at_a_share(pages: Pages, server: ScriptedServer) -> None:
    path = f"/models/{server.script[-1].spec.model.removeprefix('models/')}"
    assert pages.data(path)["match"]["share"] == "cpu:1"
    assert pages.data(f"{path}?share=cpu:2")["match"]["operators"][0]["operator"] == "conv"
    text = pages.page(f"{path}?share=cpu:2").text
    assert "What each operator uses at cpu:2" in text
    assert "no published record" in text
    assert "share &#39;gpu&#39;" in pages.page(f"{path}?share=gpu").text


def test_a_model_shows_its_knee_as_a_curve_and_is_fitted_in_place(pages: Pages, server: ScriptedServer) -> None:
    path = f"/models/{server.script[-1].spec.model.removeprefix('models/')}"
    page = pages.page(path).text
    assert "fractune fit ./m.fractune --rate 18/s --p99 50ms --verify" in page
    knee, *_ = [json.loads(html.unescape(each)) for each in re.findall(r'data-chart="([^"]+)"', page)]
    assert [(each["label"], each["style"]) for each in knee["series"]][-2:] == [("measured", "dots"), ("knee", "dots")]
    assert [each["knee_units"] for each in pages.data(path)["knee"]] == [2]
    assert pages.data(path)["fit"] is None
    fitted = pages.page(f"{path}?rate=5/s&p99=500ms").text
    assert "--rate 5/s --p99 500ms" in fitted
    assert "limits:" in fitted
    assert pages.data(f"{path}?rate=5/s&p99=500ms")["fit"]["alternatives"]
    assert "hx-get" not in fitted, "a live page would compute it again and again"


def test_a_model_that_no_job_has_is_not_found(pages: Pages) -> None:
    assert pages.page("/models/unknown").status == 404
    assert pages.data("/models/unknown")["error"] == "NotFound"


def test_a_model_shows_its_knee_its_shapes_and_other_files_of_its_name(pages: Pages, server: ScriptedServer) -> None:
    newest = server.script[-1]
    for number, model in ((2, newest.spec.model), (3, "models/other")):
        job = pb.Job()
        job.CopyFrom(newest)
        job.name, job.spec.model = f"jobs/j{number}", model
        job.spec.inputs["ids"].dims.extend([1, 16 * number])
        server.script.append(job)
    path = f"/models/{newest.spec.model.removeprefix('models/')}"
    until(lambda: "Other files of this name" in pages.page(path).text)
    text = Elements(pages.page(path).text).text
    assert "The knee" in text
    assert "ids 1x32" in text
    assert [each["name"] for each in pages.data(path)["other_files"]] == ["jobs/j3"]
    assert "ids 1x48" in Elements(pages.page("/").text).text
