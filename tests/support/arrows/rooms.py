"""The rooms of the design and the arrows between them: who may import what."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Room:
    """What the modules of one package may import beside the standard library and the package itself."""

    imports: frozenset[str]
    """packages and other rooms, allowed anywhere"""
    lazily: frozenset[str]
    """allowed inside functions and under TYPE_CHECKING only, so that importing the room does not load them"""


SOURCES = {
    "fractune_core": "tuner_core",
    "fractune_server": "tuner_server",
    "fractune_workers": "workers",
    "fractune": "tuner_client",
    "fractune_runtime": "tuner_runtime",
}
"""the source root of each package"""

GRPC_STUBS = "fractune_core.pb.fractune_pb2_grpc"

# `ROOM: what it may import | what it may import lazily`, in which a name that begins with a dot is in the package of
# the section, and one in capitals stands for several. A room inside a room stands for itself: neither may import the
# other unless it says so. A single module that is a room of its own (`.child`) may be imported where its package may
# not.
_TABLE = """
GRPC_STUBS: fractune_core.pb.fractune_pb2_grpc
# What every room of core that is made of the words of the domain may import.
WORDS: fractune_core fractune_core.codec fractune_core.errors
CORE: WORDS fractune_core.access fractune_core.agreement fractune_core.analysis fractune_core.cuda fractune_core.files
    fractune_core.fleet fractune_core.host fractune_core.planning fractune_core.tir fractune_core.tracing
STORE: fractune_server.store fractune_server.store.database fractune_server.store.records
CHILD: CORE fractune_workers.child numpy onnx onnxslim tvm tvm_ffi tvm_ffi_orcjit | ml_dtypes
RUNTIME: fractune_runtime fractune_runtime.tvm_runtime fractune.comparing
BELOW: fractune.local fractune.models fractune.server fractune.sessions fractune.text
FEATURES: fractune.features.compete fractune.features.cost fractune.features.diff fractune.features.fit
    fractune.features.fuse fractune.features.goal fractune.features.knee fractune.features.log
    fractune.features.matrix fractune.features.noise fractune.features.packs fractune.features.pair
    fractune.features.parts fractune.features.plan fractune.features.retune fractune.features.join
    fractune.features.tune
# What every command may import.
COMMAND: CORE FEATURES BELOW fractune fractune.cli fractune.cli.ending fractune.features rich typer

# core: the words of the domain below, what is made of them above
[fractune_core]
.: .codec .errors google.protobuf
.access: WORDS
.codec: .errors google.protobuf msgspec
.cuda: .errors .host
.errors:
.files: WORDS .agreement
.fleet: WORDS .access
.host: .errors
# Who calls it has TVM.
.tir: .errors | tvm tvm_ffi
# OpenTelemetry is of the extra `trace`.
.tracing: | opentelemetry
# Who compares arrays has NumPy.
.agreement: | numpy
.analysis: WORDS
# The solver of integer programs is of the extra `plan`.
.planning: WORDS .analysis .host | highspy numpy
# The one generated module that needs gRPC: a room of its own, so that the rest of fractune_core is without.
.pb.fractune_pb2_grpc: . grpc

# server: main wires; services call selection and store; the engine does not depend on the callers
[fractune_server]
.: CORE STORE GRPC_STUBS .authenticator .engine .monitoring .selection .services .transport grpc grpc_health
    grpc_reflection prometheus_client redis
# Metrics that others can reach are for those who may read.
.monitoring: CORE STORE .authenticator .transport grpc_health prometheus_client redis
# Who may call: services ask who does, main puts it before them.
.authenticator: CORE STORE google.protobuf grpc
.services: CORE STORE GRPC_STUBS .authenticator .instruments .selection .transport google.protobuf grpc redis
.engine: CORE STORE .scheduler .selection .transport redis
.selection: CORE STORE .authenticator .transport
.scheduler: CORE
.transport: CORE STORE .instruments redis rq
.instruments: CORE prometheus_client
.store: CORE .store.database .store.records sqlalchemy
.store.database: CORE alembic sqlalchemy | psycopg
.store.records: CORE .store.database sqlalchemy

