"""`fractune-runtime`: its wheel, a bundle in a narrow container, and servers beside which it is installed."""

import os
import runpy
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import distribution, distributions
from pathlib import Path
from types import SimpleNamespace

import pytest

from fractune.features.tune.bundle import write_image
from fractune_core.errors import BadRequest
from tests.support.paths import REPOSITORY
from tests.support.processes.clean_environments import Environment, asked_for, empty_environment, install, link
from tests.support.processes.server_environments import server_environment

NEEDED = {"numpy", "apache-tvm-ffi", "apache-tvm-ffi-orcjit", "ml_dtypes", "msgspec"}
RUN = """
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


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = runpy.run_path(str(REPOSITORY / "scripts" / "runtime_wheel"))["build"](tmp_path_factory.mktemp("dist"))
    return made


@pytest.fixture(scope="session")
def runtime(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel and what it asks for; the bundle `small.fractune` is in its folder."""
    environment = empty_environment(tmp_path_factory.mktemp("runtime"))
    install(environment, built)
    link(environment, [*map(distribution, NEEDED), distribution("typing-extensions")])
    maker = [sys.executable, "-m", "tests.support.real_bundle", str(environment.folder), "small"]
    subprocess.run(maker, check=True, cwd=REPOSITORY)
    return environment


def succeed(environment: Environment, *args: str) -> str:
    ended = environment.run_python(*args)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


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
    out = succeed(runtime, "-c", RUN, str(runtime.folder / "small" / "small.fractune"))
    assert out.split() == [str(runtime.site / "fractune_runtime.py")]


def test_beside_the_client_the_modules_are_those_of_the_client(
    client: Environment, built: Path, runtime: Environment
) -> None:
    install(client, built)
    link(client, [distribution(name) for name in NEEDED - {"msgspec"}])
    bundle = str(runtime.folder / "small" / "small.fractune")
    out = succeed(client, "-c", RUN + "import fractune\nassert fractune.load is not None\n", bundle)
    assert out.split() == [str(client.site / "fractune_runtime" / "__init__.py")]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, and setpriv of util-linux")
def test_it_runs_as_any_user_on_a_read_only_root_without_a_home_and_with_few_system_calls(runtime: Environment) -> None:
    (runtime.folder / "run.py").write_text(RUN)
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
    assert succeed(environment, "-c", RUN, str(image / bundle.name))


@pytest.mark.long
@pytest.mark.parametrize("server", ["kserve", "mlserver", "ray"])
def test_it_is_installed_beside_a_server(server: str, built: Path, runtime: Environment) -> None:
    environment = server_environment(server, built)
    succeed(environment, "-m", "pip", "check")
    out = succeed(environment, "-c", f"import {server}\n{RUN}", str(runtime.folder / "small" / "small.fractune"))
    assert out.split()[0] == str(environment.site / "fractune_runtime.py")
