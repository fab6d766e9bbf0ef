"""Files of today's formats, as tests/assets/present keeps them: `python -m tests.support.present_formats` makes them.

At a release they become the files of that version, and later versions have to open them.
"""

import sqlite3
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import fractune
from fractune.features.log.log import write_jsonl
from fractune_core.codec.messages import to_proto
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.store.store import Store, sqlite_url
from tests.support.paths import REPOSITORY
from tests.support.real_bundle import compile_model
from tests.support.samples import WORKLOAD, WORKLOAD_TEXT, validation

PRESENT = REPOSITORY / "tests" / "assets" / "present"
LOG, EXPORT, BUNDLE, JOB = (PRESENT / name for name in ("log.sql", "log.jsonl", "product.fractune", "job.toml"))
RECORDS = [validation("a", 1, 1e-3, record_id="aa"), validation("b", 2, 5e-4, record_id="bb")]
INPUT = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
WEIGHTS = np.linspace(2, 3, 64, dtype=np.float32).reshape(8, 8)
_TARGET = '{"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 1}'
_JOB = """\
shares = "cpu:1,cpu:2"
trials = 256
out-dir = "bundles"

[hours]
begin = "22:00"
end = "06:00"

[[models]]
file = "product.fractune"
lengths = ["x:1=16,64"]
"""


def opened_log(folder: Path) -> Store:
    """The store of LOG, as a database in `folder`."""
    with sqlite3.connect(folder / "fractune.db") as database:
        database.executescript(LOG.read_text(encoding="utf-8"))
    database.close()
    return Store(sqlite_url(folder))


def product_of(bundle: Path) -> Any:
    """What the bundle's variant for cpu:1 gives for INPUT."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it was compiled on another machine
        (output,) = fractune.load(bundle, share="cpu:1").run({"x": INPUT})
    return output


def _product(path: Path) -> Path:
    """A model of `x @ WEIGHTS`."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in "xy")
    weights = numpy_helper.from_array(WEIGHTS, "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "product", [x], [y], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def _make() -> None:
    PRESENT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        store = Store(sqlite_url(folder))
        store.log.add(RECORDS)
        store.log.add_workloads([(WORKLOAD, WORKLOAD_TEXT)])
        store.close()
        with sqlite3.connect(folder / "fractune.db") as database:
            LOG.write_text("\n".join(database.iterdump()) + "\n", encoding="utf-8")
        database.close()
        write_jsonl((pb.ExportRecordsResponse(record=to_proto(each, pb.Record)) for each in RECORDS), EXPORT)
        compile_model(_product(folder / "product.onnx"), BUNDLE, _TARGET, tuned=["cpu:1"])
    JOB.write_text(_JOB, encoding="utf-8")


if __name__ == "__main__":
    _make()
