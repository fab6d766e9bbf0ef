"""torch.export programs: what is screened out before PyTorch sees the file.

The archives are built here in the form that `torch.export.save` writes, so that no test needs PyTorch.
"""

import importlib.util
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fractune_core.errors import BadModel
from fractune_core.files.archives import BadArchive
from fractune_workers.children.importing.model_file import load_model
from fractune_workers.children.importing.torch_program import screen

SPEC = '[1, {"type": "builtins.tuple", "context": "null", "children_spec": [{"type": null, "children_spec": []}]}]'


def node(target: str = "torch.ops.aten.relu.default") -> dict[str, Any]:
    arguments = [{"name": "self", "arg": {"as_tensor": {"name": "x"}}, "kind": 1}]
    outputs = [{"as_tensor": {"name": "relu"}}]
    return {"target": target, "inputs": arguments, "outputs": outputs, "metadata": {"torch_fn": "a;b"}, "name": "relu"}


def graph(*nodes: dict[str, Any], spec: str = SPEC, **more: Any) -> dict[str, Any]:
    calls = [{"fqn": "", "signature": {"in_spec": spec, "out_spec": spec}}]
    module = {"graph": {"nodes": list(nodes) or [node()], "tensor_values": {}}, "module_call_graph": calls}
    return {"graph_module": module, "range_constraints": {}, "guards_code": ["__import__('os')"], **more}


def weight(**more: Any) -> dict[str, Any]:
    meta = {"dtype": 7, "sizes": [{"as_int": 4}], "strides": [{"as_int": 1}], "storage_offset": {"as_int": 0}}
    meta["device"] = {"type": "cpu", "index": None}
    return {"w": {"path_name": "weight_0", "is_param": True, "use_pickle": False, "tensor_meta": meta, **more}}


def archive(
    model: Any,
    weights: dict[str, Any] | None = None,
    extra: dict[str, bytes] | None = None,
    method: int = zipfile.ZIP_STORED,
) -> bytes:
    entries = {
        "models/model.json": json.dumps(model).encode(),
        "data/weights/model_weights_config.json": json.dumps(
            {"config": weight() if weights is None else weights}
        ).encode(),
        "data/weights/weight_0": bytes(16),
        "data/constants/model_constants_config.json": b'{"config": {}}',
        "data/sample_inputs/model.pt": b"a pickle",
        "archive_format": b"pt2",
        **(extra or {}),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, contents in entries.items():
            file.writestr(f"net/{name}", contents)
    return buffer.getvalue()


def entries_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_only_graph_and_plain_weights_are_kept() -> None:
    kept = entries_of(screen(archive(graph(), extra={"data/aotinductor/x.so": b"code", "extra/note": b"text"})))
    assert kept["net/data/weights/weight_0"] == bytes(16)
    assert kept["net/data/sample_inputs/model.pt"] == b""
    assert not any("aotinductor" in name or "extra" in name for name in kept)
    read = json.loads(kept["net/models/model.json"])
    assert read["guards_code"] == []
    assert read["graph_module"]["graph"]["nodes"][0]["metadata"] == {}


@pytest.mark.parametrize(
    ("model", "weights", "words"),
    [
        (graph(node("torch.load")), None, "calls 'torch.load'"),
        (graph(node("_operator.methodcaller")), None, "calls '_operator.methodcaller'"),
        (graph(node("torch.ops.mine.kernel.default")), None, "calls 'torch.ops.mine.kernel.default'"),
        (graph(range_constraints={"s0": {}}), None, "dynamic dimensions"),
        (graph(sizes=[{"as_expr": {"expr_str": "__import__('os')"}}]), None, "dynamic dimensions"),
        (graph(part={"as_graph": {}}), None, "control flow or custom objects"),
        (graph(part={"as_custom_obj": {}}), None, "control flow or custom objects"),
        (graph(spec='[1, {"type": "collections.defaultdict", "children_spec": []}]'), None, "collections.defaultdict"),
        (graph(), weight(use_pickle=True), "holds 'w' as a pickle"),
        (graph(), weight(use_pickle=None), "holds 'w' as a pickle"),
        (graph(), weight(path_name="opaque_obj_0"), "holds 'w' as a pickle"),
        (graph(), weight(path_name="../../secret"), "holds 'w' as a pickle"),
        (graph(), weight(path_name="weight_1"), "lacks the contents of 'w'"),
        (graph(), {"w": 3}, "lists its weights in no known way"),
        ([], None, "no graph of a program"),
    ],
)
def test_what_could_run_code_is_refused(model: Any, weights: dict[str, Any] | None, words: str) -> None:
    with pytest.raises(BadModel) as caught:
        screen(archive(model, weights))
    assert words in str(caught.value)


def test_a_compressed_archive_is_not_unpacked() -> None:
    with pytest.raises(BadArchive, match=r"entry 'net/models/model\.json' is compressed"):
        screen(archive(graph(), method=zipfile.ZIP_DEFLATED))


def test_a_second_entry_of_a_name_is_not_unpacked(tmp_path: Path) -> None:
    """The first is stored, and the second, which reading by name would take, unpacks to a thousand times its size."""
    file = io.BytesIO(archive(graph()))
    with zipfile.ZipFile(file, "a") as bomb, pytest.warns(UserWarning, match="Duplicate name"):
        bomb.writestr("net/data/weights/weight_0", bytes(2**20), zipfile.ZIP_DEFLATED)
    path = tmp_path / "net.pt2"
    path.write_bytes(file.getvalue())
    with pytest.raises(BadModel, match=r"^net\.pt2: .* two entries named 'net/data/weights/weight_0'; copy or export"):
        load_model(path)


def test_a_truncated_archive(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    path.write_bytes(archive(graph())[:-40])
    with pytest.raises(BadModel, match=r"^net\.pt2: .* not a whole zip archive; copy or export it again$"):
        load_model(path)


def test_an_archive_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("archive/data.pkl", b"pickle")
    path.write_bytes(buffer.getvalue())
    with pytest.raises(BadModel, match=r"torch\.export\.save"):
        load_model(path)


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed")
def test_without_pytorch_the_message_names_the_extra(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    path.write_bytes(archive(graph()))
    with pytest.raises(BadModel, match=r"pip install 'fractune\[torch\]'"):
        load_model(path)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is an extra")
def test_a_program_gives_the_same_output(tmp_path: Path) -> None:
    import numpy as np
    import torch
    import tvm

    from tests.support.unoptimized import outputs_of

    path = tmp_path / "net.pt2"
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()).eval()
    x = torch.randn(1, 3, 16, 16)
    torch.export.save(torch.export.export(net, (x,)), path)
    (output,) = outputs_of(load_model(path), tvm.target.Target("llvm"), x.numpy())
    np.testing.assert_allclose(output, net(x).detach().numpy(), rtol=1e-4, atol=1e-5)
