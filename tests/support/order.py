"""In which order the files of tests run, so that the cores always have work."""

from collections.abc import Iterable, Sequence

WAITING = ("tests/integration/", "tests/processes/", "tests/packaging/")
"""Folders whose tests mostly wait for processes"""
COMPUTING = ("tests/unit/workers/", "tests/unit/runtime/")
"""Folders whose tests mostly compute, and take the longest of those that do"""
LONGEST = (
    "tests/integration/test_quickstart.py",
    "tests/integration/test_exported_decoders.py",
    "tests/integration/test_hostile_tenant.py",
    "tests/integration/test_whole_path.py",
    "tests/integration/test_packs.py",
    "tests/integration/test_pages_of_real_jobs.py",
)
"""The files that take the longest, and mostly wait: they begin first"""


def mixed(files: Iterable[str]) -> list[str]:
    """Files that wait and files that compute, evenly interleaved; the others, which are short, come last."""
    given = sorted(files, key=lambda file: file not in LONGEST)
    waiting = [file for file in given if file.startswith(WAITING)]
    computing = [file for file in given if file.startswith(COMPUTING)]
    long = sorted(_places(waiting) + _places(computing), key=lambda each: each[0])
    return [*(file for _, file in long), *(file for file in given if not file.startswith(WAITING + COMPUTING))]


def _places(files: Sequence[str]) -> list[tuple[float, str]]:
    """Each file with its place between 0 and 1."""
    return [((at + 0.5) / len(files), file) for at, file in enumerate(files)]