# workers: main wires; the roles stand on sessions and locks; TVM is in children alone
[fractune_workers]
.: CORE .child .confinement .context .locks .roles .scratch_dir redis rq
.child: CORE
.scratch_dir: fractune_core.host .locks
.sandboxes: CORE fractune_runtime
.reader: CORE .child .sandboxes
.builder_process: CORE .child .sandboxes .scratch_dir
.context: CORE .child .locks redis rq
.roles: CORE .builder_process .child .context .gpu .locks .measuring .reader .sandboxes redis
.calibration: CORE .builder_process .child .locks .measuring .reader
.measuring: CORE .child .confinement .faults .gpu .locks .sandboxes .scratch_dir
.packs: CORE .builder_process .calibration .child .gpu .locks .measuring .reader
.faults: CORE .child .confinement .locks
.inventory: CORE .child .confinement .cuda .gpu
.confinement: CORE .cuda .gpu .locks
# The two places for NVIDIA's driver and its library, in the packages of the extra `cuda`.
.gpu: CORE .cuda .locks | pynvml
.cuda: CORE | cuda
.locks: CORE

# children: run as processes of their own, which may crash; the one place for TVM and all that it needs
[fractune_workers.children]
.: CHILD .tvm_api fractune_workers.scratch_dir
# Processor and arguments are made by TVM's runtime alone: a pack is measured without the compiler.
.tvm_api: CHILD fractune_runtime.tvm_runtime fractune_workers.cuda
.importing: CHILD .importing.limits .layouts .recurrent .rewriting .tvm_api |
    .importing.onnx_models torch
.importing.limits: CORE
.importing.onnx_graph: CORE google.protobuf onnx
.importing.operators: CHILD .importing.onnx_graph .layouts .recurrent .rewriting
.importing.decomposing: CHILD .importing.onnx_graph
.importing.rolling: CHILD .importing.limits .importing.onnx_graph .recurrent
.importing.onnx_models: CHILD fractune_runtime.tvm_runtime .importing.decomposing .importing.limits
    .importing.onnx_graph .importing.operators .importing.rolling .rewriting .tvm_api google.protobuf | onnxruntime
.fusing: CHILD .importing .importing.onnx_graph .rewriting .tvm_api
.rewriting: CHILD .tvm_api
.recurrent: CHILD .rewriting .tvm_api
.layouts: CHILD .layouts.kernels .rewriting .tvm_api
.layouts.kernels: CHILD .recurrent .rewriting .tvm_api
# Triton is of the extra `triton`; its kernels are imported by what Triton compiles alone.
.triton_kernels: CHILD .tvm_api | triton
# It stands above the kernel of products, and so chooses between the two.
.triton_kernels.attention: CHILD .triton_kernels .tvm_api
.triton_kernels.kernels: triton
.triton_kernels.attention.kernel: triton
.searching: CHILD .layouts.kernels .recurrent .searching.spaces .triton_kernels .triton_kernels.attention .tvm_api
.searching.spaces: CHILD .layouts.kernels .tvm_api
.building: CHILD .recurrent .triton_kernels .triton_kernels.attention .tvm_api fractune_workers.cuda
    fractune_workers.scratch_dir
.compiling: CHILD .building .fusing .importing .importing.onnx_graph .layouts .layouts.kernels .recurrent .rewriting
    .triton_kernels .triton_kernels.attention .tvm_api
# ONNX Runtime is of the extra `local`; without it ONNX's own reference is there.
.checking: CHILD fractune_runtime fractune_runtime.tvm_runtime .compiling .importing .importing.limits
    .importing.onnx_graph .tvm_api | onnxruntime
# A whole model is timed by the code that serves it.
.measuring: CHILD fractune_runtime fractune_runtime.tvm_runtime .layouts.kernels .tvm_api fractune_workers.confinement
    fractune_workers.cuda fractune_workers.gpu

# client: commands, then the features, side by side, then where a job runs, then what all of it stands on
[fractune]
.: CORE | FEATURES BELOW RUNTIME .features
.__main__: | .cli .cli.ending
.cli.ending: CORE .server .sessions typer
.cli: CORE BELOW . .cli.ending .features.matrix .features.tune click rich typer
# A command is loaded by its name, and knows none of another room.
.cli.commands:
.cli.commands.fleet: COMMAND | .dashboard
.cli.commands.jobs: COMMAND
.cli.commands.log: COMMAND
.cli.commands.machine: COMMAND
.cli.commands.models: COMMAND RUNTIME | numpy
# Pages of a server, made of the features' tables; starlette, uvicorn and jinja2 are of the extra `web`.
.dashboard: CORE .dashboard.following .dashboard.views .features .features.log .features.matrix .features.plan .server
    jinja2 starlette uvicorn
.dashboard.following: CORE .features .features.log .server
.dashboard.views: CORE .dashboard.following .features .features.compete .features.diff .features.fit .features.knee
    .features.log .features.matrix .features.pair .features.parts .features.plan .features.join .features.tune
    .server .text
