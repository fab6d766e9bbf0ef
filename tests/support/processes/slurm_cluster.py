"""A real Slurm on this machine: munge, a controller, and two nodes that are each all of the machine."""

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path

from tests.support.processes.redis_process import wait_until

_DAEMONS = ("slurmctld", "slurmd", "munged")
_CONF = """\
ClusterName=fractune
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
StateSaveLocation={folder}/controller
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
ReturnToService=2
SlurmdTimeout=10
KillWait=30
GresTypes=gpu
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[0]} CPUs={cpus} Gres=gpu:1
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} Gres=gpu:1
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.local = Path(tempfile.mkdtemp(prefix="slurm-"))
        """node-local disk"""
        self.env = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def say(self, *words: str, **env: str) -> str:
        """What a command of Slurm says; it must succeed."""
        full = os.environ | self.env | env
        done = subprocess.run(words, env=full, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout.strip()

    def state(self, job: str) -> dict[str, str]:
        """The fields of `scontrol show job`."""
        return dict(each.split("=", 1) for each in self.say("scontrol", "show", "job", job).split() if "=" in each)

    def start(self, name: str) -> None:
        """A daemon: munged, slurmctld, or the slurmd of a node."""
        munge = self.folder / "munge"
        options = [f"--key-file={munge}/key", f"--socket={munge}/socket", f"--pid-file={munge}/pid"]
        options += [f"--log-file={munge}/log", f"--seed-file={munge}/seed", "--force", "--foreground"]
        others = {"munged": ["munged", *options], "slurmctld": ["slurmctld", "-D"]}
        command = others.get(name, ["slurmd", "-D", "-N", name])
        with (self.folder / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(command, env=os.environ | self.env, stdout=log, stderr=log)

    def kill_node(self, name: str) -> None:
        """The node and all that runs on it die at once."""
        steps = {parent for pid in _of_node(name) for parent in _parents(pid) if _is_step(parent)}
        for pid in {self._daemons[name].pid, *steps, *_of_node(name)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._daemons.pop(name).wait()

    def idle_nodes(self) -> int:
        return self.say("sinfo", "--noheader", "--Node", "--format=%t").split().count("idle")

    def stop(self) -> None:
        for pid in [*_of_node("n1"), *_of_node("n2")]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in reversed(self._daemons.values()):
            process.terminate()
            process.wait(30)
        shutil.rmtree(self.local)


@contextlib.contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """Two idle nodes, until the block ends. Skips the test where Slurm is not installed, or the user is not root."""
    missing = [name for name in _DAEMONS if shutil.which(name) is None]
    if missing:
        raise unittest.SkipTest(f"no {missing[0]} here; apt-get install slurmctld slurmd slurm-client munge")
    if getpass.getuser() != "root":
        raise unittest.SkipTest("the daemons of Slurm start jobs as other users; run the tests as root")
    folder.chmod(0o711)
    for name in ("munge", "controller", "n1", "n2"):
        (folder / name).mkdir(mode=0o711)
    key = folder / "munge" / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    ports = [_free_port() for _ in range(3)]
    cpus = os.cpu_count() or 1
    conf = _CONF.format(host=socket.gethostname(), folder=folder, controller_port=ports[0], ports=ports[1:], cpus=cpus)
    (folder / "slurm.conf").write_text(conf)
    (folder / "gres.conf").write_text("".join(f"NodeName=n{n} Name=gpu File=/dev/null\n" for n in (1, 2)))
    cluster = SlurmCluster(folder)
    try:
        cluster.start("munged")
        wait_until((folder / "munge" / "socket").exists)
        for name in ("slurmctld", "n1", "n2"):
            cluster.start(name)
        wait_until(lambda: _answers(cluster) and cluster.idle_nodes() == 2)
        yield cluster
    finally:
        cluster.stop()


def _answers(cluster: SlurmCluster) -> bool:
    ping = ["scontrol", "ping"]
    return subprocess.run(ping, env=os.environ | cluster.env, capture_output=True, check=False).returncode == 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _of_node(name: str) -> set[int]:
    """The processes of jobs on a node."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"SLURMD_NODENAME={name}\0".encode() in (folder / "environ").read_bytes():
                found.add(int(folder.name))
    return found


def _parents(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        yield int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _is_step(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().startswith("slurmstepd")
    return False
