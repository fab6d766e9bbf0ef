"""The alert rules, checked and tested by Prometheus' own tool."""

import shutil
import subprocess

import pytest

from tests.support.paths import REPOSITORY


@pytest.mark.parametrize("what", [("check", "rules", "deploy/alerts.yml"), ("test", "rules", "deploy/alerts_test.yml")])
def test_promtool_finds_nothing_wrong_with_the_alert_rules(what: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here: `apt-get install prometheus` brings it")
    done = subprocess.run([promtool, *what], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout
