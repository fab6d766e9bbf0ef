"""A folder of an exported model: its graphs, with sizes from its configuration.

Hugging Face's optimum writes `config.json` beside `encoder_model.onnx`, `decoder_model_merged.onnx` and others;
onnxruntime-genai writes `genai_config.json`, which names its graphs. Files come from strangers: no link is followed.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from fractune.models.external_data import opened
from fractune.models.inspection import Inspection
from fractune.models.open_sizes import CACHE_BRANCH, ENCODER_NAME, PASTS, STEPS, inspect
from fractune_core.codec.plain_json import is_storable, read_json
from fractune_core.errors import BadModel, BadRequest, shortened, some_of
from fractune_core.files.manifests import LOGITS
from fractune_core.files.model_files import Interface, read_interface
from fractune_core.model_inputs import BATCH_NAME, MOST_SIZE, PAST_NAME, NamedSizes, Sizes

_OPTIMUM, _GENAI = "config.json", "genai_config.json"
_MOST_CONFIG_BYTES = 1 << 20
_MOST_FILES = 1000
"""looked at in a folder"""
_MOST_GRAPHS = 16
_SHOWN = 80
_SUFFIX = ".onnx"
_MERGED = "decoder_model_merged.onnx"
_IN_MERGED = ("decoder_model.onnx", "decoder_with_past_model.onnx")
"""the merged graph holds both"""
_CONTEXT = ("context_length", "max_position_embeddings", "n_positions", "max_target_positions", "max_length")
"""keys of the longest text that a model takes, the surest first"""
_SOURCE, _MELS = "max_source_positions", "num_mel_bins"
"""keys of a speech recogniser's encoder: steps after its strides of two, and features of a step"""
_LONGEST = 512
"""of suggested texts without a cache"""
_TEXTS = (64, 256)
_TEXT_NAME = re.compile(r".*(seq|len|tokens).*|s", re.IGNORECASE)
_HALF_NAME = re.compile(r".*/ ?2|.*length_out", re.IGNORECASE)
_TOTAL_NAME = re.compile(r"total.*", re.IGNORECASE)


@dataclass(frozen=True)
class FolderGraph:
    """A graph of a folder."""

    path: Path
    sizes: Mapping[str, tuple[int, ...]]
    """by name, of what it leaves open"""
    open_sizes: NamedSizes
    has_logits: bool

    def takes(self, name: str) -> bool:
        """Whether it leaves an axis of this name, or at this place, open."""
        try:
            self.open_sizes.named(name)
        except BadRequest:
            return False
        return True


@dataclass(frozen=True)
class ModelFolder:
    path: Path
    config: str
    """the file that the sizes are from; empty for none"""
    graphs: tuple[FolderGraph, ...]
    left_out: tuple[str, ...]
    """graphs that another one holds"""

    def sizes(self, given: Sizes) -> list[dict[str, int | Sequence[int]]]:
        """Of each graph: those from the configuration, and in their place those `given` for names that it leaves open.
        Raises BadRequest for a name that no graph has.
        """
        strange = next((name for name in given if not any(each.takes(name) for each in self.graphs)), None)
        if strange is not None:
            shown = shortened(strange, _SHOWN)
            raise BadRequest(f"{self.path}: no graph has an open axis named '{shown}'; inspect shows the names")
        return [
            {**each.sizes, **{name: sizes for name, sizes in given.items() if each.takes(name)}} for each in self.graphs
        ]


def size_options(sizes: Sizes) -> list[str]:
    """Words of a command line."""
    several = {name: [each] if isinstance(each, int) else each for name, each in sizes.items()}
    return [word for name, each in several.items() for word in ("--size", f"{name}={','.join(map(str, each))}")]


def read_folder(folder: Path) -> ModelFolder:
    """The graphs of a folder. Raises BadModel for one without graphs, with links or special files among what it names,
    and for a configuration that is damaged or too large.
    """
    config = next((name for name in (_GENAI, _OPTIMUM) if os.path.lexists(folder / name)), "")
    held = _config(folder, config) if config else {}
    names = list(dict.fromkeys(_named_graphs(held))) if config == _GENAI else _files(folder)
    has_merged = any(Path(name).name == _MERGED for name in names)
    left_out = tuple(name for name in names if has_merged and Path(name).name in _IN_MERGED)
    names = [name for name in names if name not in left_out]
    if not names:
        raise BadModel(f"{folder}: this folder has no graph (*{_SUFFIX}); name a model file, or a folder of an export")
    if len(names) > _MOST_GRAPHS:
        raise BadModel(f"{folder}: {len(names)} graphs, and {_MOST_GRAPHS} is the limit; name one model file in it")
    return ModelFolder(folder, config, tuple(_graph(folder, name, held) for name in names), left_out)


def _graph(folder: Path, name: str, config: Mapping[str, Any]) -> FolderGraph:
    os.close(opened(folder, name, "a graph"))
    found = read_interface(folder / name)
    if found is None:
        raise BadModel(f"{folder / name}: is not an ONNX file; export it again")
    return FolderGraph(
        folder / name,
        _sizes(found, _numbers(config)),
        found.sizes_with(),
        any(each.name == LOGITS for each in found.outputs),
    )


def _files(folder: Path) -> list[str]:
    """The graphs of an export by optimum: in the folder, or in its folder `onnx`."""
    for inner in (".", "onnx"):
        try:
            with os.scandir(folder / inner) as entries:
                names = sorted(entry.name for entry in islice(entries, _MOST_FILES))
        except OSError:
            continue
        found = [name for name in names if name.endswith(_SUFFIX)]
        if found:
            return [name if inner == "." else f"{inner}/{name}" for name in found]
    return []


def _config(folder: Path, name: str) -> Mapping[str, Any]:
    with os.fdopen(opened(folder, name, "the configuration"), "rb") as file:
        data = file.read(_MOST_CONFIG_BYTES + 1)
    if len(data) > _MOST_CONFIG_BYTES:
        raise BadModel(
            f"{folder / name}: more than {_MOST_CONFIG_BYTES >> 20} MiB for a configuration; export it again"
        )
    try:
        held = read_json(data)
    except ValueError as error:
        raise BadModel(f"{folder / name}: is not JSON ({shortened(str(error), 80)}); export it again") from error
    if not isinstance(held, dict):
        raise BadModel(f"{folder / name}: is not an object of JSON; export it again")
    return held


def _named_graphs(value: object, depth: int = 0) -> Iterator[str]:
    """The values of `filename` in a configuration of onnxruntime-genai."""
    inner: list[object] = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if isinstance(value, dict) and is_storable(value.get("filename")):
        yield value["filename"]
    for each in inner if depth < 8 else []:
        yield from _named_graphs(each, depth + 1)


def _numbers(config: Mapping[str, Any]) -> dict[str, int]:
    """The whole numbers of a configuration, and of the parts of it."""
    found: dict[str, int] = {}
    waiting: list[Mapping[str, Any]] = [config]
    while waiting:
        for key, each in waiting.pop(0).items():
            if isinstance(each, dict):
                waiting.append(each)
            elif isinstance(each, int) and not isinstance(each, bool) and 1 <= each <= MOST_SIZE:
                found.setdefault(key, each)
    return found


def _sizes(found: Interface, config: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Sizes of the names that the graph leaves open, no larger than the configuration allows. A name that nothing is
    known of is left out.
    """
    context = next((config[key] for key in _CONTEXT if key in config), _LONGEST)
    names = found.sizes_with().names
    has_past = any(map(PAST_NAME.fullmatch, names))
    has_encoder = any(map(ENCODER_NAME.fullmatch, names))
    steps = STEPS[:1] if has_encoder else STEPS
    # Of a past of 0, the branch without a cache computes what all later steps read of the encoder.
    first = (0,) if has_encoder and any(each.name == CACHE_BRANCH for each in found.inputs) else ()
    frames = 2 * config[_SOURCE] if {_SOURCE, _MELS} <= config.keys() else 0
    rules = (
        (BATCH_NAME, (1,)),
        (re.compile("feature_size"), (config.get(_MELS, 0),)),
        (_HALF_NAME, (frames // 2,)),
        (ENCODER_NAME, (frames,) if frames else _up_to(min(context, _LONGEST), _TEXTS)),
        (PAST_NAME, (*first, *_up_to(context - 1, PASTS))),
        (_TOTAL_NAME, ()),
        (_TEXT_NAME, _up_to(context, steps) if has_past else _up_to(min(context, _LONGEST), _TEXTS)),
    )
    made = {name: next((sizes for rule, sizes in rules if rule.fullmatch(name)), ()) for name in names}
    return {name: sizes for name, sizes in made.items() if sizes and sizes[-1] > 0}


def _up_to(most: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(min(size, most) for size in sizes))


def described(folder: ModelFolder) -> list[str]:
    """Lines for people."""
    names = some_of(str(each.path.relative_to(folder.path)) for each in folder.graphs)
    lines = [f"graphs:    {names}; sizes from {folder.config or 'names alone, without a configuration'}"]
    if folder.left_out:
        lines.append(f"left out:  {some_of(folder.left_out)}, which {_MERGED} holds")
    return lines


def inspect_folder(folder: str | os.PathLike[str], *, sizes: Mapping[str, int] | None = None) -> dict[str, Inspection]:
    """The graphs of an exported model, by their files in the folder, each as `fractune.inspect` shows it, with the
    largest of the sizes from the configuration. `sizes` by name take their place. Raises BadModel, and BadRequest for a
    name that no graph has.
    """
    found = read_folder(Path(folder))
    return {
        str(each.path.relative_to(found.path)): inspect(
            each.path, sizes={name: one if isinstance(one, int) else max(one) for name, one in own.items()}
        )
        for each, own in zip(found.graphs, found.sizes(sizes or {}), strict=True)
    }
