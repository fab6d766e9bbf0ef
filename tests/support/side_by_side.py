"""`pytest --processes N`: forks of the process that has collected the tests, each of which takes a file at a time.

To collect means to import TVM and all that is tested, seven seconds of a core: one process does it for all of them.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

from tests.support.order import file_of

FOLDER = "FRACTUNE_TESTS_FOLDER"
"""names a folder that the processes of a run share"""
_INDEX_BYTES = 4
_News = tuple[str, Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=1, help="run so many files of tests side by side")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if session.config.option.processes < 2 or session.config.option.collectonly or session.testsfailed:
        return None
    _SideBySide(session).run(session.config.option.processes)
    return True


class _SideBySide:
    """The process that collected. It hands out no work: its children take the numbers of files from a pipe."""

    def __init__(self, session: pytest.Session) -> None:
        self._session, self._hook = session, session.config.hook
        self._files = [list(items) for _, items in itertools.groupby(session.items, lambda item: file_of(item.nodeid))]
        self._pids: dict[Connection, int] = {}
        self._under_way: dict[Connection, pytest.Item] = {}
        self._died_of: set[str] = set()
        self._numbers = itertools.count(1)
        self._work, work = os.pipe()
        with os.fdopen(work, "wb") as pipe:
            pipe.write(b"".join(number.to_bytes(_INDEX_BYTES) for number in range(len(self._files))))
        factory: pytest.TempPathFactory = session.config._tmp_path_factory  # type: ignore[attr-defined]
        os.environ[FOLDER] = str(factory.getbasetemp())

    def run(self, processes: int) -> None:
        try:
            for _ in range(min(processes, len(self._files))):
                self._fork([])
            while self._pids:
                for news in wait(self._pids):
                    assert isinstance(news, Connection)
                    self._receive(news)
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
        finally:
            for pid in self._pids.values():
                os.kill(pid, signal.SIGINT)
            for pid in self._pids.values():
                os.waitpid(pid, 0)

    def _fork(self, first: Sequence[pytest.Item]) -> None:
        """A process that runs `first` before it takes files."""
        news, told = multiprocessing.Pipe(duplex=False)
        number = next(self._numbers)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _run(self._session, [first] if first else [], self._files, self._work, told, number)
        told.close()
        self._pids[news] = pid

    def _receive(self, news: Connection) -> None:
        try:
            kind, found = news.recv()
        except EOFError:
            self._end(news)
            return
        if kind == "start":
            self._under_way[news] = self._session.items[found]
        elif kind == "report":
            report = self._hook.pytest_report_from_serializable(config=self._session.config, data=found)
            self._hook.pytest_runtest_logreport(report=report)
        elif kind == "finish":
            item = self._under_way.pop(news)
            self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _end(self, news: Connection) -> None:
        """Of a process. If it died of a test, another one goes on with the file."""
        news.close()
        code = os.waitstatus_to_exitcode(os.waitpid(self._pids.pop(news), 0)[1])
        item = self._under_way.pop(news, None)
        if item is None and code:
            raise self._session.Failed(f"a process of tests ended with {code} between two tests; see above")
        if item is not None:
            is_rerun = bool(self._session.config.getoption("reruns", 0)) and item.nodeid not in self._died_of
            self._died_of.add(item.nodeid)
            outcome: Any = "rerun" if is_rerun else "failed"
            said = f"the process of this test ended with {code}"
            report = pytest.TestReport(item.nodeid, item.location, {}, outcome, said, "call", rerun=int(not is_rerun))
            self._hook.pytest_runtest_logreport(report=report)
            (file,) = (items for items in self._files if items[0].path == item.path)
            self._fork(file[file.index(item) + (not is_rerun) :])


class _Teller:
    """Stands where the reporter on the terminal was: what it hears it tells the process that collected."""

    def __init__(self, config: pytest.Config, told: Connection) -> None:
        self._config, self._told = config, told
        self._tw = config.get_terminal_writer()
        """to which pytest-timeout writes stacks"""
        self.stats: dict[str, Any] = {}
        """in which pytest-rerunfailures looks for subtests"""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._told.send(("report", data))


def _run(
    session: pytest.Session,
    first: Sequence[Sequence[pytest.Item]],
    files: Sequence[Sequence[pytest.Item]],
    work: int,
    told: Connection,
    number: int,
) -> None:
    """The life of a forked process."""
    code = 1
    with contextlib.suppress(KeyboardInterrupt):
        try:
            _prepare(session.config, told, number)
            taken = (files[int.from_bytes(index)] for index in iter(lambda: os.read(work, _INDEX_BYTES), b""))
            place = {id(item): at for at, item in enumerate(session.items)}
            nextitem: Any = session  # the fixtures of the session outlive each test
            for item in itertools.chain.from_iterable(itertools.chain(first, taken)):
                told.send(("start", place[id(item)]))
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
                told.send(("finish", None))
            code = 0
        except Exception:  # noqa: BLE001  it would go on as the process that collected
            traceback.print_exc()
        finally:
            session._setupstate.teardown_exact(None)
            atexit._run_exitfuncs()
            os._exit(code)


def _prepare(config: pytest.Config, told: Connection, number: int) -> None:
    """What a process has of its own: a place of the reporter, captured output, and a folder."""
    teller = _Teller(config, told)
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(teller, "terminalreporter")
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    factory: Any = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = Path(os.environ[FOLDER]) / f"process{number}"
    factory._basetemp.mkdir()
