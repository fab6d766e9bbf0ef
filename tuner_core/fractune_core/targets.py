"""Targets without TVM, in TVM's JSON: their identity, their cores and their GPU.

The target of a caller, a record or a message may have the attributes listed here, each with a value of its form.
TVM gives some attributes of a target to LLVM as a command line, which writes files and runs programs (`cl-opt`). Others
choose another compiler or library. So every text that becomes a target in some process comes through here first, in the
server before a job exists, and again in the process that makes the target.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from fractune_core.codec.plain_json import read_json
from fractune_core.errors import BadRequest, shortened

NOT_IDENTITY = ("num-cores", "tag")

FAST_MATH, TF32 = "fast-math", "tf32"
"""Options of a CUDA target, among its `keys`: functions may be approximate, and products of float32 may round their
factors to TensorFloat-32 (10 bits). Code with an option belongs to another target."""

HOST_WORDS = ("", "native", "host")
"""texts for the processor of the process that reads them"""
GPU_KEYS, GPU_OPTIONS = ("cuda", "gpu"), (FAST_MATH, TF32)
Attributes = dict[str, Any]
"""of a target, as TVM writes them in JSON"""

_HINT = 'write native, cuda:sm_90, llvm -mcpu=skylake-avx512, or JSON: {"kind": "llvm", "mcpu": "skylake-avx512"}'
_GPU_HINT = 'write cuda:sm_90, or JSON: {"kind": "cuda", "arch": "sm_90"}'
_CUDA, _CUDA_PREFIX = "cuda", "cuda:"
_LISTS = frozenset({"mattr", "keys"})
"""attributes whose value is a list: a flag has commas in it"""
_SHOWN = 200
"""characters of a text in a message"""
_TAG = re.compile(r"[a-z0-9-]{1,32}(/[a-z0-9._-]{1,64}){1,3}")
"""TVM's name for a target of its own, such as `nvidia/nvidia-h100`"""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FEATURE = re.compile(r"[+-][A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MOST_FEATURES = 512
_TRIPLE = re.compile(r"(x86_64|i[3-6]86|aarch64|arm|arm64|armv[678][a-z]?|riscv32|riscv64)(-[A-Za-z0-9_.]{1,32}){1,4}")
_ARCH = re.compile(r"sm_([1-9][0-9]{1,2})([af]?)")


def target_key(target: str) -> str:
    """Identity of a target (TVM's JSON text) for lookups, as canonical JSON.

    `num-cores` is left out. It steers the search, while a trace already holds every resulting decision. So a schedule
    that was found for one core is the same code on a target of two. Raises ValueError for text that is not JSON.
    """
    config = {name: value for name, value in json.loads(target).items() if name not in NOT_IDENTITY}
    if "mattr" in config:
        config["mattr"] = sorted(config["mattr"])
    return json.dumps(config, sort_keys=True, separators=(",", ":"))


def with_cores(target: str, cores: int) -> str:
    """The target (TVM's JSON text) with `cores` as its num-cores; unchanged for 0, and for a GPU, which has none.

    Raises ValueError as above.
    """
    config = json.loads(target)
    return target if not cores or is_cuda(config) else json.dumps({**config, "num-cores": cores})


def is_cuda(config: dict[str, Any]) -> bool:
    """Whether the target (TVM's JSON as a dict) is for an NVIDIA GPU."""
    return config.get("kind") == "cuda"


def arch_of(target: str) -> str:
    """The architecture of a CUDA target (TVM's JSON text): `sm_90`; empty without one."""
    try:
        config = read_json(target)
    except ValueError:
        return ""
    return str(config.get("arch", "")) if isinstance(config, dict) else ""


def capability(arch: str) -> int | None:
    """The compute capability of `sm_90`, `sm_90a` or `sm_100f`: 90, 90 and 100; None for any other text."""
    found = _ARCH.fullmatch(arch)
    return int(found[1]) if found else None


def runs_on(arch: str, isa: str) -> bool:
    """Whether machine code for the architecture `arch` runs on a GPU of the architecture `isa` (`sm_90`).

    Machine code is for one generation: it runs on later capabilities of one major number, `sm_90a` on just its own.
    """
    built, here = capability(arch), capability(isa)
    if built is None or here is None:
        return False
    if arch.endswith("a"):
        return built == here
    return built // 10 == here // 10 and built <= here


def check_target(text: str) -> None:
    """Raises BadRequest for a target that is refused wherever it is read. What this machine's TVM, LLVM and CUDA
    toolkit know of it is another question.
    """
    if text.strip() not in HOST_WORDS:
        read_target(text)


def read_target(text: str) -> Attributes | str:
    """The attributes that a caller's text means: JSON, `llvm -mcpu=...`, `cuda:sm_90+tf32`. A tag stays a text: TVM
    alone knows its attributes, which `checked` takes then.

    Raises BadRequest.
    """
    text = text.strip()
    if text.startswith("{"):
        return read_attributes(text)
    if text == _CUDA or text.startswith(_CUDA_PREFIX):
        return checked(text, _of_cuda(text))
    kind, *flags = text.split() or [""]
    if "/" in kind and not flags:
        if not _TAG.fullmatch(kind):
            raise _refused(text, "it is not a tag of TVM")
        return kind
    return checked(text, {"kind": kind, **dict(_flag(text, each) for each in flags)})