# What `import fractune` offers: a client of a server on top, the features below it.
.features: CORE FEATURES BELOW .
# A bundle is checked in a sandboxed process, as the workers check bundles.
.features.compete: CORE BELOW . .features.join | RUNTIME fractune_workers.reader fractune_workers.reader
.features.cost: CORE BELOW .
.features.diff: CORE BELOW . .features.join
.features.retune: CORE BELOW . .features.join
.features.fit: CORE BELOW . | RUNTIME fractune_workers.confinement matplotlib
.features.fuse: CORE BELOW . | fractune_workers.child fractune_workers.reader
.features.join: CORE BELOW . | RUNTIME
.features.goal: CORE BELOW .
# A process of its own cuts a model, by ONNX and ONNX Runtime.
.features.parts: CORE BELOW . | RUNTIME
# A program of its own, which needs no more of the client.
.features.parts.cutting: CORE RUNTIME numpy onnx onnxruntime
.features.knee: CORE BELOW . .features.matrix | matplotlib
# A schedule is built again by the builder's sandboxed process.
.features.log: CORE BELOW . | fractune_workers.builder_process numpy tvm tvm_ffi
.features.matrix: CORE BELOW . | matplotlib
.features.noise: CORE BELOW . | matplotlib
# Two models run at the same time, each in a process that is confined as the workers' are.
.features.pair: CORE BELOW . | RUNTIME fractune_workers.calibration fractune_workers.child
    fractune_workers.confinement fractune_workers.locks
.features.packs: CORE BELOW . .features.noise | RUNTIME
.features.plan: CORE BELOW . | matplotlib
.features.tune: CORE BELOW . .features.compete .features.goal .features.matrix .features.parts .features.join |
    RUNTIME
# Where a job runs: a server, or a stack of its own, followed to the job's end.
.sessions: CORE . .local .server .text rich
# Models in memory are written by the package that made them, which is loaded then. The user's own Python file runs
# in a child of the user's command, never in a part of a fleet.
# A child reads an ONNX graph in a sandbox.
.models: CORE . .local .text | numpy onnx torch tvm
# `fractune server` and `fractune worker` become those parts. `timing_process` confines a child as a worker does;
# the child times models by the runtime.
.local: CORE . .server platformdirs | RUNTIME fractune_server fractune_workers fractune_workers.calibration
    fractune_workers.child fractune_workers.confinement fractune_workers.gpu fractune_workers.inventory
    fractune_workers.locks fractune_workers.packs fractune_workers.reader
.server: CORE GRPC_STUBS google.protobuf grpc grpc_health
# Numbers, tables and pictures as people read them.
.text: CORE . rich | matplotlib
# Models side by side: timings that alternate, differences of outputs.
.comparing: CORE fractune_runtime fractune_runtime.tvm_runtime | numpy

# runtime: it runs on machines that have the extra `run` alone, with TVM's runtime, but not TVM's package or compiler.
# Other runtimes are imported when a bundle needs them.
[fractune_runtime]
.: CORE .tvm_runtime | cryptography numpy onnx onnxruntime openvino prometheus_client
# Each server is installed where it is used.
.serving: CORE . fastapi kserve litserve prometheus_client pydantic ray triton_python_backend_utils uvicorn
.tvm_runtime: CORE | ml_dtypes numpy tvm_ffi tvm_ffi_orcjit
"""


def _rooms(table: str) -> dict[str, Room]:
    known: dict[str, Room] = {}
    package = ""

    def named(text: str) -> Room:
        """What these names stand for."""
        names = [package + name.rstrip(".") if name.startswith(".") else name for name in text.split()]
        meant = [known.get(name) if name.isupper() else None for name in names]
        imports = (room.imports if room else {name} for name, room in zip(names, meant, strict=True))
        return Room(frozenset().union(*imports), frozenset().union(*(room.lazily for room in meant if room)))

    for line in re.sub(r"\n +", " ", table).splitlines():
        if line.startswith("["):
            package = line.strip("[]")
        elif line and not line.startswith("#"):
            name, _, allowed = line.partition(":")
            anywhere, lazily = (named(part) for part in f"{allowed}|".split("|")[:2])
            (full,) = named(name).imports
            known[full] = Room(anywhere.imports, anywhere.lazily | lazily.imports)
    return {name: room for name, room in known.items() if not name.isupper()}


ROOMS = _rooms(_TABLE)
