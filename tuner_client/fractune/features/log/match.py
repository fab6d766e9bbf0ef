"""The record of the log that each operator of a model would use at a share, and the reason."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fractune.features.log.table import match_table
from fractune.models.open_sizes import sized_model
from fractune.models.source import ModelSource
from fractune.server.job_status import OperatorMatch, operator_match
from fractune.server.rpc import RpcClient
from fractune.sessions.session import PathText, session
from fractune.text.rendering import Table
from fractune.text.text import counts_text, marked_time, time_text
from fractune_core.analysis.at_load import AtLoad, choices
from fractune_core.analysis.inside import Inside
from fractune_core.analysis.roofline import Roof
from fractune_core.codec.messages import from_lists, from_proto
from fractune_core.cpu_limits import threads_text
from fractune_core.errors import BadRequest
from fractune_core.model_inputs import Inputs, Sizes, as_shapes
from fractune_core.names import Collection
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.served import LOAD_TEXT, ServiceGoal
from fractune_core.shares import Share


@dataclass(frozen=True)
class MatchResult:
    """The record that each operator of a model would use at a share, and the reason."""

    share: str
    operators: tuple[OperatorMatch, ...]
    roof: Roof | None = None
    """the share's roof; None = not known"""
    at_load: tuple[AtLoad, ...] = ()
    """variants of the whole model that the newest job timed at the share; empty if none did. Under a CPU limit,
    `operators` are those of the best for requests"""
    others_cores: float = 0.0
    """cores that other programs had in this timing, on average"""
    inside: Inside | None = None
    """the calls inside the variant for the share, by the same job; None if it did not time them"""

    def __repr__(self) -> str:
        counts = Counter(each.how for each in self.operators)
        return f"MatchResult({self.share}: {len(self.operators)} operators, {counts_text(counts)})"

    @property
    def table(self) -> Table:
        """A row for each operator."""
        found = match_table(self.operators, self.roof, self.inside)
        return replace(found, notes=(*self._whole_notes, *found.notes))

    @property
    def served(self) -> dict[ServiceGoal, AtLoad]:
        """The best variant of the whole model by goal; empty if it is not known."""
        return choices(self.at_load, self.others_cores)

    @property
    def _whole_notes(self) -> list[str]:
        if self.at_load and not self.served:
            busy = f"other programs had {self.others_cores:.2f} cores when the model was timed"
            at_most = marked_time(min(each.loop_s for each in self.at_load), at_most=True)
            known = f"no variant is known to be best, and the model takes {at_most} in a loop"
            return [f"{self.share}: {busy}, so {known}; tune it again on a quieter machine"]
        return [
            f"{self.share}, best for {goal}: {best.variant} with {threads_text(best.threads)}, "
            f"{time_text(best.loop_s)} in a loop, p50 {time_text(best.p50_s)}"
            f"{'' if best.p99_s is None else f' and p99 {time_text(best.p99_s)}'} at {LOAD_TEXT}"
            for goal, best in self.served.items()
        ]

    def to_json(self) -> list[dict[str, Any]]:
        """As `fractune match --json` prints it, one mapping for each operator."""
        return [dict(row) for row in self.table.rows]


def match(
    model: ModelSource,
    share: str,
    *,
    policy: str = "robust",
    allow_unmeasured: bool = False,
    inputs: Inputs | None = None,
    sizes: Sizes | None = None,
    run_script: bool = False,
    target: str = "",
    namespace: str = "",
    server: str | None = None,
    state: PathText | None = None,
) -> MatchResult:
    """The record of the log that each operator of a model would use at `share`; measures nothing.

    `model` may also be the name of a model that the server has: `JobStatus.model`. `policy` is the loosest allowed kind
    of match: `exact`, `near` or `robust`. With `allow_unmeasured` a near share's fastest record is allowed, although
    its loss was never measured. The other options and errors are those of `tune`.
    """
    with match_source(model, run_script=run_script, inputs=inputs, sizes=sizes) as (source, shapes):
        request = match_request(
            share, policy, shapes, allow_unmeasured=allow_unmeasured, target=target, namespace=namespace
        )
        with session(RpcClient, state, server, compile=True) as client:
            return answered_match(client, source, request)


@contextlib.contextmanager
def match_source(
    model: ModelSource, *, run_script: bool, inputs: Inputs | None, sizes: Sizes | None
) -> Iterator[tuple[Path | str, Inputs]]:
    """The model's file, or the name of a model that the server has, and its inputs. Raises as `model_file`, and
    BadModel for open sizes and for `sizes` of a model that is not a file.
    """
    if isinstance(model, str) and model.startswith(f"{Collection.MODELS}/") and not Path(model).exists():
        Collection.MODELS.parse(model)
        if sizes:
            raise BadRequest(f"sizes: {model} is a name; give shapes of its inputs, or the model's file")
        yield model, inputs or {}
        return
    with sized_model(model, run_script=run_script, inputs=inputs, sizes=sizes) as (path, shapes):
        yield path, shapes or {}


def match_request(
    share: str, policy: str, inputs: Inputs, *, allow_unmeasured: bool, target: str, namespace: str
) -> pb.MatchModelRequest:
    """The request without its model. Raises BadRequest for a wrong share or shape."""
    return pb.MatchModelRequest(
        share=str(Share.parse(share)),
        inputs=from_lists(as_shapes(inputs), pb.Shape),
        target=target,
        loosest=policy,
        allow_unmeasured=allow_unmeasured,
        namespace=namespace,
    )


def answered_match(client: RpcClient, source: Path | str, request: pb.MatchModelRequest) -> MatchResult:
    """The server's matches for what `match_source` yields. Raises NotFound if the server has no model of that name."""
    request.model = source if isinstance(source, str) else client.upload_model(source).name
    answer = client.match_model(request)
    roof = from_proto(Roof, answer.roof) if answer.HasField("roof") else None
    at_load = tuple(from_proto(AtLoad, each) for each in answer.at_load)
    inside = from_proto(Inside, answer.inside) if answer.HasField("inside") else None
    operators = tuple(map(operator_match, answer.matches))
    return MatchResult(request.share, operators, roof, at_load, answer.others_cores, inside)
