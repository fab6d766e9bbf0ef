"""The Prometheus counter of docs/cpu-limits.md, scraped from a process that a real limit stops."""

import re
import textwrap
from pathlib import Path

from tests.support.hardware.real_cgroup import capped_cgroup
from tests.support.paths import REPOSITORY
from tests.support.real_bundle import compile_small

_PAGE = (REPOSITORY / "docs" / "cpu-limits.md").read_text(encoding="utf-8")
_START = "start_http_server(9100)"
_SERVE = """
import urllib.request
import fractune

model = fractune.load({bundle!r})
inputs = model.random_inputs()
while not model.throttled:
    model.run(inputs)
{example}
with urllib.request.urlopen(f"http://127.0.0.1:{{server.server_port}}/metrics", timeout=10) as answer:
    print(answer.read().decode())
"""


def test_the_counter_of_the_page(tmp_path: Path) -> None:
    found = re.search(r"^    from prometheus_client import .*?(?=^\S)", _PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    example = textwrap.dedent(found.group())
    assert _START in example
    _, bundle = compile_small(tmp_path)
    with capped_cgroup(cores=0.3) as cgroup:
        started = example.replace(_START, "server, _ = start_http_server(0, '127.0.0.1')")
        metrics = cgroup.run(_SERVE.format(bundle=str(bundle), example=started))
    assert "# TYPE model_throttled_seconds_total counter" in metrics
    (counted,) = re.findall(r"^model_throttled_seconds_total (\S+)$", metrics, re.MULTILINE)
    assert float(counted) > 0
