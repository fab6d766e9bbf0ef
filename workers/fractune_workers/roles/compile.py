"""Compile: model file -> operators, and later model file + schedules -> bundle."""

import contextlib
import hashlib
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fractune_core.codec.plain_json import from_json
from fractune_core.errors import FractuneError, NotFound
from fractune_core.files.compared import Checked
from fractune_core.fleet.blobs import put_signed_file, read_blob
from fractune_core.fleet.messages import Compiled, CompileWork, Event, Ingested, IngestWork, OperatorItem
from fractune_core.fleet.redis_names import COMPILE_QUEUE, SERVER_STREAM, bundle_blob, kernel_blob, model_blob
from fractune_core.fleet.signed_messages import Refused, Unsigned
from fractune_core.host.machine import model_memory_bytes
from fractune_core.host.private_folders import copy_strangers_file, empty_dir, remove_tree
from fractune_core.names import check_file_name
from fractune_core.records import UNTUNED, candidate_id
from fractune_workers.child import Child
from fractune_workers.child.errors import CALL_ERRORS, CallFailed, ChildUnwanted, retry_if_killed
from fractune_workers.context import WorkerContext
from fractune_workers.reader import CHECKING_CHILD, check_bundle, reader_child, write_checked
from fractune_workers.roles import Role

_CHILD = "fractune_workers.children.compiling.child"
_INGEST_TIMEOUT_S = 600.0
_COMPILE_TIMEOUT_S = 1800.0
_RECYCLE_CALLS = 50
_SHA256, _KERNEL = re.compile("[0-9a-f]{64}"), re.compile(b"[0-9a-f]{32}")

_log = logging.getLogger(__name__)


