import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATE_UNSPECIFIED: _ClassVar[JobState]
    JOB_STATE_QUEUED: _ClassVar[JobState]
    JOB_STATE_INGESTING: _ClassVar[JobState]
    JOB_STATE_TUNING: _ClassVar[JobState]
    JOB_STATE_VALIDATING: _ClassVar[JobState]
    JOB_STATE_COMPILING: _ClassVar[JobState]
    JOB_STATE_TIMING: _ClassVar[JobState]
    JOB_STATE_DONE: _ClassVar[JobState]
    JOB_STATE_FAILED: _ClassVar[JobState]
    JOB_STATE_CANCELLED: _ClassVar[JobState]
JOB_STATE_UNSPECIFIED: JobState
JOB_STATE_QUEUED: JobState
JOB_STATE_INGESTING: JobState
JOB_STATE_TUNING: JobState
JOB_STATE_VALIDATING: JobState
JOB_STATE_COMPILING: JobState
JOB_STATE_TIMING: JobState
JOB_STATE_DONE: JobState
JOB_STATE_FAILED: JobState
JOB_STATE_CANCELLED: JobState

class Model(_message.Message):
    __slots__ = ("name", "display_name", "size_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    display_name: str
    size_bytes: int
    def __init__(self, name: _Optional[str] = ..., display_name: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class UploadModelRequest(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: ModelHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[ModelHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ModelHeader(_message.Message):
    __slots__ = ("display_name", "sha256", "size_bytes", "offset_bytes")
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    display_name: str
    sha256: str
    size_bytes: int
    offset_bytes: int
    def __init__(self, display_name: _Optional[str] = ..., sha256: _Optional[str] = ..., size_bytes: _Optional[int] = ..., offset_bytes: _Optional[int] = ...) -> None: ...

class GetUploadRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Upload(_message.Message):
    __slots__ = ("name", "received_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    received_bytes: int
    def __init__(self, name: _Optional[str] = ..., received_bytes: _Optional[int] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Shape(_message.Message):
    __slots__ = ("dims",)
    DIMS_FIELD_NUMBER: _ClassVar[int]
    dims: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dims: _Optional[_Iterable[int]] = ...) -> None: ...

class JobSpec(_message.Message):
    __slots__ = ("model", "shares", "inputs", "target", "trials", "more", "minutes", "round_size", "only", "seed", "priority", "rerank", "variants", "exact", "namespace", "fresh", "check_inputs", "model_name", "skipped_shares")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Shape
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Shape, _Mapping]] = ...) -> None: ...
    class SkippedSharesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    MINUTES_FIELD_NUMBER: _ClassVar[int]
    ROUND_SIZE_FIELD_NUMBER: _ClassVar[int]
    ONLY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RERANK_FIELD_NUMBER: _ClassVar[int]
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    CHECK_INPUTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_SHARES_FIELD_NUMBER: _ClassVar[int]
    model: str
    shares: _containers.RepeatedScalarFieldContainer[str]
    inputs: _containers.MessageMap[str, Shape]
    target: str
    trials: int
    more: int
    minutes: float
    round_size: int
    only: str
    seed: int
    priority: int
    rerank: int
    variants: str
    exact: bool
    namespace: str
    fresh: bool
    check_inputs: str
    model_name: str
    skipped_shares: _containers.ScalarMap[str, str]
    def __init__(self, model: _Optional[str] = ..., shares: _Optional[_Iterable[str]] = ..., inputs: _Optional[_Mapping[str, Shape]] = ..., target: _Optional[str] = ..., trials: _Optional[int] = ..., more: _Optional[int] = ..., minutes: _Optional[float] = ..., round_size: _Optional[int] = ..., only: _Optional[str] = ..., seed: _Optional[int] = ..., priority: _Optional[int] = ..., rerank: _Optional[int] = ..., variants: _Optional[str] = ..., exact: _Optional[bool] = ..., namespace: _Optional[str] = ..., fresh: _Optional[bool] = ..., check_inputs: _Optional[str] = ..., model_name: _Optional[str] = ..., skipped_shares: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("name", "spec", "state", "create_time", "end_time", "error", "message", "notes", "progress", "operators", "result", "revision", "model_display_name", "roofs", "checked")
    class RoofsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Roof
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Roof, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MODEL_DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    ROOFS_FIELD_NUMBER: _ClassVar[int]
    CHECKED_FIELD_NUMBER: _ClassVar[int]
    name: str
    spec: JobSpec
    state: JobState
    create_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    error: str
    message: str
    notes: _containers.RepeatedScalarFieldContainer[str]
    progress: Progress
    operators: _containers.RepeatedCompositeFieldContainer[Operator]
    result: JobResult
    revision: int
    model_display_name: str
    roofs: _containers.MessageMap[str, Roof]
    checked: Checked
    def __init__(self, name: _Optional[str] = ..., spec: _Optional[_Union[JobSpec, _Mapping]] = ..., state: _Optional[_Union[JobState, str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[str] = ..., message: _Optional[str] = ..., notes: _Optional[_Iterable[str]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., operators: _Optional[_Iterable[_Union[Operator, _Mapping]]] = ..., result: _Optional[_Union[JobResult, _Mapping]] = ..., revision: _Optional[int] = ..., model_display_name: _Optional[str] = ..., roofs: _Optional[_Mapping[str, Roof]] = ..., checked: _Optional[_Union[Checked, _Mapping]] = ...) -> None: ...

class Checked(_message.Message):
    __slots__ = ("reference", "sets", "variants", "skipped", "reason")
    class SetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class SkippedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    SETS_FIELD_NUMBER: _ClassVar[int]
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    reference: str
    sets: _containers.ScalarMap[str, float]
    variants: _containers.RepeatedScalarFieldContainer[str]
    skipped: _containers.ScalarMap[str, str]
    reason: str
    def __init__(self, reference: _Optional[str] = ..., sets: _Optional[_Mapping[str, float]] = ..., variants: _Optional[_Iterable[str]] = ..., skipped: _Optional[_Mapping[str, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class Roof(_message.Message):
    __slots__ = ("gflops", "gb_per_s", "cache_bytes", "launch_s", "read_gb_per_s")
    GFLOPS_FIELD_NUMBER: _ClassVar[int]
    GB_PER_S_FIELD_NUMBER: _ClassVar[int]
    CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_S_FIELD_NUMBER: _ClassVar[int]
    READ_GB_PER_S_FIELD_NUMBER: _ClassVar[int]
    gflops: float
    gb_per_s: float
    cache_bytes: int
    launch_s: float
    read_gb_per_s: float
    def __init__(self, gflops: _Optional[float] = ..., gb_per_s: _Optional[float] = ..., cache_bytes: _Optional[int] = ..., launch_s: _Optional[float] = ..., read_gb_per_s: _Optional[float] = ...) -> None: ...

class Arithmetic(_message.Message):
    __slots__ = ("flops", "io_bytes", "written_bytes")
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    IO_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    flops: float
    io_bytes: int
    written_bytes: int
    def __init__(self, flops: _Optional[float] = ..., io_bytes: _Optional[int] = ..., written_bytes: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("trials_planned", "trials_done", "candidates_done", "failures", "trials_per_s", "elapsed_s", "trials_saved", "phases_s", "busy_s", "candidates_shared", "trials_known")
    class TrialsDoneEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class FailuresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class PhasesSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class BusySEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    TRIALS_PLANNED_FIELD_NUMBER: _ClassVar[int]
    TRIALS_DONE_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_DONE_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    TRIALS_PER_S_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    TRIALS_SAVED_FIELD_NUMBER: _ClassVar[int]
    PHASES_S_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_SHARED_FIELD_NUMBER: _ClassVar[int]
    TRIALS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    trials_planned: int
    trials_done: _containers.ScalarMap[str, int]
    candidates_done: int
    failures: _containers.ScalarMap[str, int]
    trials_per_s: float
    elapsed_s: float
    trials_saved: int
    phases_s: _containers.ScalarMap[str, float]
    busy_s: _containers.ScalarMap[str, float]
    candidates_shared: int
    trials_known: int
    def __init__(self, trials_planned: _Optional[int] = ..., trials_done: _Optional[_Mapping[str, int]] = ..., candidates_done: _Optional[int] = ..., failures: _Optional[_Mapping[str, int]] = ..., trials_per_s: _Optional[float] = ..., elapsed_s: _Optional[float] = ..., trials_saved: _Optional[int] = ..., phases_s: _Optional[_Mapping[str, float]] = ..., busy_s: _Optional[_Mapping[str, float]] = ..., candidates_shared: _Optional[int] = ..., trials_known: _Optional[int] = ...) -> None: ...

class Operator(_message.Message):
    __slots__ = ("display_name", "weight", "workload_hash", "trials", "best_s", "untuned_s", "selected", "arithmetic", "implementations")
    class BestSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class UntunedSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class ImplementationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_HASH_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    BEST_S_FIELD_NUMBER: _ClassVar[int]
    UNTUNED_S_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    ARITHMETIC_FIELD_NUMBER: _ClassVar[int]
    IMPLEMENTATIONS_FIELD_NUMBER: _ClassVar[int]
    display_name: str
    weight: int
    workload_hash: str
    trials: int
    best_s: _containers.ScalarMap[str, float]
    untuned_s: _containers.ScalarMap[str, float]
    selected: bool
    arithmetic: Arithmetic
    implementations: _containers.ScalarMap[str, str]
    def __init__(self, display_name: _Optional[str] = ..., weight: _Optional[int] = ..., workload_hash: _Optional[str] = ..., trials: _Optional[int] = ..., best_s: _Optional[_Mapping[str, float]] = ..., untuned_s: _Optional[_Mapping[str, float]] = ..., selected: _Optional[bool] = ..., arithmetic: _Optional[_Union[Arithmetic, _Mapping]] = ..., implementations: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ShareResult(_message.Message):
    __slots__ = ("share", "granted", "untuned_s", "tuned_s", "run_secs", "max_error", "earlier_job", "time", "at_load", "others_cores", "variant", "inside")
    class RunSecsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Repeats
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Repeats, _Mapping]] = ...) -> None: ...
    class MaxErrorEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SHARE_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    UNTUNED_S_FIELD_NUMBER: _ClassVar[int]
    TUNED_S_FIELD_NUMBER: _ClassVar[int]
    RUN_SECS_FIELD_NUMBER: _ClassVar[int]
    MAX_ERROR_FIELD_NUMBER: _ClassVar[int]
    EARLIER_JOB_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    AT_LOAD_FIELD_NUMBER: _ClassVar[int]
    OTHERS_CORES_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    INSIDE_FIELD_NUMBER: _ClassVar[int]
    share: str
    granted: GrantedShare
    untuned_s: float
    tuned_s: float
    run_secs: _containers.MessageMap[str, Repeats]
    max_error: _containers.ScalarMap[str, float]
    earlier_job: str
    time: _timestamp_pb2.Timestamp
    at_load: _containers.RepeatedCompositeFieldContainer[AtLoad]
    others_cores: float
    variant: str
    inside: Inside
    def __init__(self, share: _Optional[str] = ..., granted: _Optional[_Union[GrantedShare, _Mapping]] = ..., untuned_s: _Optional[float] = ..., tuned_s: _Optional[float] = ..., run_secs: _Optional[_Mapping[str, Repeats]] = ..., max_error: _Optional[_Mapping[str, float]] = ..., earlier_job: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., at_load: _Optional[_Iterable[_Union[AtLoad, _Mapping]]] = ..., others_cores: _Optional[float] = ..., variant: _Optional[str] = ..., inside: _Optional[_Union[Inside, _Mapping]] = ...) -> None: ...

class Inside(_message.Message):
    __slots__ = ("calls", "whole_s", "clocked_s")
    CALLS_FIELD_NUMBER: _ClassVar[int]
    WHOLE_S_FIELD_NUMBER: _ClassVar[int]
    CLOCKED_S_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[CallTime]
    whole_s: float
    clocked_s: float
    def __init__(self, calls: _Optional[_Iterable[_Union[CallTime, _Mapping]]] = ..., whole_s: _Optional[float] = ..., clocked_s: _Optional[float] = ...) -> None: ...

class CallTime(_message.Message):
    __slots__ = ("name", "calls", "secs", "workload_hash", "candidate")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    SECS_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_HASH_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    calls: int
    secs: float
    workload_hash: str
    candidate: str
    def __init__(self, name: _Optional[str] = ..., calls: _Optional[int] = ..., secs: _Optional[float] = ..., workload_hash: _Optional[str] = ..., candidate: _Optional[str] = ...) -> None: ...

class AtLoad(_message.Message):
    __slots__ = ("variant", "threads", "loop_secs", "latency_secs")
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    LOOP_SECS_FIELD_NUMBER: _ClassVar[int]
    LATENCY_SECS_FIELD_NUMBER: _ClassVar[int]
    variant: str
    threads: int
    loop_secs: _containers.RepeatedScalarFieldContainer[float]
    latency_secs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, variant: _Optional[str] = ..., threads: _Optional[int] = ..., loop_secs: _Optional[_Iterable[float]] = ..., latency_secs: _Optional[_Iterable[float]] = ...) -> None: ...

class Repeats(_message.Message):
    __slots__ = ("secs",)
    SECS_FIELD_NUMBER: _ClassVar[int]
    secs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, secs: _Optional[_Iterable[float]] = ...) -> None: ...

class JobResult(_message.Message):
    __slots__ = ("wall_s", "shares", "bundle")
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    wall_s: float
    shares: _containers.RepeatedCompositeFieldContainer[ShareResult]
    bundle: str
    def __init__(self, wall_s: _Optional[float] = ..., shares: _Optional[_Iterable[_Union[ShareResult, _Mapping]]] = ..., bundle: _Optional[str] = ...) -> None: ...

class CreateJobRequest(_message.Message):
    __slots__ = ("spec", "sizes")
    class SizesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SPEC_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    spec: JobSpec
    sizes: _containers.ScalarMap[str, int]
    def __init__(self, spec: _Optional[_Union[JobSpec, _Mapping]] = ..., sizes: _Optional[_Mapping[str, int]] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "open_only")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    OPEN_ONLY_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    open_only: bool
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., open_only: _Optional[bool] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs", "next_page_token")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    next_page_token: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CancelJobRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class WatchJobRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListCostsRequest(_message.Message):
    __slots__ = ("job", "since", "with_tokens", "page_size", "page_token")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    WITH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    job: str
    since: _timestamp_pb2.Timestamp
    with_tokens: bool
    page_size: int
    page_token: str
    def __init__(self, job: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., with_tokens: _Optional[bool] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListCostsResponse(_message.Message):
    __slots__ = ("costs", "next_page_token")
    COSTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    costs: _containers.RepeatedCompositeFieldContainer[JobCost]
    next_page_token: str
    def __init__(self, costs: _Optional[_Iterable[_Union[JobCost, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class JobCost(_message.Message):
    __slots__ = ("job", "spent", "token")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SPENT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    job: Job
    spent: _containers.RepeatedCompositeFieldContainer[Spending]
    token: str
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., spent: _Optional[_Iterable[_Union[Spending, _Mapping]]] = ..., token: _Optional[str] = ...) -> None: ...

class Spending(_message.Message):
    __slots__ = ("task", "share", "pieces", "worked_s", "cpu_s")
    TASK_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    WORKED_S_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    task: str
    share: str
    pieces: int
    worked_s: float
    cpu_s: float
    def __init__(self, task: _Optional[str] = ..., share: _Optional[str] = ..., pieces: _Optional[int] = ..., worked_s: _Optional[float] = ..., cpu_s: _Optional[float] = ...) -> None: ...

class Estimate(_message.Message):
    __slots__ = ("median", "low", "high")
    MEDIAN_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    median: float
    low: float
    high: float
    def __init__(self, median: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ...) -> None: ...

class PairedModel(_message.Message):
    __slots__ = ("model_name", "share", "variant", "slowdown", "interference")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_FIELD_NUMBER: _ClassVar[int]
    INTERFERENCE_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    share: str
    variant: str
    slowdown: Estimate
    interference: Estimate
    def __init__(self, model_name: _Optional[str] = ..., share: _Optional[str] = ..., variant: _Optional[str] = ..., slowdown: _Optional[_Union[Estimate, _Mapping]] = ..., interference: _Optional[_Union[Estimate, _Mapping]] = ...) -> None: ...

class MeasuredPair(_message.Message):
    __slots__ = ("pair_id", "models", "arrangement", "how", "host", "rounds", "measure_time", "stp", "verdict", "others_cores")
    PAIR_ID_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    ARRANGEMENT_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    MEASURE_TIME_FIELD_NUMBER: _ClassVar[int]
    STP_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    OTHERS_CORES_FIELD_NUMBER: _ClassVar[int]
    pair_id: str
    models: _containers.RepeatedCompositeFieldContainer[PairedModel]
    arrangement: str
    how: str
    host: str
    rounds: int
    measure_time: _timestamp_pb2.Timestamp
    stp: Estimate
    verdict: str
    others_cores: float
    def __init__(self, pair_id: _Optional[str] = ..., models: _Optional[_Iterable[_Union[PairedModel, _Mapping]]] = ..., arrangement: _Optional[str] = ..., how: _Optional[str] = ..., host: _Optional[str] = ..., rounds: _Optional[int] = ..., measure_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., stp: _Optional[_Union[Estimate, _Mapping]] = ..., verdict: _Optional[str] = ..., others_cores: _Optional[float] = ...) -> None: ...

class AddPairRequest(_message.Message):
    __slots__ = ("pair",)
    PAIR_FIELD_NUMBER: _ClassVar[int]
    pair: MeasuredPair
    def __init__(self, pair: _Optional[_Union[MeasuredPair, _Mapping]] = ...) -> None: ...

class AddPairResponse(_message.Message):
    __slots__ = ("added",)
    ADDED_FIELD_NUMBER: _ClassVar[int]
    added: bool
    def __init__(self, added: _Optional[bool] = ...) -> None: ...

class ListPairsRequest(_message.Message):
    __slots__ = ("page_size", "model_name")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    model_name: str
    def __init__(self, page_size: _Optional[int] = ..., model_name: _Optional[str] = ...) -> None: ...

class ListPairsResponse(_message.Message):
    __slots__ = ("pairs",)
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    pairs: _containers.RepeatedCompositeFieldContainer[MeasuredPair]
    def __init__(self, pairs: _Optional[_Iterable[_Union[MeasuredPair, _Mapping]]] = ...) -> None: ...

class RuntimeTime(_message.Message):
    __slots__ = ("time_id", "model", "inputs", "share", "runtime", "version", "loop_s", "paced_s", "bundle_loop_s", "bundle_paced_s", "loop_ratio", "paced_ratio", "host", "measure_time", "others_cores")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Shape
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Shape, _Mapping]] = ...) -> None: ...
    TIME_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOOP_S_FIELD_NUMBER: _ClassVar[int]
    PACED_S_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_LOOP_S_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_PACED_S_FIELD_NUMBER: _ClassVar[int]
    LOOP_RATIO_FIELD_NUMBER: _ClassVar[int]
    PACED_RATIO_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    MEASURE_TIME_FIELD_NUMBER: _ClassVar[int]
    OTHERS_CORES_FIELD_NUMBER: _ClassVar[int]
    time_id: str
    model: str
    inputs: _containers.MessageMap[str, Shape]
    share: str
    runtime: str
    version: str
    loop_s: float
    paced_s: float
    bundle_loop_s: float
    bundle_paced_s: float
    loop_ratio: Estimate
    paced_ratio: Estimate
    host: str
    measure_time: _timestamp_pb2.Timestamp
    others_cores: float
    def __init__(self, time_id: _Optional[str] = ..., model: _Optional[str] = ..., inputs: _Optional[_Mapping[str, Shape]] = ..., share: _Optional[str] = ..., runtime: _Optional[str] = ..., version: _Optional[str] = ..., loop_s: _Optional[float] = ..., paced_s: _Optional[float] = ..., bundle_loop_s: _Optional[float] = ..., bundle_paced_s: _Optional[float] = ..., loop_ratio: _Optional[_Union[Estimate, _Mapping]] = ..., paced_ratio: _Optional[_Union[Estimate, _Mapping]] = ..., host: _Optional[str] = ..., measure_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., others_cores: _Optional[float] = ...) -> None: ...

class AddRuntimeTimesRequest(_message.Message):
    __slots__ = ("times",)
    TIMES_FIELD_NUMBER: _ClassVar[int]
    times: _containers.RepeatedCompositeFieldContainer[RuntimeTime]
    def __init__(self, times: _Optional[_Iterable[_Union[RuntimeTime, _Mapping]]] = ...) -> None: ...

class AddRuntimeTimesResponse(_message.Message):
    __slots__ = ("added",)
    ADDED_FIELD_NUMBER: _ClassVar[int]
    added: int
    def __init__(self, added: _Optional[int] = ...) -> None: ...

class ListRuntimeTimesRequest(_message.Message):
    __slots__ = ("page_size", "model")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    model: str
    def __init__(self, page_size: _Optional[int] = ..., model: _Optional[str] = ...) -> None: ...

class ListRuntimeTimesResponse(_message.Message):
    __slots__ = ("times",)
    TIMES_FIELD_NUMBER: _ClassVar[int]
    times: _containers.RepeatedCompositeFieldContainer[RuntimeTime]
    def __init__(self, times: _Optional[_Iterable[_Union[RuntimeTime, _Mapping]]] = ...) -> None: ...

class RecordFilter(_message.Message):
    __slots__ = ("model", "operator", "share", "device", "kind", "job", "namespace")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    model: str
    operator: str
    share: str
    device: str
    kind: str
    job: str
    namespace: str
    def __init__(self, model: _Optional[str] = ..., operator: _Optional[str] = ..., share: _Optional[str] = ..., device: _Optional[str] = ..., kind: _Optional[str] = ..., job: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("kind", "isa", "units", "memory_gib", "l2_kib", "label")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ISA_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GIB_FIELD_NUMBER: _ClassVar[int]
    L2_KIB_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    kind: str
    isa: str
    units: int
    memory_gib: int
    l2_kib: int
    label: str
    def __init__(self, kind: _Optional[str] = ..., isa: _Optional[str] = ..., units: _Optional[int] = ..., memory_gib: _Optional[int] = ..., l2_kib: _Optional[int] = ..., label: _Optional[str] = ...) -> None: ...

class GrantedShare(_message.Message):
    __slots__ = ("share", "units", "units_total", "unit", "memory_bytes", "reserved", "ids", "limit", "physical_cores")
    SHARE_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    UNITS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_CORES_FIELD_NUMBER: _ClassVar[int]
    share: str
    units: int
    units_total: int
    unit: str
    memory_bytes: int
    reserved: bool
    ids: _containers.RepeatedScalarFieldContainer[int]
    limit: GrantedLimit
    physical_cores: int
    def __init__(self, share: _Optional[str] = ..., units: _Optional[int] = ..., units_total: _Optional[int] = ..., unit: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., reserved: _Optional[bool] = ..., ids: _Optional[_Iterable[int]] = ..., limit: _Optional[_Union[GrantedLimit, _Mapping]] = ..., physical_cores: _Optional[int] = ...) -> None: ...

class GrantedLimit(_message.Message):
    __slots__ = ("quota_m", "request_m", "span", "period_us", "burst_us", "burned_m")
    QUOTA_M_FIELD_NUMBER: _ClassVar[int]
    REQUEST_M_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    PERIOD_US_FIELD_NUMBER: _ClassVar[int]
    BURST_US_FIELD_NUMBER: _ClassVar[int]
    BURNED_M_FIELD_NUMBER: _ClassVar[int]
    quota_m: int
    request_m: int
    span: int
    period_us: int
    burst_us: int
    burned_m: int
    def __init__(self, quota_m: _Optional[int] = ..., request_m: _Optional[int] = ..., span: _Optional[int] = ..., period_us: _Optional[int] = ..., burst_us: _Optional[int] = ..., burned_m: _Optional[int] = ...) -> None: ...

class TimingPolicy(_message.Message):
    __slots__ = ("name", "warmups", "repeats", "min_repeat_ms", "cache", "choosing")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WARMUPS_FIELD_NUMBER: _ClassVar[int]
    REPEATS_FIELD_NUMBER: _ClassVar[int]
    MIN_REPEAT_MS_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    CHOOSING_FIELD_NUMBER: _ClassVar[int]
    name: str
    warmups: int
    repeats: int
    min_repeat_ms: float
    cache: str
    choosing: int
    def __init__(self, name: _Optional[str] = ..., warmups: _Optional[int] = ..., repeats: _Optional[int] = ..., min_repeat_ms: _Optional[float] = ..., cache: _Optional[str] = ..., choosing: _Optional[int] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("name", "kind", "candidate_id", "workload_hash", "operator", "target", "target_key", "trace", "device", "granted", "status", "cause", "run_secs", "policy", "anchor_ratio", "neighbours", "job", "worker", "measure_time", "build_secs", "max_error", "clock_mhz", "versions", "throttled_ns", "disturbance", "attempts", "namespace", "cpu_secs")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ThrottledNsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_ID_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_HASH_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TARGET_KEY_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    RUN_SECS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_RATIO_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    MEASURE_TIME_FIELD_NUMBER: _ClassVar[int]
    BUILD_SECS_FIELD_NUMBER: _ClassVar[int]
    MAX_ERROR_FIELD_NUMBER: _ClassVar[int]
    CLOCK_MHZ_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_NS_FIELD_NUMBER: _ClassVar[int]
    DISTURBANCE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CPU_SECS_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    candidate_id: str
    workload_hash: str
    operator: str
    target: str
    target_key: str
    trace: str
    device: Device
    granted: GrantedShare
    status: str
    cause: str
    run_secs: _containers.RepeatedScalarFieldContainer[float]
    policy: TimingPolicy
    anchor_ratio: float
    neighbours: int
    job: str
    worker: str
    measure_time: _timestamp_pb2.Timestamp
    build_secs: float
    max_error: float
    clock_mhz: int
    versions: _containers.ScalarMap[str, str]
    throttled_ns: _containers.ScalarMap[str, int]
    disturbance: Disturbance
    attempts: int
    namespace: str
    cpu_secs: float
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., candidate_id: _Optional[str] = ..., workload_hash: _Optional[str] = ..., operator: _Optional[str] = ..., target: _Optional[str] = ..., target_key: _Optional[str] = ..., trace: _Optional[str] = ..., device: _Optional[_Union[Device, _Mapping]] = ..., granted: _Optional[_Union[GrantedShare, _Mapping]] = ..., status: _Optional[str] = ..., cause: _Optional[str] = ..., run_secs: _Optional[_Iterable[float]] = ..., policy: _Optional[_Union[TimingPolicy, _Mapping]] = ..., anchor_ratio: _Optional[float] = ..., neighbours: _Optional[int] = ..., job: _Optional[str] = ..., worker: _Optional[str] = ..., measure_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., build_secs: _Optional[float] = ..., max_error: _Optional[float] = ..., clock_mhz: _Optional[int] = ..., versions: _Optional[_Mapping[str, str]] = ..., throttled_ns: _Optional[_Mapping[str, int]] = ..., disturbance: _Optional[_Union[Disturbance, _Mapping]] = ..., attempts: _Optional[int] = ..., namespace: _Optional[str] = ..., cpu_secs: _Optional[float] = ...) -> None: ...

class Disturbance(_message.Message):
    __slots__ = ("wall_s", "off_core_s", "steal_s", "others_s", "waited_s", "preemptions", "throttles", "throttled_s", "clock_mhz")
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    OFF_CORE_S_FIELD_NUMBER: _ClassVar[int]
    STEAL_S_FIELD_NUMBER: _ClassVar[int]
    OTHERS_S_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    THROTTLES_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_S_FIELD_NUMBER: _ClassVar[int]
    CLOCK_MHZ_FIELD_NUMBER: _ClassVar[int]
    wall_s: float
    off_core_s: float
    steal_s: float
    others_s: float
    waited_s: float
    preemptions: int
    throttles: int
    throttled_s: float
    clock_mhz: int
    def __init__(self, wall_s: _Optional[float] = ..., off_core_s: _Optional[float] = ..., steal_s: _Optional[float] = ..., others_s: _Optional[float] = ..., waited_s: _Optional[float] = ..., preemptions: _Optional[int] = ..., throttles: _Optional[int] = ..., throttled_s: _Optional[float] = ..., clock_mhz: _Optional[int] = ...) -> None: ...

class Workload(_message.Message):
    __slots__ = ("workload_hash", "json")
    WORKLOAD_HASH_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    workload_hash: str
    json: str
    def __init__(self, workload_hash: _Optional[str] = ..., json: _Optional[str] = ...) -> None: ...

class ListRecordsRequest(_message.Message):
    __slots__ = ("filter", "page_size", "page_token", "fastest_first")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FASTEST_FIRST_FIELD_NUMBER: _ClassVar[int]
    filter: RecordFilter
    page_size: int
    page_token: str
    fastest_first: bool
    def __init__(self, filter: _Optional[_Union[RecordFilter, _Mapping]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., fastest_first: _Optional[bool] = ...) -> None: ...

class ListRecordsResponse(_message.Message):
    __slots__ = ("records", "next_page_token", "total_size", "arithmetic", "roofs")
    class ArithmeticEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Arithmetic
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Arithmetic, _Mapping]] = ...) -> None: ...
    class RoofsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Roof
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Roof, _Mapping]] = ...) -> None: ...
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SIZE_FIELD_NUMBER: _ClassVar[int]
    ARITHMETIC_FIELD_NUMBER: _ClassVar[int]
    ROOFS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[Record]
    next_page_token: str
    total_size: int
    arithmetic: _containers.MessageMap[str, Arithmetic]
    roofs: _containers.MessageMap[str, Roof]
    def __init__(self, records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., total_size: _Optional[int] = ..., arithmetic: _Optional[_Mapping[str, Arithmetic]] = ..., roofs: _Optional[_Mapping[str, Roof]] = ...) -> None: ...

class ExportRecordsRequest(_message.Message):
    __slots__ = ("filter", "with_workloads")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    WITH_WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    filter: RecordFilter
    with_workloads: bool
    def __init__(self, filter: _Optional[_Union[RecordFilter, _Mapping]] = ..., with_workloads: _Optional[bool] = ...) -> None: ...

class ExportRecordsResponse(_message.Message):
    __slots__ = ("workload", "record")
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    workload: Workload
    record: Record
    def __init__(self, workload: _Optional[_Union[Workload, _Mapping]] = ..., record: _Optional[_Union[Record, _Mapping]] = ...) -> None: ...

class ImportRecordsRequest(_message.Message):
    __slots__ = ("workload", "record")
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    workload: Workload
    record: Record
    def __init__(self, workload: _Optional[_Union[Workload, _Mapping]] = ..., record: _Optional[_Union[Record, _Mapping]] = ...) -> None: ...

class ImportRecordsResponse(_message.Message):
    __slots__ = ("added", "already_there")
    ADDED_FIELD_NUMBER: _ClassVar[int]
    ALREADY_THERE_FIELD_NUMBER: _ClassVar[int]
    added: int
    already_there: int
    def __init__(self, added: _Optional[int] = ..., already_there: _Optional[int] = ...) -> None: ...

class PruneRecordsRequest(_message.Message):
    __slots__ = ("filter", "keep_best", "dry_run")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    KEEP_BEST_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    filter: RecordFilter
    keep_best: int
    dry_run: bool
    def __init__(self, filter: _Optional[_Union[RecordFilter, _Mapping]] = ..., keep_best: _Optional[int] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class PruneRecordsResponse(_message.Message):
    __slots__ = ("deleted", "kept")
    DELETED_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    deleted: int
    kept: int
    def __init__(self, deleted: _Optional[int] = ..., kept: _Optional[int] = ...) -> None: ...

class UnreadableResult(_message.Message):
    __slots__ = ("set_aside_time", "place", "reason", "event")
    SET_ASIDE_TIME_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    set_aside_time: _timestamp_pb2.Timestamp
    place: str
    reason: str
    event: str
    def __init__(self, set_aside_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., place: _Optional[str] = ..., reason: _Optional[str] = ..., event: _Optional[str] = ...) -> None: ...

class ListUnreadableRequest(_message.Message):
    __slots__ = ("page_size",)
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    def __init__(self, page_size: _Optional[int] = ...) -> None: ...

class ListUnreadableResponse(_message.Message):
    __slots__ = ("results", "total_size")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SIZE_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[UnreadableResult]
    total_size: int
    def __init__(self, results: _Optional[_Iterable[_Union[UnreadableResult, _Mapping]]] = ..., total_size: _Optional[int] = ...) -> None: ...

class ReplayUnreadableRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReplayUnreadableResponse(_message.Message):
    __slots__ = ("replayed",)
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    replayed: int
    def __init__(self, replayed: _Optional[int] = ...) -> None: ...

class MatchModelRequest(_message.Message):
    __slots__ = ("model", "share", "inputs", "target", "loosest", "allow_unmeasured", "namespace")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Shape
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Shape, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    LOOSEST_FIELD_NUMBER: _ClassVar[int]
    ALLOW_UNMEASURED_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    model: str
    share: str
    inputs: _containers.MessageMap[str, Shape]
    target: str
    loosest: str
    allow_unmeasured: bool
    namespace: str
    def __init__(self, model: _Optional[str] = ..., share: _Optional[str] = ..., inputs: _Optional[_Mapping[str, Shape]] = ..., target: _Optional[str] = ..., loosest: _Optional[str] = ..., allow_unmeasured: _Optional[bool] = ..., namespace: _Optional[str] = ...) -> None: ...

class OperatorMatch(_message.Message):
    __slots__ = ("operator", "how", "record", "regret", "reason")
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    REGRET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    operator: Operator
    how: str
    record: Record
    regret: float
    reason: str
    def __init__(self, operator: _Optional[_Union[Operator, _Mapping]] = ..., how: _Optional[str] = ..., record: _Optional[_Union[Record, _Mapping]] = ..., regret: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class MatchModelResponse(_message.Message):
    __slots__ = ("matches", "roof", "at_load", "others_cores", "inside")
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    ROOF_FIELD_NUMBER: _ClassVar[int]
    AT_LOAD_FIELD_NUMBER: _ClassVar[int]
    OTHERS_CORES_FIELD_NUMBER: _ClassVar[int]
    INSIDE_FIELD_NUMBER: _ClassVar[int]
    matches: _containers.RepeatedCompositeFieldContainer[OperatorMatch]
    roof: Roof
    at_load: _containers.RepeatedCompositeFieldContainer[AtLoad]
    others_cores: float
    inside: Inside
    def __init__(self, matches: _Optional[_Iterable[_Union[OperatorMatch, _Mapping]]] = ..., roof: _Optional[_Union[Roof, _Mapping]] = ..., at_load: _Optional[_Iterable[_Union[AtLoad, _Mapping]]] = ..., others_cores: _Optional[float] = ..., inside: _Optional[_Union[Inside, _Mapping]] = ...) -> None: ...

class TabulateModelRequest(_message.Message):
    __slots__ = ("model", "shares", "inputs", "target", "namespace")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Shape
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Shape, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    model: str
    shares: _containers.RepeatedScalarFieldContainer[str]
    inputs: _containers.MessageMap[str, Shape]
    target: str
    namespace: str
    def __init__(self, model: _Optional[str] = ..., shares: _Optional[_Iterable[str]] = ..., inputs: _Optional[_Mapping[str, Shape]] = ..., target: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class TableCell(_message.Message):
    __slots__ = ("tuned_at", "run_at", "record")
    TUNED_AT_FIELD_NUMBER: _ClassVar[int]
    RUN_AT_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    tuned_at: str
    run_at: str
    record: Record
    def __init__(self, tuned_at: _Optional[str] = ..., run_at: _Optional[str] = ..., record: _Optional[_Union[Record, _Mapping]] = ...) -> None: ...

class OperatorTable(_message.Message):
    __slots__ = ("operator", "cells")
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    operator: Operator
    cells: _containers.RepeatedCompositeFieldContainer[TableCell]
    def __init__(self, operator: _Optional[_Union[Operator, _Mapping]] = ..., cells: _Optional[_Iterable[_Union[TableCell, _Mapping]]] = ...) -> None: ...

class TabulateModelResponse(_message.Message):
    __slots__ = ("operators",)
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    operators: _containers.RepeatedCompositeFieldContainer[OperatorTable]
    def __init__(self, operators: _Optional[_Iterable[_Union[OperatorTable, _Mapping]]] = ...) -> None: ...

class DownloadBundleRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DownloadBundleResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class Worker(_message.Message):
    __slots__ = ("name", "role", "host", "pid", "start_time", "device", "granted", "versions", "state")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    host: str
    pid: int
    start_time: _timestamp_pb2.Timestamp
    device: Device
    granted: GrantedShare
    versions: _containers.ScalarMap[str, str]
    state: str
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., device: _Optional[_Union[Device, _Mapping]] = ..., granted: _Optional[_Union[GrantedShare, _Mapping]] = ..., versions: _Optional[_Mapping[str, str]] = ..., state: _Optional[str] = ...) -> None: ...

class ListWorkersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WaitingWork(_message.Message):
    __slots__ = ("role", "share", "pieces", "oldest_time")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_TIME_FIELD_NUMBER: _ClassVar[int]
    role: str
    share: str
    pieces: int
    oldest_time: _timestamp_pb2.Timestamp
    def __init__(self, role: _Optional[str] = ..., share: _Optional[str] = ..., pieces: _Optional[int] = ..., oldest_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListWorkersResponse(_message.Message):
    __slots__ = ("workers", "waiting")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[Worker]
    waiting: _containers.RepeatedCompositeFieldContainer[WaitingWork]
    def __init__(self, workers: _Optional[_Iterable[_Union[Worker, _Mapping]]] = ..., waiting: _Optional[_Iterable[_Union[WaitingWork, _Mapping]]] = ...) -> None: ...

class ListSharesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OfferedShare(_message.Message):
    __slots__ = ("device", "granted", "workers")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    device: Device
    granted: GrantedShare
    workers: int
    def __init__(self, device: _Optional[_Union[Device, _Mapping]] = ..., granted: _Optional[_Union[GrantedShare, _Mapping]] = ..., workers: _Optional[int] = ...) -> None: ...

class ListSharesResponse(_message.Message):
    __slots__ = ("shares",)
    SHARES_FIELD_NUMBER: _ClassVar[int]
    shares: _containers.RepeatedCompositeFieldContainer[OfferedShare]
    def __init__(self, shares: _Optional[_Iterable[_Union[OfferedShare, _Mapping]]] = ...) -> None: ...

class MakePlanRequest(_message.Message):
    __slots__ = ("gpu", "cores", "memory_gib", "layouts", "count", "models", "interference", "penalty", "headroom", "latency_part", "simulate", "seed")
    GPU_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GIB_FIELD_NUMBER: _ClassVar[int]
    LAYOUTS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    INTERFERENCE_FIELD_NUMBER: _ClassVar[int]
    PENALTY_FIELD_NUMBER: _ClassVar[int]
    HEADROOM_FIELD_NUMBER: _ClassVar[int]
    LATENCY_PART_FIELD_NUMBER: _ClassVar[int]
    SIMULATE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    gpu: str
    cores: int
    memory_gib: float
    layouts: str
    count: int
    models: _containers.RepeatedCompositeFieldContainer[PlanModel]
    interference: _containers.RepeatedCompositeFieldContainer[Interference]
    penalty: float
    headroom: float
    latency_part: float
    simulate: bool
    seed: int
    def __init__(self, gpu: _Optional[str] = ..., cores: _Optional[int] = ..., memory_gib: _Optional[float] = ..., layouts: _Optional[str] = ..., count: _Optional[int] = ..., models: _Optional[_Iterable[_Union[PlanModel, _Mapping]]] = ..., interference: _Optional[_Iterable[_Union[Interference, _Mapping]]] = ..., penalty: _Optional[float] = ..., headroom: _Optional[float] = ..., latency_part: _Optional[float] = ..., simulate: _Optional[bool] = ..., seed: _Optional[int] = ...) -> None: ...

class PlanModel(_message.Message):
    __slots__ = ("name", "rate_per_s", "latency_s", "memory_gib", "model", "inputs", "requests_per_run", "rows")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Shape
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Shape, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    RATE_PER_S_FIELD_NUMBER: _ClassVar[int]
    LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GIB_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_RUN_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    name: str
    rate_per_s: float
    latency_s: float
    memory_gib: float
    model: str
    inputs: _containers.MessageMap[str, Shape]
    requests_per_run: int
    rows: _containers.RepeatedCompositeFieldContainer[PlanRow]
    def __init__(self, name: _Optional[str] = ..., rate_per_s: _Optional[float] = ..., latency_s: _Optional[float] = ..., memory_gib: _Optional[float] = ..., model: _Optional[str] = ..., inputs: _Optional[_Mapping[str, Shape]] = ..., requests_per_run: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[PlanRow, _Mapping]]] = ...) -> None: ...

class PlanRow(_message.Message):
    __slots__ = ("share", "units", "batch", "processes", "throughput_per_s", "latency_s", "measured", "operators_only", "disturbed")
    SHARE_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_PER_S_FIELD_NUMBER: _ClassVar[int]
    LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_ONLY_FIELD_NUMBER: _ClassVar[int]
    DISTURBED_FIELD_NUMBER: _ClassVar[int]
    share: str
    units: int
    batch: int
    processes: int
    throughput_per_s: float
    latency_s: float
    measured: bool
    operators_only: bool
    disturbed: bool
    def __init__(self, share: _Optional[str] = ..., units: _Optional[int] = ..., batch: _Optional[int] = ..., processes: _Optional[int] = ..., throughput_per_s: _Optional[float] = ..., latency_s: _Optional[float] = ..., measured: _Optional[bool] = ..., operators_only: _Optional[bool] = ..., disturbed: _Optional[bool] = ...) -> None: ...

class Interference(_message.Message):
    __slots__ = ("model", "beside", "i")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BESIDE_FIELD_NUMBER: _ClassVar[int]
    I_FIELD_NUMBER: _ClassVar[int]
    model: str
    beside: str
    i: float
    def __init__(self, model: _Optional[str] = ..., beside: _Optional[str] = ..., i: _Optional[float] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("device", "layouts", "unit", "units_per_device", "axis", "devices", "models", "headroom", "stp", "proved", "solve_s", "simulated", "notes")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LAYOUTS_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    UNITS_PER_DEVICE_FIELD_NUMBER: _ClassVar[int]
    AXIS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    HEADROOM_FIELD_NUMBER: _ClassVar[int]
    STP_FIELD_NUMBER: _ClassVar[int]
    PROVED_FIELD_NUMBER: _ClassVar[int]
    SOLVE_S_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    device: str
    layouts: str
    unit: str
    units_per_device: int
    axis: int
    devices: _containers.RepeatedCompositeFieldContainer[PlannedDevice]
    models: _containers.RepeatedCompositeFieldContainer[PlannedModel]
    headroom: float
    stp: float
    proved: bool
    solve_s: float
    simulated: _containers.RepeatedCompositeFieldContainer[SimulatedModel]
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, device: _Optional[str] = ..., layouts: _Optional[str] = ..., unit: _Optional[str] = ..., units_per_device: _Optional[int] = ..., axis: _Optional[int] = ..., devices: _Optional[_Iterable[_Union[PlannedDevice, _Mapping]]] = ..., models: _Optional[_Iterable[_Union[PlannedModel, _Mapping]]] = ..., headroom: _Optional[float] = ..., stp: _Optional[float] = ..., proved: _Optional[bool] = ..., solve_s: _Optional[float] = ..., simulated: _Optional[_Iterable[_Union[SimulatedModel, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class PlannedDevice(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[PlannedPart]
    def __init__(self, parts: _Optional[_Iterable[_Union[PlannedPart, _Mapping]]] = ...) -> None: ...

class PlannedPart(_message.Message):
    __slots__ = ("share", "units", "place", "length", "model", "batch", "processes", "throughput_per_s", "latency_s", "basis", "error", "slowdown")
    SHARE_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_PER_S_FIELD_NUMBER: _ClassVar[int]
    LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    BASIS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_FIELD_NUMBER: _ClassVar[int]
    share: str
    units: int
    place: int
    length: int
    model: str
    batch: int
    processes: int
    throughput_per_s: float
    latency_s: float
    basis: str
    error: float
    slowdown: float
    def __init__(self, share: _Optional[str] = ..., units: _Optional[int] = ..., place: _Optional[int] = ..., length: _Optional[int] = ..., model: _Optional[str] = ..., batch: _Optional[int] = ..., processes: _Optional[int] = ..., throughput_per_s: _Optional[float] = ..., latency_s: _Optional[float] = ..., basis: _Optional[str] = ..., error: _Optional[float] = ..., slowdown: _Optional[float] = ...) -> None: ...

class PlannedModel(_message.Message):
    __slots__ = ("name", "rate_per_s", "capacity_per_s", "latency_s", "speed", "speed_error")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RATE_PER_S_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_PER_S_FIELD_NUMBER: _ClassVar[int]
    LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    SPEED_ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    rate_per_s: float
    capacity_per_s: float
    latency_s: float
    speed: float
    speed_error: float
    def __init__(self, name: _Optional[str] = ..., rate_per_s: _Optional[float] = ..., capacity_per_s: _Optional[float] = ..., latency_s: _Optional[float] = ..., speed: _Optional[float] = ..., speed_error: _Optional[float] = ...) -> None: ...

class SimulatedModel(_message.Message):
    __slots__ = ("name", "requests", "p50_s", "p99_s", "late", "holds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    P50_S_FIELD_NUMBER: _ClassVar[int]
    P99_S_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    requests: int
    p50_s: float
    p99_s: float
    late: float
    holds: bool
    def __init__(self, name: _Optional[str] = ..., requests: _Optional[int] = ..., p50_s: _Optional[float] = ..., p99_s: _Optional[float] = ..., late: _Optional[float] = ..., holds: _Optional[bool] = ...) -> None: ...
