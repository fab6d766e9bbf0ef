"""The step `whole`: a bundle at a quarter and all of the GPU, beside `torch.compile` and ONNX Runtime with the file."""

from typing import Any

from benchmarks.gpu.packs import BUNDLE, save_encoder, sizes_of
from benchmarks.gpu.plan import WHOLE_SHARES
from benchmarks.gpu.step import given_here
from benchmarks.gpu.table.contest import confined
from benchmarks.gpu.table.verdicts import verdicts, wrong
from fractune_core.errors import FractuneError
from fractune_core.shares import Share


def main() -> None:
    given = given_here("a whole model beside its peers")
    model = given.work / "encoder.onnx"
    save_encoder(model, sizes_of(given.carried))
    found: dict[str, Any] = {}
    faults: list[str] = []
    with given.pack("second") as (_, folder):
        for left, share in zip(range(len(WHOLE_SHARES), 0, -1), WHOLE_SHARES, strict=True):
            asked = {"share": share, "bundle": str(given.work / BUNDLE), "model": str(model)}
            try:
                with confined(Share.parse(share), folder) as child:
                    answer = child.call("hold_whole", given.left_s / left, **asked)
            except FractuneError as error:
                faults.append(f"{share}: {error}")
                continue
            said = [each.text for each in verdicts(answer["contestants"])]
            faults += [f"{share}: {each}" for each in wrong(answer["contestants"])]
            found[share] = {**answer, "verdicts": said}
            print(f"{share}: {'; '.join(said)}", flush=True)
            given.write("whole", found)
    if faults:
        raise SystemExit("; ".join(faults))


if __name__ == "__main__":
    main()