class Compiler(Role):
    def __init__(
        self, context: WorkerContext, memory_bytes: int | None = None, secret_files: Sequence[Path] = ()
    ) -> None:
        """`memory_bytes`: memory limit for one model, by default a share of the host. The child that reads models
        cannot read `secret_files`.
        """
        self._context = context
        self._memory_bytes = model_memory_bytes(memory_bytes)
        # Of the folder that the child writes in, this process takes the result alone: the child may forge the rest.
        self._models_dir, self._childs_dir, self._bundles_dir, self._checkers_dir = (
            context.scratch_dir / name for name in ("models", "child", "bundles", "checker")
        )
        for folder in (self._models_dir, self._childs_dir, self._bundles_dir, self._checkers_dir):
            folder.mkdir()
        self._tenant = ""
        self._owner: str | None = None
        self._child = reader_child(
            _CHILD,
            model=self._models_dir,
            own_dir=self._childs_dir,
            hidden=secret_files,
            memory_bytes=self._memory_bytes,
            recycle_calls=_RECYCLE_CALLS,
        )
        # ONNX Runtime reads the model there, and may crash.
        self._checker = reader_child(
            CHECKING_CHILD,
            model=self._models_dir,
            own_dir=self._checkers_dir,
            also=[self._bundles_dir],
            hidden=secret_files,
            memory_bytes=self._memory_bytes,
            recycle_calls=_RECYCLE_CALLS,
        )

    # No warm-up: the child starts with the first work. A command that has none should not load TVM.

    def queue(self) -> str:
        return COMPILE_QUEUE

    def stop(self) -> None:
        self._child.stop()
        self._checker.stop()

    def handle(self, work: IngestWork | CompileWork) -> None:
        transaction = self._context.transaction(work)
        self._serve(work.tenant, work.owner)
        try:
            event: Event = self._ingest(work) if work.task == "ingest" else self._compile(work)
            transaction.event(SERVER_STREAM, event)
        except ChildUnwanted as error:
            _log.info("%s %s: %s", work.task, work.work_id, error)
        except FractuneError as error:
            transaction.event(SERVER_STREAM, transaction.failure(*_failure(work, error)))
        transaction.send()

    def _serve(self, tenant: str, owner: str) -> None:
        """For another owner than before, start from nothing. A process that has read a model may still hold some of it,
        and can read the files of those that were fetched.
        """
        if (tenant, owner) != (self._tenant, self._owner):
            self.stop()
            empty_dir(self._models_dir)
            self._tenant, self._owner = tenant, owner

    @contextlib.contextmanager
    def _computing(self, child: Child, work: IngestWork | CompileWork) -> Iterator[None]:
        """The child gives way to measurements: a slow model would keep them all waiting."""
        with self._context.computing(child), child.while_wanted(lambda: self._context.is_wanted(work)):
            yield

    def _ingest(self, work: IngestWork) -> Ingested:
        model = self._model_args(work)
        with self._computing(self._child, work):
            answer = self._call("ingest", _INGEST_TIMEOUT_S, **model, isa=work.isa)
        operators = from_json(list[OperatorItem], answer.pop("operators"))
        return Ingested(job=work.job, operators=operators, **answer)

    def _compile(self, work: CompileWork) -> Compiled:
        out = self._childs_dir / "compiled.fractune"
        wanted = {"variants": work.variants, "manifest": work.manifest, "records": work.records, "out": str(out)}
        wanted |= self._model_args(work) | self._built(work)
        try:
            with self._computing(self._child, work):
                self._call("compile_bundle", _COMPILE_TIMEOUT_S, **wanted)
            bundle = self._take(out)
        finally:
            remove_tree(out)
        checked = bundle.with_name("checked.fractune")
        try:
            write_checked(bundle, checked, self._checked(work, bundle))
            put_signed_file(self._context.redis, self._context.secret, bundle_blob(work.bundle), checked)
        finally:
            bundle.unlink()
            checked.unlink(missing_ok=True)
        return Compiled(job=work.job, bundle=work.bundle)

    def _built(self, work: CompileWork) -> dict[str, bytes]:
        """Code of the bundle's kernels that builders have made lately, by what names a kernel there."""
        chosen = {pair for variant in work.variants for pair in variant.traces.items()}
        chosen |= {(each["workload_hash"], UNTUNED) for each in work.manifest["operators"]}
        found = dict[str, bytes]()
        for workload_hash, trace in chosen:
            name = kernel_blob(work.tenant, candidate_id(workload_hash, work.manifest["target_key"], trace))
            with contextlib.suppress(NotFound, Unsigned):
                kernel, _, code = self._context.signed_blob(name).partition(b"\n")
                if _KERNEL.fullmatch(kernel):
                    found[kernel.decode()] = code
        return found

    def _checked(self, work: CompileWork, bundle: Path) -> Checked:
        """What was compared of the bundle. Raises OutputsDiffer, BadRequest."""
        given = self._model_file(work.check_inputs, "inputs.npz") if work.check_inputs else None
        with self._computing(self._checker, work):
            return check_bundle(
                self._checker, bundle, self._model_file(work.model, work.model_name), work.inputs, given
            )

    def _take(self, out: Path) -> Path:
        """The child's file as one that the child cannot change. Raises CallFailed when it has not left a file there."""
        bundle = self._bundles_dir / "compiled.fractune"
        try:
            copy_strangers_file(out, bundle, self._memory_bytes)
        except OSError as error:
            raise CallFailed(f"the child left no bundle: {error.strerror}") from error
        return bundle

    def _call(self, method: str, timeout_s: float, **payload: Any) -> Any:
        def call() -> Any:
            self._child.ensure()
            self._child.log_lacking("reads models")
            return self._child.call(method, timeout_s, **payload)

        return retry_if_killed(call)

    def _model_args(self, work: IngestWork | CompileWork) -> dict[str, Any]:
        path = self._model_file(work.model, work.model_name)
        return {"path": str(path), "inputs": work.inputs, "target": work.target}

    def _model_file(self, digest: str, name: str) -> Path:
        """An uploaded file as a file that the child cannot change. Messages of the importer quote the model's name."""
        if not _SHA256.fullmatch(digest):  # it becomes a path
            raise Refused(f"the model {digest[:80]!a} is not named by a SHA-256 in hexadecimal")
        check_file_name(Path(name).name, "the model's name")
        path = self._models_dir / digest / Path(name).name
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            self._fetch(digest, path)
        return path

    def _fetch(self, digest: str, path: Path) -> None:
        """Raises NotFound, and Unsigned when the file is not the one that was uploaded."""
        partial = path.with_name(f"{path.name}.partial")
        found = hashlib.sha256()
        with partial.open("wb") as file:
            for chunk in read_blob(self._context.redis, model_blob(self._tenant, digest)):
                found.update(chunk)
                file.write(chunk)
        if found.hexdigest() != digest:
            partial.unlink()
            raise Unsigned(f"'{path.name}' in Redis is not the file that was uploaded ({digest}); upload it again")
        partial.rename(path)


def _failure(work: IngestWork | CompileWork, error: FractuneError) -> tuple[str, str]:
    """The error's class for the user, and its message."""
    if not isinstance(error, CALL_ERRORS):
        return type(error).__name__, str(error)
    doing = "be read" if work.task == "ingest" else "be compiled"
    return "BadModel", f"{work.model_name} could not {doing}: {error}"
