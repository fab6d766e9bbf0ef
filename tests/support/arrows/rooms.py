"""The rooms of the design and the arrows between them: who may import what."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Room:
    """What the modules of one package may import beside the standard library and the package itself."""

    imports: frozenset[str]
    """packages and other rooms, allowed anywhere"""
    lazily: frozenset[str] = field(default=frozenset())
    """allowed inside functions and under TYPE_CHECKING only, so that importing the room does not load them"""


def room(*imports: str, lazily: tuple[str, ...] = ()) -> Room:
    return Room(frozenset(imports), frozenset(lazily))


SOURCES = {
    "fractune_core": "tuner_core",
    "fractune_server": "tuner_server",
    "fractune_workers": "workers",
    "fractune": "tuner_client",
    "fractune_runtime": "tuner_runtime",
}
"""the source root of each package"""

# The one generated module that needs gRPC: a room of its own, so that the rest of fractune_core is without.
GRPC_STUBS = "fractune_core.pb.fractune_pb2_grpc"

CORE = tuple(
    f"fractune_core{name}"
    for name in (
        *(
            "",
            ".access",
            ".agreement",
            ".analysis",
            ".codec",
            ".cuda",
            ".files",
            ".fleet",
            ".host",
            ".host.sandboxing",
            ".planning",
            ".tir",
        ),
        ".analysis.cpu_limits",
        ".errors",
        ".tracing",
    )
)

WORDS = ("fractune_core", "fractune_core.codec", "fractune_core.errors")
"""what every room of core that is made of the words of the domain may import"""

RUNTIME = ("fractune_runtime", "fractune_runtime.tvm_runtime", "fractune.comparing")

FEATURES = tuple(
    f"fractune.features.{name}"
    for name in (
        *("compete", "cost", "diff", "fit", "fuse", "goal", "knee", "log", "matrix", "noise", "pair", "parts", "plan"),
        *("packs", "retune", "shapes", "tune"),
    )
)

BELOW_FEATURES = tuple(f"fractune.{name}" for name in ("local", "models", "server", "sessions", "text"))

COMMAND = (
    *CORE,
    "fractune",
    "fractune.cli",
    "fractune.cli.ending",
    "fractune.features",
    *FEATURES,
    *BELOW_FEATURES,
    "typer",
    "rich",
)
"""what every command may import"""

STORE = tuple(f"fractune_server.store{name}" for name in ("", ".database", ".records"))


def child_room(*imports: str, lazily: tuple[str, ...] = ()) -> Room:
    tvm = ("tvm", "tvm_ffi", "tvm_ffi_orcjit", "numpy", "onnx", "onnxslim")
    return room(*CORE, "fractune_workers.child", *tvm, *imports, lazily=("ml_dtypes", *lazily))


def feature(*imports: str, lazily: tuple[str, ...] = ()) -> Room:
    """A feature of the client: its function, result, table and picture."""
    return room(*CORE, "fractune", *BELOW_FEATURES, *imports, lazily=lazily)


# A room inside a room (`fractune_workers.children`) stands for itself: neither may import the other unless it says so.
# A single module that is a room of its own (`fractune_workers.child`) may be imported where its package may not.
ROOMS = {
    # ---- core: the words of the domain below, what is made of them above
    "fractune_core": room("fractune_core.codec", "fractune_core.errors", "google.protobuf"),
    "fractune_core.access": room(*WORDS),
    "fractune_core.codec": room("fractune_core.errors", "google.protobuf", "msgspec"),
    "fractune_core.cuda": room("fractune_core.errors", "fractune_core.host"),
    "fractune_core.errors": room(),
    "fractune_core.files": room(*WORDS, "fractune_core.agreement"),
    "fractune_core.fleet": room(*WORDS, "fractune_core.access"),
    "fractune_core.host": room("fractune_core.errors"),
    "fractune_core.host.sandboxing": room("fractune_core.host"),
    # Who calls it has TVM.
    "fractune_core.tir": room("fractune_core.errors", lazily=("tvm", "tvm_ffi")),
    # OpenTelemetry is of the extra `trace`.
    "fractune_core.tracing": room(lazily=("opentelemetry",)),
    # Who compares arrays has NumPy.
    "fractune_core.agreement": room(lazily=("numpy",)),
    "fractune_core.analysis": room(*WORDS),
    "fractune_core.analysis.cpu_limits": room("fractune_core", "fractune_core.errors"),
    # The solver of integer programs is of the extra `plan`.
    "fractune_core.planning": room(
        *WORDS,
        "fractune_core.analysis",
        "fractune_core.analysis.cpu_limits",
        "fractune_core.host",
        lazily=("highspy", "numpy"),
    ),
    GRPC_STUBS: room("fractune_core", "grpc"),
    # ---- server: main wires; services call selection and store; the engine never knows who asks
    "fractune_server": room(
        *CORE,
        *(
            f"fractune_server.{name}"
            for name in ("access", "engine", "monitoring", "selection", "services", "transport")
        ),
        *STORE,
        GRPC_STUBS,
        "grpc",
        "grpc_health",
        "grpc_reflection",
        "prometheus_client",
        "redis",
    ),
    # Metrics that others can reach are for those who may read.
    "fractune_server.monitoring": room(
        *CORE,
        "fractune_server.access",
        *STORE,
        "fractune_server.transport",
        "grpc_health",
        "prometheus_client",
        "redis",
    ),
    # Who may call: services ask who does, main puts it before them.
    "fractune_server.access": room(*CORE, *STORE, "grpc", "google.protobuf"),
    "fractune_server.services": room(
        *CORE,
        "fractune_server.instruments",
        "fractune_server.access",
        "fractune_server.selection",
        *STORE,
        "fractune_server.transport",
        GRPC_STUBS,
        "google.protobuf",
        "grpc",
        "redis",
    ),
    "fractune_server.engine": room(
        *CORE,
        "fractune_server.scheduler",
        "fractune_server.selection",
        *STORE,
        "fractune_server.transport",
        "redis",
    ),
    "fractune_server.selection": room(*CORE, "fractune_server.access", *STORE, "fractune_server.transport"),
    "fractune_server.scheduler": room(*CORE),
    "fractune_server.transport": room(*CORE, "fractune_server.instruments", *STORE, "redis", "rq"),
    "fractune_server.instruments": room(*CORE, "prometheus_client"),
    "fractune_server.store": room(*CORE, *STORE[1:], "sqlalchemy"),
    "fractune_server.store.database": room(*CORE, "sqlalchemy", "alembic", lazily=("psycopg",)),
    "fractune_server.store.records": room(*CORE, "fractune_server.store.database", "sqlalchemy"),
    # ---- workers: main wires; the roles stand on sessions and locks; TVM is in children alone
    "fractune_workers": room(
        *CORE,
        "fractune_workers.child",
        "fractune_workers.confinement",
        "fractune_workers.context",
        "fractune_workers.locks",
        "fractune_workers.context",
        "fractune_workers.roles",
        "fractune_workers.scratch_dir",
        "redis",
        "rq",
    ),
    "fractune_workers.child": room(*CORE),
    "fractune_workers.scratch_dir": room("fractune_core.host.sandboxing", "fractune_workers.locks"),
    "fractune_workers.sandboxes": room(*CORE, "fractune_runtime"),
    "fractune_workers.reader": room(*CORE, "fractune_workers.child", "fractune_workers.sandboxes"),
    "fractune_workers.checker": room(*CORE, "fractune_workers.child"),
    "fractune_workers.builder_process": room(
        *CORE, "fractune_workers.child", "fractune_workers.sandboxes", "fractune_workers.scratch_dir"
    ),
    "fractune_workers.context": room(
        *CORE,
        "fractune_workers.child",
        "fractune_workers.locks",
        "redis",
        "rq",
    ),
    "fractune_workers.roles": room(
        *CORE,
        "fractune_workers.builder_process",
        "fractune_workers.checker",
        "fractune_workers.child",
        "fractune_workers.context",
        "fractune_workers.gpu",
        "fractune_workers.locks",
        "fractune_workers.measuring",
        "fractune_workers.reader",
        "fractune_workers.sandboxes",
        "redis",
    ),
    "fractune_workers.calibration": room(
        *CORE,
        "fractune_workers.builder_process",
        "fractune_workers.child",
        "fractune_workers.locks",
        "fractune_workers.measuring",
        "fractune_workers.reader",
    ),
    "fractune_workers.measuring": room(
        *CORE,
        "fractune_workers.child",
        "fractune_workers.confinement",
        "fractune_workers.faults",
        "fractune_workers.gpu",
        "fractune_workers.locks",
        "fractune_workers.sandboxes",
        "fractune_workers.scratch_dir",
    ),
    "fractune_workers.packs": room(
        *CORE,
        "fractune_workers.builder_process",
        "fractune_workers.calibration",
        "fractune_workers.child",
        "fractune_workers.gpu",
        "fractune_workers.locks",
        "fractune_workers.measuring",
        "fractune_workers.reader",
    ),
    "fractune_workers.faults": room(
        *CORE, "fractune_workers.child", "fractune_workers.confinement", "fractune_workers.locks"
    ),
    "fractune_workers.inventory": room(
        *CORE, "fractune_workers.child", "fractune_workers.confinement", "fractune_workers.cuda", "fractune_workers.gpu"
    ),
    "fractune_workers.confinement": room(
        *CORE, "fractune_workers.cuda", "fractune_workers.gpu", "fractune_workers.locks"
    ),
    # The two places for NVIDIA's driver and its library, in the packages of the extra `cuda`.
    "fractune_workers.gpu": room(*CORE, "fractune_workers.cuda", "fractune_workers.locks", lazily=("pynvml",)),
    "fractune_workers.cuda": room(*CORE, lazily=("cuda",)),
    "fractune_workers.locks": room(*CORE),
    # ---- children: run as processes of their own, which may crash; the one place for TVM and all that it needs
    "fractune_workers.children": child_room(
        "fractune_workers.children.tvm_api",
        "fractune_workers.scratch_dir",
    ),
    # Processor and arguments are made by TVM's runtime alone: a pack is measured without the compiler.
    "fractune_workers.children.tvm_api": child_room(
        "fractune_runtime.tvm_runtime",
        "fractune_workers.children.tvm_api.prefetches",
        "fractune_workers.cuda",
    ),
    "fractune_workers.children.tvm_api.prefetches": child_room(),
    "fractune_workers.children.importing": child_room(
        "fractune_workers.children.importing.limits",
        "fractune_workers.children.layouts",
        "fractune_workers.children.recurrent",
        "fractune_workers.children.rewriting",
        "fractune_workers.children.rewriting.simplifying",
        "fractune_workers.children.tvm_api",
        lazily=("fractune_workers.children.importing.onnx_models", "torch"),
    ),
    "fractune_workers.children.importing.limits": room(*CORE),
    "fractune_workers.children.importing.onnx_graph": room(*CORE, "google.protobuf", "onnx"),
    "fractune_workers.children.importing.operators": child_room(
        "fractune_workers.children.importing.onnx_graph",
        "fractune_workers.children.layouts",
        "fractune_workers.children.recurrent",
        "fractune_workers.children.rewriting",
    ),
    "fractune_workers.children.importing.decomposing": child_room("fractune_workers.children.importing.onnx_graph"),
    "fractune_workers.children.importing.rolling": child_room(
        "fractune_workers.children.importing.limits",
        "fractune_workers.children.importing.onnx_graph",
        "fractune_workers.children.recurrent",
    ),
    "fractune_workers.children.importing.onnx_models": child_room(
        "fractune_runtime.tvm_runtime",
        "fractune_workers.children.importing.decomposing",
        "fractune_workers.children.importing.limits",
        "fractune_workers.children.importing.onnx_graph",
        "fractune_workers.children.importing.operators",
        "fractune_workers.children.importing.rolling",
        "fractune_workers.children.rewriting",
        "fractune_workers.children.tvm_api",
        "google.protobuf",
        lazily=("onnxruntime",),
    ),
    "fractune_workers.children.fusing": child_room(
        "fractune_workers.children.importing",
        "fractune_workers.children.importing.onnx_graph",
        "fractune_workers.children.rewriting",
    ),
    "fractune_workers.children.rewriting": child_room("fractune_workers.children.tvm_api"),
    "fractune_workers.children.rewriting.simplifying": child_room("fractune_workers.children.rewriting"),
    "fractune_workers.children.recurrent": child_room(
        "fractune_workers.children.rewriting", "fractune_workers.children.tvm_api"
    ),
    "fractune_workers.children.layouts": child_room(
        "fractune_workers.children.layouts.kernels",
        "fractune_workers.children.rewriting",
        "fractune_workers.children.tvm_api",
    ),
    "fractune_workers.children.layouts.kernels": child_room(
        "fractune_workers.children.recurrent",
        "fractune_workers.children.rewriting",
        "fractune_workers.children.tvm_api",
    ),
    # Triton is of the extra `triton`; its kernels are imported by what Triton compiles alone.
    "fractune_workers.children.triton_kernels": child_room(
        "fractune_workers.children.tvm_api",
        lazily=("triton",),
    ),
    # It stands above the kernel of products, and so chooses between the two.
    "fractune_workers.children.triton_kernels.attention": child_room(
        "fractune_workers.children.triton_kernels", "fractune_workers.children.tvm_api"
    ),
    "fractune_workers.children.triton_kernels.kernels": room("triton"),
    "fractune_workers.children.triton_kernels.attention.kernel": room("triton"),
    "fractune_workers.children.searching": child_room(
        "fractune_workers.children.triton_kernels.attention",
        "fractune_workers.children.layouts.kernels",
        "fractune_workers.children.recurrent",
        "fractune_workers.children.searching.spaces",
        "fractune_workers.children.triton_kernels",
        "fractune_workers.children.tvm_api",
    ),
    "fractune_workers.children.searching.spaces": child_room(
        "fractune_workers.children.layouts.kernels",
        "fractune_workers.children.tvm_api",
        "fractune_workers.children.tvm_api.prefetches",
    ),
    "fractune_workers.children.building": child_room(
        "fractune_workers.children.recurrent",
        "fractune_workers.children.triton_kernels.attention",
        "fractune_workers.children.triton_kernels",
        "fractune_workers.children.tvm_api",
        "fractune_workers.cuda",
        "fractune_workers.scratch_dir",
    ),
    "fractune_workers.children.compiling": child_room(
        "fractune_workers.children.triton_kernels.attention",
        "fractune_workers.children.building",
        "fractune_workers.children.fusing",
        "fractune_workers.children.importing",
        "fractune_workers.children.importing.onnx_graph",
        "fractune_workers.children.layouts",
        "fractune_workers.children.layouts.kernels",
        "fractune_workers.children.recurrent",
        "fractune_workers.children.rewriting",
        "fractune_workers.children.triton_kernels",
        "fractune_workers.children.tvm_api",
        "fractune_workers.children.tvm_api.prefetches",
    ),
    # ONNX Runtime is of the extra `local`; without it ONNX's own reference is there.
    "fractune_workers.children.checking": child_room(
        "fractune_workers.children.compiling",
        "fractune_workers.children.importing",
        "fractune_workers.children.importing.limits",
        "fractune_workers.children.importing.onnx_graph",
        "fractune_workers.children.tvm_api",
        "fractune_runtime",
        "fractune_runtime.tvm_runtime",
        lazily=("onnxruntime",),
    ),
    # A whole model is timed by the code that serves it.
    "fractune_workers.children.measuring": child_room(
        "fractune_runtime",
        "fractune_runtime.tvm_runtime",
        "fractune_workers.children.layouts.kernels",
        "fractune_workers.children.tvm_api",
        "fractune_workers.confinement",
        "fractune_workers.cuda",
        "fractune_workers.gpu",
    ),
    # ---- client: commands, then the features, side by side, then where a job runs, then what all of it stands on
    "fractune": room(*CORE, lazily=("fractune.features", *FEATURES, *RUNTIME, *BELOW_FEATURES)),
    "fractune.__main__": room(lazily=("fractune.cli", "fractune.cli.ending")),
    "fractune.cli.ending": room(*CORE, "fractune.server", "fractune.sessions", "typer"),
    "fractune.cli": room(
        *CORE,
        "fractune",
        "fractune.cli.ending",
        "fractune.features.matrix",
        "fractune.features.tune",
        *BELOW_FEATURES,
        "typer",
        "click",
        "rich",
    ),
    # A command is loaded by its name, and knows none of another room.
    "fractune.cli.commands": room(),
    "fractune.cli.commands.fleet": room(*COMMAND, lazily=("fractune.dashboard",)),
    "fractune.cli.commands.jobs": room(*COMMAND),
    "fractune.cli.commands.machine": room(*COMMAND),
    "fractune.cli.commands.models": room(*COMMAND, *RUNTIME, lazily=("numpy",)),
    # Pages of a server, made of the features' tables; starlette, uvicorn and jinja2 are of the extra `web`.
    "fractune.dashboard": room(
        *CORE,
        "fractune.dashboard.following",
        "fractune.dashboard.views",
        "fractune.features",
        "fractune.features.log",
        "fractune.features.matrix",
        "fractune.features.plan",
        "fractune.server",
        "jinja2",
        "starlette",
        "uvicorn",
    ),
    "fractune.dashboard.following": room(*CORE, "fractune.features", "fractune.features.log", "fractune.server"),
    "fractune.dashboard.views": room(
        *CORE,
        "fractune.dashboard.following",
        "fractune.features",
        *(f"fractune.features.{name}" for name in ("compete", "diff", "fit", "knee", "log", "matrix", "pair")),
        *(f"fractune.features.{name}" for name in ("parts", "plan", "shapes", "tune")),
        "fractune.server",
        "fractune.text",
    ),
    # What `import fractune` offers: a client of a server on top, the features below it.
    "fractune.features": room(*CORE, "fractune", *FEATURES, *BELOW_FEATURES),
    # A bundle is checked in a sandboxed process, as the workers check bundles.
    "fractune.features.compete": feature(
        "fractune.features.shapes",
        lazily=(*RUNTIME, *(f"fractune_workers.{name}" for name in ("checker", "reader"))),
    ),
    "fractune.features.cost": feature(),
    "fractune.features.diff": feature("fractune.features.shapes"),
    "fractune.features.retune": feature("fractune.features.shapes"),
    "fractune.features.fit": feature(lazily=(*RUNTIME, "fractune_workers.confinement", "matplotlib")),
    "fractune.features.fuse": feature(lazily=("fractune_workers.child", "fractune_workers.reader")),
    "fractune.features.shapes": feature(lazily=RUNTIME),
    "fractune.features.goal": feature(),
    # A process of its own cuts a model, by ONNX and ONNX Runtime.
    "fractune.features.parts": feature(lazily=(*RUNTIME, "numpy", "onnx", "onnxruntime")),
    "fractune.features.knee": feature("fractune.features.matrix", lazily=("matplotlib",)),
    # A schedule is built again by the builder's sandboxed process.
    "fractune.features.log": feature(lazily=("tvm", "tvm_ffi", "numpy", "fractune_workers.builder_process")),
    "fractune.features.matrix": feature(lazily=("matplotlib",)),
    "fractune.features.noise": feature(lazily=("matplotlib",)),
    # Two models run at the same time, each in a process that is confined as the workers' are.
    "fractune.features.pair": feature(
        lazily=(
            *RUNTIME,
            *(f"fractune_workers.{name}" for name in ("calibration", "child", "confinement", "locks")),
        ),
    ),
    "fractune.features.packs": feature("fractune.features.noise", lazily=RUNTIME),
    "fractune.features.plan": feature(lazily=("matplotlib",)),
    "fractune.features.tune": feature(
        *(f"fractune.features.{name}" for name in ("compete", "goal", "matrix", "parts", "shapes")), lazily=RUNTIME
    ),
    # Where a job runs: a server, or a stack of its own, followed to the job's end.
    "fractune.sessions": room(
        *CORE,
        "fractune",
        "fractune.local",
        "fractune.server",
        "fractune.text",
        "rich",
    ),
    # Models in memory are written by the package that made them, which is loaded then. The user's own Python file runs
    # in a child of the user's command, never in a part of a fleet.
    # A child reads an ONNX graph in a sandbox.
    "fractune.models": room(
        *CORE, "fractune", "fractune.local", "fractune.text", lazily=("numpy", "onnx", "torch", "tvm")
    ),
    # `fractune server` and `fractune worker` become those parts. `timing_process` confines a child as a worker does;
    # the child times models by the runtime.
    "fractune.local": room(
        *CORE,
        "fractune",
        "fractune.server",
        "platformdirs",
        lazily=(
            "fractune_server",
            *RUNTIME,
            *(
                f"fractune_workers{name}"
                for name in ("", ".calibration", ".child", ".confinement", ".gpu", ".inventory", ".locks", ".packs")
            ),
            "fractune_workers.reader",
        ),
    ),
    "fractune.server": room(*CORE, GRPC_STUBS, "google.protobuf", "grpc", "grpc_health"),
    # Numbers, tables and pictures as people read them.
    "fractune.text": room(*CORE, "fractune", "rich", lazily=("matplotlib",)),
    # Models side by side: timings that alternate, differences of outputs.
    "fractune.comparing": room(*CORE, "fractune_runtime", "fractune_runtime.tvm_runtime", lazily=("numpy",)),
    # ---- runtime: it runs on machines that have the extra `run` alone, with TVM's runtime, but not TVM's package or
    # compiler. Other runtimes are imported when a bundle needs them.
    "fractune_runtime": room(
        *CORE,
        "fractune_runtime.tvm_runtime",
        lazily=("cryptography", "numpy", "onnx", "onnxruntime", "openvino", "prometheus_client"),
    ),
    # Each server is installed where it is used.
    "fractune_runtime.serving": room(
        *CORE,
        "fractune_runtime",
        *("fastapi", "kserve", "litserve", "prometheus_client", "pydantic", "ray", "uvicorn"),
        "triton_python_backend_utils",
    ),
    "fractune_runtime.tvm_runtime": room(*CORE, lazily=("tvm_ffi", "tvm_ffi_orcjit", "numpy", "ml_dtypes")),
}
