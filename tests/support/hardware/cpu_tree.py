"""A made-up machine: what `/sys` tells of the cores and NUMA nodes of its CPUs."""

from pathlib import Path

from fractune_core.host.cpus import cpu_list


def cpus_of(root: Path, *cores: str, nodes: tuple[str, ...] = ()) -> Path:
    """A file tree with these CPUs in each core (`0,4`), and in each node (`0-3`)."""
    devices = root / "sys/devices/system"
    for core in cores:
        for cpu in cpu_list(core):
            folder = devices / f"cpu/cpu{cpu}/topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(f"{core}\n")
    for number, cpus in enumerate(nodes):
        (devices / f"node/node{number}").mkdir(parents=True)
        (devices / f"node/node{number}/cpulist").write_text(f"{cpus}\n")
    return root
