"""Records, jobs, bundles and a plan file for tests of the client."""

import io
from typing import Any

from fractune_core.codec.messages import to_proto
from fractune_core.files.bundles import RECORDS, WEIGHTS, object_entry, write_bundle
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import TRIAL_POLICY, Kind, Status, TuningRecord
from fractune_core.shares import Device, GrantedShare

DEVICE = Device("cpu", "rocketlake", 2, 24, 1280, "some CPU")


def granted(share: str = "cpu:1", units: int = 1) -> GrantedShare:
    return GrantedShare(share, units, 2, "core", 1 << 30, reserved=False, ids=tuple(range(units)))


def record(record_id: str = "aa", **changes: Any) -> TuningRecord:
    values: dict[str, Any] = {
        "record_id": record_id,
        "kind": Kind.TRIAL,
        "candidate_id": "c1",
        "workload_hash": "0123",
        "operator": "fused_conv2d",
        "target": '{"kind":"llvm"}',
        "target_key": '{"kind":"llvm"}',
        "trace": "[[],[]]",
        "device": DEVICE,
        "share": "cpu:1",
        "granted": granted(),
        "status": Status.OK,
        "cause": "",
        "run_secs": (1e-3, 1.1e-3, 1.2e-3),
        "policy": TRIAL_POLICY,
        "anchor_ratio": 1.0,
        "neighbours": 0,
        "job": "j1",
        "worker": "w1",
        "measured_at": 1_700_000_000.0,
        "versions": {"tvm": "0.27"},
    }
    return TuningRecord(**{**values, **changes})


def job_script() -> list[pb.Job]:
    """A job with two shares from start to end."""

    def at(revision: int, state: pb.JobState, done: int, **more: Any) -> pb.Job:
        operators = [
            pb.Operator(
                display_name="fused_conv2d",
                weight=3,
                workload_hash="0123",
                trials=done,
                best_s={"cpu:1": 2e-3, "cpu:2": 1e-3} if done else {},
                selected=True,
                arithmetic=pb.Arithmetic(flops=2e7, io_bytes=1 << 20),
            ),
            pb.Operator(display_name="softmax", weight=1, workload_hash="4567", selected=False),
        ]
        progress = pb.Progress(
            trials_planned=8,
            trials_done={"cpu:1": done, "cpu:2": done} if done else {},
            candidates_done=done,
            failures={"run_timeout": 1} if done else {},
            trials_per_s=2.0 if done else 0.0,
            elapsed_s=float(revision),
            trials_saved=4 if state == pb.JOB_STATE_DONE else 0,
            phases_s={"compiling": 3.0, "tuning": 8.25, "ingesting": 1.0} if done else {},
            busy_s={"build": 6.5, "measure": 0.01} if done else {},
        )
        spec = pb.JobSpec(model="models/ab", shares=["cpu:1", "cpu:2"])
        return pb.Job(
            name="jobs/j1",
            spec=spec,
            state=state,
            progress=progress,
            operators=operators,
            roofs={"cpu:1": pb.Roof(gflops=20.0, gb_per_s=10.0, cache_bytes=1 << 25, read_gb_per_s=12.0)},
            revision=revision,
            model_display_name="m.onnx",
            **more,
        )

    def result(share: str, units: int, untuned_s: float, tuned_s: float) -> pb.ShareResult:
        return pb.ShareResult(
            share=share,
            granted=to_proto(granted(share, units), pb.GrantedShare),
            untuned_s=untuned_s,
            tuned_s=tuned_s,
            run_secs={
                "untuned": pb.Repeats(secs=[untuned_s] * 3),
                "cpu:1": pb.Repeats(secs=[tuned_s] * 3),
                "cpu:2": pb.Repeats(secs=[tuned_s * 1.2] * 3),
            },
            max_error={"cpu:1": 1e-6, "cpu:2": 2e-6, "untuned": 0.0},
        )

    shares = [result("cpu:1", 1, 4e-3, 2e-3), result("cpu:2", 2, 3e-3, 1e-3)]
    return [
        at(1, pb.JOB_STATE_QUEUED, 0),
        at(2, pb.JOB_STATE_TUNING, 2, notes=["waiting for a worker: role build"]),
        at(3, pb.JOB_STATE_TUNING, 8),
        at(
            4,
            pb.JOB_STATE_DONE,
            8,
            result=pb.JobResult(wall_s=12.5, shares=shares, bundle="bundles/b1"),
        ),
    ]


def bundle_bytes(weight_bytes: bytes = b"", **changes: Any) -> bytes:
    """A bundle whose objects are no code: enough for everything that comes before loading it.

    `changes` replace what the manifest holds; None leaves it out. Times that are `measured` are `choosing` too.
    """
    manifest: dict[str, Any] = {
        "model": {"name": "m.onnx", "sha256": "ab"},
        "device": DEVICE.to_json(),
        "target": '{"kind":"llvm"}',
        "code": {"architecture": "x86_64", "features": ["avx2"]},
        "inputs": [{"name": "data", "dtype": "float32", "shape": [1, 3]}],
        "outputs": [{"name": "label", "dtype": "int64", "shape": [1]}],
        "weights": [],
        "variants": variants("untuned", "cpu:1", "cpu:4"),
        "shares": {
            "cpu:1": granted("cpu:1", 1).to_json(),
            "cpu:4": GrantedShare("cpu:4", 4, 8, "core", 1 << 30, reserved=False).to_json(),
        },
        **({"choosing": changes["measured"]} if "measured" in changes else {}),
        **changes,
    }
    entries = {
        RECORDS: b"",
        WEIGHTS: weight_bytes,
        **{object_entry(index, "lib0.o"): b"no code" for index in range(len(manifest["variants"]))},
    }
    file = io.BytesIO()
    write_bundle(file, {name: value for name, value in manifest.items() if value is not None}, entries)
    return file.getvalue()


def variants(*names: str) -> list[dict[str, Any]]:
    """As a bundle's manifest has them."""
    return [{"name": name, "objects": ["lib0.o"], "weights": []} for name in names]


def bundle_at(*cores: int, **changes: Any) -> bytes:
    """A bundle with an untuned variant and one for each share of so many cores."""
    shares = {f"cpu:{count}": granted(f"cpu:{count}", count).to_json() for count in cores}
    return bundle_bytes(**{"shares": shares, "variants": variants("untuned", *shares), **changes})


def plan_file(second: str) -> str:
    """A plan file that says all there is to say; `second` are the lines that tell the second model's speed."""
    return f"""
headroom = 0.05
penalty = 0.1
latency_part = 0.45

[device]
gpu = "A100-80GB"
count = 4

[[models]]
name = "resnet50"
rate_per_s = 829
latency_ms = 205
memory_gib = 3.5
profile = [
    {{share = "1g", batch = 8, processes = 2, throughput_per_s = 400, latency_ms = 40}},
    {{share = "mig:2g.20gb", latency_ms = 20}},
    {{share = "7g", batch = 8, throughput_per_s = 1000}},
]

[[models]]
name = "bert"
rate_per_s = 40
{second}

[[interference]]
model = "resnet50"
beside = "bert"
i = 1.08
"""
