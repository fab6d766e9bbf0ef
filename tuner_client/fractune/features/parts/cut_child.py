"""Entry of the process that cuts a model: `python -m fractune.features.parts.cut_child PARENT_PID ORDER FOLDER`.

A file that ends ONNX's or ONNX Runtime's C++ ends this process alone. ORDER is JSON with `model`, `shapes` and
`refused`; it writes the stages to FOLDER/stages.json, or a one-line error to FOLDER/error.
"""

import json
import sys
from pathlib import Path

from fractune.features.parts.cutting import cut
from fractune_core.errors import BadModel, first_line
from fractune_core.host.parent_death import die_with_parent
from fractune_core.operators import RefusedNode

STAGES, ERROR = "stages.json", "error"


def main() -> None:
    parent_pid, order, folder_name = sys.argv[1:]
    die_with_parent(int(parent_pid))
    given, folder = json.loads(order), Path(folder_name)
    refused = [RefusedNode(each["name"], each["output"], tuple(each["operators"])) for each in given["refused"]]
    try:
        stages = cut(Path(given["model"]), given["shapes"], refused, folder)
        (folder / STAGES).write_text(json.dumps(stages.to_json()), encoding="utf-8")
    except BadModel as error:
        (folder / ERROR).write_text(str(error), encoding="utf-8")
    except Exception as error:  # noqa: BLE001  ONNX raises several unrelated types at a graph that it cannot read
        (folder / ERROR).write_text(f"{Path(given['model']).name}: {first_line(error)}", encoding="utf-8")


if __name__ == "__main__":
    main()
