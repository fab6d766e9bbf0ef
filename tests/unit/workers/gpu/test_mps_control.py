"""The text commands of the MPS control daemon: every answer is read to the last word, or it is an error."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from fractune_core.cuda import PROGRAM
from fractune_workers.gpu.mps_control import (
    MpsClient,
    MpsControl,
    MpsFailed,
    MpsUnreachable,
    Partition,
    PartitionRefused,
    ServerState,
)
from tests.support.hardware.simulated_mps import Scripted, installed_program

GPU = "GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65"
NAME = "D/79e/DgwYMDAAAAAAAAAAAAAAAAAAAAAAAA"
PS = """PID       ID    SERVER   DEVICE             NAMESPACE      COMMAND
9741      0     6472     GPU-cb1213a3-d6a4-be7f 4026531836  ./nbody -fullscreen 1
9743      0     6472     GPU-cb1213a3-d6a4-be7f 4026531836  ./matrixMul
"""
DOCUMENTED_LSPART = """GPU           Partition   free   used   free  used  clients
                          chunk  chunk  SM    SM
GPU-74d43ed3  -           0      8      74    56    -
GPU-74d43ed3  Dx4AAAAA    -      7      -     56    Yes
"""
NEWER_LSPART = f"""GPU Partition free used free used clients
chunks chunks SM SM
GPU-74 5 10 52 80
GPU-74 {NAME} 7 56 Yes
GPU-74 Ex4A 3 24 No
"""
COMMANDS: dict[str, Callable[[MpsControl], object]] = {
    "get_server_list": MpsControl.servers,
    "get_server_status": lambda control: control.server_state(6472),
    "get_client_list": lambda control: control.clients(6472),
    "ps": MpsControl.processes,
    "terminate_client": lambda control: control.terminate_client(6472, 9741),
    "sm_partition add": lambda control: control.add_partition(GPU, 4),
    "sm_partition rm": lambda control: control.remove_partition(f"{GPU}/{NAME}"),
    "lspart": MpsControl.partitions,
}
every_command = pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)


@pytest.mark.parametrize(("answer", "pids"), [("", []), ("6472\n", [6472]), ("12\n34\n", [12, 34]), ("1 2", [1, 2])])
def test_lists_of_processes(answer: str, pids: list[int]) -> None:
    assert Scripted(answer).servers() == Scripted(answer).clients(6472) == pids


@pytest.mark.parametrize("state", ServerState)
def test_the_state_of_a_server(state: ServerState) -> None:
    assert Scripted(f"{state}\n").server_state(6472) is state


@pytest.mark.parametrize("answer", ["", "INACTIVE", "ACTIVE or FAULT", "no such server"])
def test_no_state_or_two_is_no_state(answer: str) -> None:
    with pytest.raises(MpsFailed, match="get_server_status 6472"):
        Scripted(answer).server_state(6472)


def test_ps_tells_server_and_namespace_of_each_client() -> None:
    assert Scripted(PS).processes() == [MpsClient(9741, 6472, 4026531836), MpsClient(9743, 6472, 4026531836)]
    assert Scripted(PS.splitlines()[0]).processes() == Scripted("").processes() == []


def test_before_the_first_client_there_is_no_server_and_no_process() -> None:
    assert Scripted("Server not found\n").processes() == []


def test_ps_of_a_daemon_with_other_columns() -> None:
    table = """PID  USER  ID  SERVER  DEVICE  CONTEXTS  NAMESPACE   COMMAND
    9741 root  0   6472    GPU-cb  1         4026531836  ./nbody
    """
    assert Scripted(table).processes() == [MpsClient(9741, 6472, 4026531836)]


@pytest.mark.parametrize(
    "answer", ["9741 0 6472 GPU-cb 4026531836 ./nbody", "PID COMMAND\n9741 ./nbody", "Server 6472 not found"]
)
def test_ps_without_titles_or_without_one_that_is_needed_is_no_table(answer: str) -> None:
    with pytest.raises(MpsFailed, match="ps"):
        Scripted(answer).processes()


@pytest.mark.parametrize("answer", ["0", "CUDA_SUCCESS"])
def test_a_client_is_terminated_when_the_daemon_says_so(answer: str) -> None:
    Scripted(answer).terminate_client(6472, 9741)


@pytest.mark.parametrize("answer", ["", "1", "CUDA_ERROR_INVALID_VALUE", "0 clients"])
def test_any_other_answer_is_no_termination(answer: str) -> None:
    with pytest.raises(MpsFailed, match="terminate_client 6472 9741"):
        Scripted(answer).terminate_client(6472, 9741)


@pytest.mark.parametrize("answer", [f"{GPU}/{NAME}", f"Partition {GPU}/{NAME} created"])
def test_a_new_partition_is_named_in_full_with_all_its_slashes(answer: str) -> None:
    assert Scripted(answer).add_partition(GPU, 4) == f"{GPU}/{NAME}"


@pytest.mark.parametrize("answer", ["", "Failed to fulfill the requested SM partition", f"GPU-other/{NAME}", NAME])
def test_what_names_no_partition_of_this_gpu_is_a_refusal(answer: str) -> None:
    with pytest.raises(PartitionRefused, match=f"4 chunks on {GPU}"):
        Scripted(answer).add_partition(GPU, 4)


def test_partitions_as_documented() -> None:
    assert Scripted(DOCUMENTED_LSPART).partitions() == [Partition("GPU-74d43ed3", "Dx4AAAAA", 7, 56, in_use=True)]


def test_partitions_as_newer_daemons_list_them() -> None:
    first, second = Scripted(NEWER_LSPART).partitions()
    assert first == Partition("GPU-74", NAME, 7, 56, in_use=True)
    assert (second.chunks, second.sms, second.in_use) == (3, 24, False)
    assert first.is_called(f"{GPU}/{NAME}")
    assert not first.is_called(f"GPU-75/{NAME}")
    assert not second.is_called(f"{GPU}/{NAME}")


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "Static partitioning is not enabled",
        "GPU Partition",
        NEWER_LSPART + "GPU-74 Fx4 3 24 Perhaps",
        "GPU-74 Ex4A 3 24 No",
    ],
)
def test_a_table_with_a_line_too_many_or_no_gpu_is_no_table(answer: str) -> None:
    with pytest.raises(MpsFailed, match="lspart"):
        Scripted(answer).partitions()


def test_a_partition_that_is_still_listed_was_not_removed() -> None:
    with pytest.raises(MpsFailed, match="sm_partition rm"):
        Scripted(NEWER_LSPART).remove_partition(f"{GPU}/{NAME}")


@given(answer=st.text() | st.text("0123456789 -\nGPUYesNo/_"))
def test_no_answer_raises_anything_else(answer: str) -> None:
    for command in COMMANDS.values():
        with contextlib.suppress(MpsFailed):
            command(Scripted(answer))


def program(folder: Path, script: str, timeout_s: float = 20) -> MpsControl:
    """A control program that is this shell script."""
    path = folder / "control"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return MpsControl(folder, str(path), timeout_s)


@every_command
def test_rubbish_is_an_error_that_shows_it(command: Callable[[MpsControl], object], tmp_path: Path) -> None:
    with pytest.raises(MpsFailed, match="segfault at 0"):
        command(program(tmp_path, "echo segfault at 0"))


@pytest.mark.parametrize("name", ["get_server_list", "lspart"])
def test_a_program_that_hangs_is_ended_with_all_that_it_started(name: str, tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(MpsFailed, match=rf"no answer to '{name}' within 0\.3 s"):
        COMMANDS[name](program(tmp_path, "sleep 600 & wait", timeout_s=0.3))
    assert time.monotonic() - start < 10


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(MpsFailed, match=r"permission denied.*exit code 3"):
        program(tmp_path, "echo permission denied >&2; exit 3").servers()


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MpsFailed, match=r"install nvidia-compute-utils-580 or .* on Ubuntu, nvidia-cuda-mps on Debian"):
        MpsControl(tmp_path, "no-such-program").servers()


def test_no_daemon_behind_the_pipe_folder() -> None:
    with installed_program() as folder, pytest.raises(MpsUnreachable, match=str(folder)):
        MpsControl(folder, str(folder / "bin" / PROGRAM)).servers()
