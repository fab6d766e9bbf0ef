"""A file that is of two formats: an ONNX model, and another model in ONNX Runtime's own format."""

import struct
from pathlib import Path

import onnx
import onnxruntime

_HEAD = bytes([8, 8, 0xFD, 0]) + b"ORTM"
"""For protobuf: the IR version 8, and an unknown field of four bytes. For ONNX Runtime: where the root of its tables
lies, and the name of its format.
"""
_DOC_STRING = b"\x32"


def of_two_formats(visible: onnx.ModelProto, hidden: onnx.ModelProto, folder: Path) -> bytes:
    """As ONNX it is the `visible` model, of IR version 8; as a file of ONNX Runtime's own format the `hidden` one."""
    tables = _tables(hidden, folder / "hidden.ort")
    moved = int.from_bytes(_HEAD[:4], "little") - int.from_bytes(tables[:4], "little")
    assert moved % 16 == 0, "the tables keep their alignment"
    rest = onnx.ModelProto()
    rest.CopyFrom(visible)
    rest.ClearField("ir_version")
    begun = _HEAD + rest.SerializeToString() + _DOC_STRING
    padding = moved + 8 - len(begun) - 4
    return begun + _varint(padding + len(tables) - 8) + bytes(padding) + tables[8:]


def _tables(model: onnx.ModelProto, path: Path) -> bytes:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.save_model_format", "ORT")
    model.producer_name = model.doc_string = "set"  # the tables then begin at an odd multiple of 8, as in the head
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return path.read_bytes()


def _varint(number: int) -> bytes:
    """In four bytes, as all numbers from 2^21 to 2^28 are."""
    return struct.pack("4B", *(number >> shift & 127 | (128 if shift < 21 else 0) for shift in (0, 7, 14, 21)))
