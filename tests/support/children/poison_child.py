"""The child of a measurer on the poisonous device: its "machine code" is JSON that says what the kernel does.

`{"id": 7, "do": "good", "secs": 0.01}`, or what else `PoisonedChild` has a method for.
"""

import ctypes
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from fractune_core.analysis.roofline import Roof
from fractune_core.shares import Device, Share
from tests.support.children.poison import PoisonConfinement

LAUNCH_S = 3e-6
"""of an empty kernel"""
_LOOK_EVERY_S = 0.002
_PR_SET_DUMPABLE = 4


class PoisonedChild:
    def __init__(self, confinement: PoisonConfinement) -> None:
        self._confinement = confinement
        self._device = confinement.device
        self._kernels: dict[str, dict[str, Any]] = {}
        self._reference: str | None = None

    def device_info(self) -> dict[str, Any]:
        return {
            "device": Device("cuda", "poison", 100, 8, 1, "a poisonous device").to_json(),
            "granted": self._confinement.verify().to_json(),
            "target": '{"kind":"cuda"}',
            "versions": {"tvm": "none"},
        }

    def anchor(self) -> float:
        self._run({"id": "anchor", "do": "good"})
        return 1.0

    def roof(self) -> dict[str, Any]:
        self._run({"id": "launch", "do": "good"})
        return Roof(0.0, 0.0, 0, LAUNCH_S).to_json()

    def begin(self, args_info: list[Any], seed: int) -> None:
        del args_info, seed
        self._kernels.clear()
        self._reference = None

    def load(self, name: str, code: bytes, implementation: str = "") -> None:
        del implementation
        self._kernels[name] = json.loads(code)

    def race(
        self, code: bytes, policies: list[dict[str, Any]], bar_s: float, implementation: str = ""
    ) -> dict[str, Any]:
        del implementation
        del bar_s
        self._run(json.loads(code))
        return {"policy": policies[0], "run_secs": [1e-3] * 3}

    def check(self, name: str) -> dict[str, float]:
        self._device.note("checked", name)
        kernel = self._kernels[name]
        self._run({**kernel, "do": "good"} if kernel["do"] == "crash_while_interleaved" else kernel)
        self._reference = self._reference or name
        error = 0.0 if name == self._reference else 1e-6
        return {"max_error": error, "beyond_ties": error, "steps": 0, "moved": 0.0, "allowed": 1e-3}

    def time_interleaved(self, names: Sequence[str], policy: dict[str, Any], reference: str) -> dict[str, Any]:
        del reference
        self._device.note("interleaved", " ".join(sorted(names)))
        for name in names:
            self._run(self._kernels[name])
        run_secs = dict.fromkeys(names, [1e-3] * policy["repeats"])
        return {"policy": dict.fromkeys(names, policy), "run_secs": run_secs, "cpu_secs": dict.fromkeys(names)}

    def time_model(self, path: str, repeats: int, own: str) -> dict[str, Any]:
        del path, own
        self._run({"id": "model", "do": "good"})
        return {
            "run_secs": {"untuned": [1e-2] * repeats},
            "max_error": {"untuned": 0.0},
            "at_load": [],
            "others_cores": 0.0,
            "inside": None,
        }

    def _run(self, kernel: dict[str, Any]) -> None:
        self._device.note("runs", str(kernel["id"]))
        with self._device.busy(os.getpid()):
            getattr(self, "_" + kernel["do"])(kernel)

    def _good(self, kernel: dict[str, Any]) -> None:
        until = time.monotonic() + kernel.get("secs", 0.0)
        while True:
            if self._device.poisoned.exists():
                raise RuntimeError("unspecified launch failure")
            if time.monotonic() >= until:
                return
            time.sleep(_LOOK_EVERY_S)

    def _crash(self, kernel: dict[str, Any]) -> None:
        self._note_fault(kernel)
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)  # a dump may take its helper longer than a trial may last
        os.kill(os.getpid(), signal.SIGSEGV)

    _crash_while_interleaved = _crash

    def _until_let_go(self, _kernel: dict[str, Any]) -> None:
        while not self._device.let_go.exists():
            time.sleep(_LOOK_EVERY_S)

    def _poison(self, kernel: dict[str, Any]) -> None:
        self._note_fault(kernel)
        self._device.poisoned.touch()
        raise RuntimeError("an illegal memory access was encountered")

    def _note_fault(self, kernel: dict[str, Any]) -> None:
        self._device.note("faults", f"{kernel['id']} {self._device.neighbours(os.getpid())}")

    def _fail(self, _kernel: dict[str, Any]) -> None:
        raise ValueError("invalid launch configuration")

    def _sneak(self, _kernel: dict[str, Any]) -> None:
        self._device.poisoned.touch()

    def _hang(self, _kernel: dict[str, Any]) -> None:
        while True:
            signal.pause()


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    share, units = args
    confinement = PoisonConfinement(Share.parse(share), [int(unit) for unit in units.split(",") if unit])
    confinement.enter()
    child = PoisonedChild(confinement)
    names = ("device_info", "anchor", "roof", "begin", "load", "race", "check", "time_interleaved", "time_model")
    return {name: getattr(child, name) for name in names}
