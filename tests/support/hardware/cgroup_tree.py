"""A made-up host: what `/proc` and `/sys` tell a process of its CPUs and its cgroups."""

from pathlib import Path

V2_MOUNT = "30 23 0:26 {part} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "33 24 0:29 {part} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"


def a_host(
    root: Path, *, cpus: str = "0-3", cgroup: str = "0::/", mount: str = V2_MOUNT, part: str = "/", **quotas: str
) -> Path:
    """A file tree; `quotas` are contents by path with `__` for `/`, below /sys/fs/cgroup."""
    process = root / "proc/self"
    process.mkdir(parents=True)
    (process / "status").write_text(f"Name:\tpython\nCpus_allowed:\tf\nCpus_allowed_list:\t{cpus}\n")
    (process / "cgroup").write_text(cgroup + "\n")
    root_mount = "23 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw"
    (process / "mountinfo").write_text(f"{root_mount}\n{mount.format(part=part)}\n")
    for name, text in quotas.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("cpu_max", "cpu.max")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root
