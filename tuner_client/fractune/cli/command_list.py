"""The commands of `fractune`: the module of each, its heading in `--help`, and an example."""

from typing import NamedTuple


class Entry(NamedTuple):
    """A command. Its summary is the first sentence of its docstring."""

    heading: str
    module: str
    """below `fractune.cli.commands`; it defines a function of the command's name, or the Typer `app` of a group"""
    example: str


GROUPS = frozenset({"log", "admin", "mps", "slurm"})
"""commands with subcommands"""

_TUNE, _JOBS, _ANALYSIS, _FLEET = "Tune and run", "Jobs and the log", "Analysis", "Fleet"

COMMANDS = {
    "tune": Entry(_TUNE, "models.tune", "fractune tune model.onnx --shares cpu:1,cpu:2"),
    "inspect": Entry(_TUNE, "models.inspect", "fractune inspect model.onnx"),
    "run": Entry(_TUNE, "models.run", "fractune run model.fractune --share cpu:1"),
    "bundle": Entry(_TUNE, "models.bundle", "fractune bundle model.onnx --shares cpu:1"),
    "compete": Entry(_TUNE, "models.compete", "fractune compete model.fractune --model model.onnx"),
    "join": Entry(_TUNE, "models.join", "fractune join short.fractune long.fractune --out model.fractune"),
    "fuse": Entry(_TUNE, "models.fuse", "fractune fuse red.onnx green.onnx --out both.onnx"),
    "pack": Entry(_TUNE, "models.packs", "fractune pack model.onnx --candidates 48 --out model.pack"),
    "measure": Entry(_TUNE, "models.packs", "fractune measure model.pack --shares cpu:1 --public-key public.pem"),
    "jobs": Entry(_JOBS, "jobs.jobs", "fractune jobs --server tuner:50051"),
    "show": Entry(_JOBS, "jobs.jobs", "fractune show 4f1c9a02d7e8 --operators"),
    "watch": Entry(_JOBS, "jobs.jobs", "fractune watch 4f1c9a02d7e8"),
    "cancel": Entry(_JOBS, "jobs.jobs", "fractune cancel 4f1c9a02d7e8"),
    "cost": Entry(_JOBS, "jobs.cost", "fractune cost --since 7d"),
    "retune": Entry(_JOBS, "jobs.retune", "fractune retune --shares cpu:4"),
    "log": Entry(_JOBS, "jobs.log", "fractune log show --share cpu:1 --fastest"),
    "diff": Entry(_ANALYSIS, "jobs.diff", "fractune diff 4f1c9a02d7e8 b2c07d11e6a4"),
    "match": Entry(_ANALYSIS, "jobs.log", "fractune match model.onnx --share cpu:2"),
    "matrix": Entry(_ANALYSIS, "models.matrix", "fractune matrix model.onnx --shares cpu:1,cpu:2"),
    "knee": Entry(_ANALYSIS, "models.knee", "fractune knee model.onnx --shares cpu:1,cpu:2,cpu:4"),
    "fit": Entry(_ANALYSIS, "models.fit", "fractune fit model.onnx --rate 18/s --p99 50ms"),
    "pair": Entry(_ANALYSIS, "models.pair", "fractune pair a.fractune b.fractune --overlap cpu:2"),
    "plan": Entry(_ANALYSIS, "models.plan", "fractune plan plan.toml"),
    "noise": Entry(_ANALYSIS, "fleet.noise", "fractune noise --share cpu:1"),
    "up": Entry(_FLEET, "fleet.up", "fractune up --shares cpu:1,cpu:2"),
    "dashboard": Entry(_FLEET, "fleet.dashboard", "fractune dashboard --server tuner:50051"),
    "server": Entry(_FLEET, "fleet.launch", "fractune server --redis redis://localhost:6379/0"),
    "worker": Entry(_FLEET, "fleet.launch", "fractune worker --role build --redis redis://tuner:6379/0"),
    "node": Entry(_FLEET, "fleet.launch", "fractune node --shares cpu:1,cpu:2 --redis redis://tuner:6379/0"),
    "slurm": Entry(_FLEET, "fleet.slurm", "fractune slurm script --nodes 4 --time 4:00:00 --state ~/fleet"),
    "workers": Entry(_FLEET, "jobs.jobs", "fractune workers --server tuner:50051"),
    "shares": Entry(_FLEET, "machine.shares", "fractune shares --prove"),
    "mps": Entry(_FLEET, "machine.mps", "fractune mps start"),
    "doctor": Entry(_FLEET, "machine.doctor", "fractune doctor"),
    "health": Entry(_FLEET, "fleet.health", "fractune health --server tuner:50051"),
    "admin": Entry(_FLEET, "fleet.admin", "fractune admin token create ci --scope submit --out token"),
    "completion": Entry(_FLEET, "fleet.completion", "fractune completion bash"),
}
