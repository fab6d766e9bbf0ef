"""The page of shares."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path

from fractune.local.noise_file import NOISE_FILE, advice_for, save_noise
from fractune.server.job_status import OfferedShare
from fractune_core.analysis.noise import NoiseAdvice
from fractune_core.codec.messages import to_proto
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_samples import DEVICE, granted
from tests.support.processes.scripted_server import ScriptedServer
from tests.unit.client.dashboard.conftest import serving_pages, until
from tests.unit.client.dashboard.pages.samples import Elements


def test_the_advice_of_noise_is_shown_for_the_shares_of_this_machine(server: ScriptedServer, tmp_path: Path) -> None:
    server.offered = [
        to_proto(OfferedShare(DEVICE, granted(share), 1), pb.OfferedShare) for share in ("cpu:1", "cpu:2")
    ]
    advice = NoiseAdvice(2, 1.4, builds_beside=True, tau=0.93, regret=0.012, measured_at=1.7e9)
    save_noise(tmp_path / NOISE_FILE, DEVICE.key, "cpu:1", advice)
    with serving_pages(server, advise=partial(advice_for, tmp_path)) as pages:
        assert pages.data("/shares")["advice"] == {"cpu:1": asdict(advice)}
        text = Elements(pages.page("/shares").text).text
        assert "cpu:121.4x of the fastest0.931.2 %yes" in text
        assert "cpu:211.25x of the fastest---not yet: the default" in text
        (tmp_path / NOISE_FILE).write_text("torn")
        until(lambda: "is damaged; delete it" in pages.page("/shares").text)
    with serving_pages(server) as pages:
        assert pages.data("/shares")["advice"] is None
        assert "it lies in the state folder of each machine" in pages.page("/shares").text