def read_attributes(text: str) -> Attributes:
    """The attributes in a record's or a message's text, which is JSON. Raises BadRequest."""
    try:
        found = read_json(text)
    except ValueError as error:
        raise _refused(text, f"it is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise _refused(text, "it is not a JSON object")
    return checked(text, found)


def checked(text: str, attributes: Attributes) -> Attributes:
    """The attributes as they are, if all are on the list of their kind of target and have a value of the right form.
    `text` is what the target was read from. Raises BadRequest.
    """
    kind = attributes.get("kind")
    allowed = _BY_KIND.get(kind) if isinstance(kind, str) else None
    if allowed is None:
        named = f"{_shown(kind)} is neither a CPU (llvm) nor an NVIDIA GPU (cuda)" if kind else "it names no kind"
        raise _refused(text, named)
    if kind == _CUDA and not attributes.get("arch"):
        raise BadRequest(f"{_named(text)} names no architecture, and a build has no GPU to ask; {_GPU_HINT}")
    for name, value in attributes.items():
        if name not in allowed:
            known = ", ".join(each for each in allowed if not each.startswith("feature."))
            raise _refused(text, f"a target of the kind {kind} has no {_shown(name)}; it may have {known}")
        is_right, form = allowed[name]
        if not is_right(value):
            raise _refused(text, f"{name} is {_shown(value)}, and not {form}")
    return attributes


def _of_cuda(text: str) -> Attributes:
    arch, *options = text.removeprefix(_CUDA).removeprefix(":").split("+")
    unknown = [option for option in options if option not in GPU_OPTIONS]
    if unknown:
        raise BadRequest(f"{_named(text)}: unknown option '{unknown[0]}'; there are +{' and +'.join(GPU_OPTIONS)}")
    attributes: Attributes = {"kind": _CUDA, "arch": arch}
    return {**attributes, "keys": [*GPU_KEYS, *options]} if options else attributes


def _flag(text: str, flag: str) -> tuple[str, Any]:
    """Of the form that TVM had before 0.20, and that people still have in their scripts: `-mcpu=x`, `-mattr=+a,+b`."""
    name, equals, value = flag.removeprefix("-").partition("=")
    if not flag.startswith("-") or not equals or not value:
        raise _refused(text, f"cannot read '{flag}', expected -NAME=VALUE")
    if name in _LISTS:
        return name, value.split(",")
    return name, int(value) if value.isascii() and value.isdecimal() and len(value) < _MOST_DIGITS else value


def _refused(text: str, why: str) -> BadRequest:
    return BadRequest(f"{_named(text)}: {why}; {_HINT}")


def _shown(value: Any) -> str:
    return shortened(ascii(value), _SHOWN)


def _named(text: str) -> str:
    return f"target '{ascii(shortened(text, _SHOWN))[1:-1]}'"


_Form = tuple[Callable[[Any], bool], str]
_MOST_DIGITS = 12


def _text(form: re.Pattern[str], described: str) -> _Form:
    return lambda value: isinstance(value, str) and form.fullmatch(value) is not None, described


def _one_of(*values: str) -> _Form:
    return lambda value: isinstance(value, str) and value in values, f"one of {', '.join(map(repr, values))}"


def _some_of(*values: str) -> _Form:
    def fits(value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(each, str) and each in values for each in value)

    return fits, f"a list of {', '.join(values)}"


def _whole(least: int, most: int) -> _Form:
    return lambda value: type(value) is int and least <= value <= most, f"a whole number from {least} to {most}"


def _are_features(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _MOST_FEATURES
        and all(isinstance(each, str) and _FEATURE.fullmatch(each) for each in value)
    )


def _is_arch(value: Any) -> bool:
    return isinstance(value, str) and capability(value) is not None


_IS_NAME = _text(_NAME, "a name of letters, digits, '.', '_' and '-'")
_ANY: dict[str, _Form] = {"kind": _one_of("llvm", "cuda"), "tag": _one_of("")}
_BY_KIND: dict[str, dict[str, _Form]] = {
    "llvm": {
        **_ANY,
        "keys": _some_of("cpu", "x86", "arm_cpu", "riscv_cpu"),
        "mcpu": _IS_NAME,
        "mattr": (_are_features, "a list of +NAME and -NAME"),
        "mtriple": _text(_TRIPLE, "a triple of an x86, Arm or RISC-V CPU, such as aarch64-linux-gnu"),
        "num-cores": _whole(1, 65536),
        "mabi": _IS_NAME,
        "mfloat-abi": _one_of("soft", "hard"),
        "device": _one_of("arm_cpu", "riscv_cpu"),
        "model": _IS_NAME,
        **{
            f"feature.{name}": (lambda value: isinstance(value, bool), "true or false")
            for name in (
                *("is_aarch64", "has_asimd", "has_dotprod", "has_fp16_simd"),
                *("has_matmul_i8", "has_sme", "has_sve"),
            )
        },
    },
    "cuda": {
        **_ANY,
        "arch": (_is_arch, "an architecture such as sm_90"),
        "keys": _some_of(*GPU_KEYS, *GPU_OPTIONS),
        "max_num_threads": _whole(1, 65536),
        "max_shared_memory_per_block": _whole(0, 1 << 24),
        "max_threads_per_block": _whole(1, 65536),
        "registers_per_block": _whole(1, 1 << 24),
        "thread_warp_size": _whole(1, 1024),
        "l2_cache_size_bytes": _whole(0, 1 << 40),
    },
}
"""Each attribute that TVM 0.27 reads of a target, and that decides nothing but the code. So LLVM's command line
(`cl-opt`, `opt-level`), libraries (`libs`), other compilers (`host`) and other ways to compile (`jit`) are left out."""
