"""The whole backend of one model instance, apart from Triton: starts, wires and stops the parts."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluiceway.delivery.source import DeliverySource
from sluiceway.runtime.admin import AdminServer
from sluiceway.runtime.codec import Outputs, RawRequest, parse
from sluiceway.runtime.config import Config, model_dir
from sluiceway.runtime.config_file import load_config
from sluiceway.runtime.control import is_control, parse_control
from sluiceway.runtime.driver import Driver
from sluiceway.runtime.driver_thread import DriverThread, Inbox
from sluiceway.runtime.engine_loop import EngineLoop
from sluiceway.runtime.engines import build_engine
from sluiceway.runtime.errors import ErrorCode, RequestError
from sluiceway.runtime.messages import Admit, Control, Drain, EngineDied, Records, Refuse, Snapshot, Tokens
from sluiceway.runtime.outbox import Outbox
from sluiceway.runtime.pump import Pump
from sluiceway.runtime.response_path import Responder, ResponsePath
from sluiceway.runtime.spool_reader import SpoolReader
from sluiceway.runtime.spool_redis import redis_place
from sluiceway.runtime.spool_writer import SpoolWriter
from sluiceway.runtime.statistics import as_json
from sluiceway.runtime.watch import (
    DrainWatch,
    ParentWatch,
    end_with_parent,
    parent_exit_timeout_s,
    parent_grpc_address,
)
from sluiceway.runtime.wire import frame_overhead_bytes

_ASK_TIMEOUT_S = 5.0
_STOP_SLACK_S = 2.0
EXIT_FATAL = 70  # EX_SOFTWARE: the supervisor starts us again


def log(message: str) -> None:
    """To stderr, which tritonserver's log takes in. Never called per token, never with a prompt's text."""
    print(f"sluiceway: {message}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class ModelName:
    name: str
    version: str


def config_path(model_folder: Path) -> Path:
    """SLUICEWAY_CONFIG, else the file beside config.pbtxt."""
    return Path(os.environ.get("SLUICEWAY_CONFIG") or model_folder / "sluiceway.yaml")


class Service:
    """start() raises ConfigError or ListenerError; then nothing runs. submit() is for Triton's thread."""

    def __init__(self, path: Path, model: ModelName, clock: Callable[[], float] = time.monotonic) -> None:
        config = load_config(path)
        self._config: Config = config
        self._model = model
        self._clock = clock
        self._inbox = Inbox()
        weights = model_dir(config, path, os.environ.get("SLUICEWAY_MODEL_DIR"))
        self._engine = build_engine(config.engine_settings(), weights)
        self._engine_loop = EngineLoop(
            self._engine,
            clock=clock,
            on_tokens=lambda events, at, load: self._inbox.post(Tokens(events, at, load)),
            on_death=self._engine_died,
        )
        self._pump = Pump(
            workers=config.pump.workers,
            max_blocked=config.pump.max_blocked,
            slow_send_s=config.pump.slow_send_s,
            clock=clock,
            on_fatal=self._die,
        )
        self._source = DeliverySource(
            config.delivery.listen,
            config.delivery.record_timeout_s,
            lambda records: self._inbox.post(Records(records)),
        )
        self._spool_writer: SpoolWriter | None = None
        self._spool_reader: SpoolReader | None = None
        if (place := redis_place(config, os.environ.get("SLUICEWAY_REDIS_URL"))) is not None:
            self._spool_writer = SpoolWriter(place, clock=clock, log=log)
            self._spool_reader = SpoolReader(place, self._inbox.post, clock=clock, log=log)
        self._driver = Driver(
            config,
            engine=self._engine_loop,
            outbox=Outbox(self._pump, self._inbox.post, log),
            overhead_bytes=self._overhead_bytes,
            log=log,
            spool_writer=self._spool_writer,
            spool_reader=self._spool_reader,
        )
        self._driver_thread = DriverThread(
            self._driver, self._inbox, clock=clock, tend=self._pump.tend, on_death=self._die
        )
        self._admin = AdminServer(config.admin.listen, self)
        self._parent_watch = ParentWatch()
        self._stopped = threading.Event()
        self._drain_watch: DrainWatch | None = None
        watched = parent_grpc_address() if config.drain_watch == "auto" else config.drain_watch
        if watched is not None:
            self._drain_watch = DrainWatch(watched, self._server_exits)

    def start(self) -> None:
        try:
            self._source.start()
        except Exception:
            self._admin.close()
            raise
        self._pump.start()
        if self._spool_writer is not None and self._spool_reader is not None:
            self._spool_writer.start()
            self._spool_reader.start()
        self._driver_thread.start()
        self._engine_loop.start()
        self._parent_watch.start()
        if self._drain_watch is not None:
            self._drain_watch.start()
        self._admin.start()

    def submit(self, raw: RawRequest, responder: Responder) -> None:
        """Take a request over, or answer why not. Never raises, never blocks on anything but tokenizing."""
        if self._drain_watch is not None:
            self._drain_watch.saw_request()
        try:
            if is_control(raw):
                self._inbox.post(Control(parse_control(raw), ResponsePath(responder, Outputs())))
                return
            request = parse(raw, self._config.admission)
        except RequestError as error:
            self._inbox.post(Refuse(None, ResponsePath(responder, Outputs()), str(error), error.code))
            return
        path = ResponsePath(responder, request.outputs, request.prompt if request.echo else "", request.stream_id)
        if request.resume_frame is not None:
            self._inbox.post(Admit(request, (), path))
            return
        try:
            prompt_token_ids = self._encode(request.prompt)
        except RequestError as error:
            self._inbox.post(Refuse(request.rpc_id, path, str(error), error.code))
        except Exception as error:
            # Without the error's own text: a tokenizer may quote the prompt.
            log(f"tokenizer raised {type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}")
            self._inbox.post(Refuse(request.rpc_id, path, "text_input: cannot be tokenized", ErrorCode.INTERNAL))
        else:
            self._inbox.post(Admit(request, prompt_token_ids, path))

    def statistics(self) -> dict[str, Any]:
        """GET /statistics. Raises TimeoutError if a thread does not answer."""
        engine = self._engine_loop.snapshot()
        answer: Future[Any] = Future()
        self._inbox.post(Snapshot(answer))
        driver = answer.result(_ASK_TIMEOUT_S)
        delivery = self._source.statistics(driver.now)
        return as_json(driver, engine.result(_ASK_TIMEOUT_S), delivery, self._pump.statistics())

    def finished_since(self, n: int) -> dict[str, Any]:
        return self._driver.finished.since(n)

    def drain(self) -> None:
        """Refuse new requests, end open streams with ``shutdown``. Raises TimeoutError if that takes too long."""
        done: Future[None] = Future()
        self._inbox.post(Drain(done))
        done.result(self._config.flow_control.drain_timeout_s + _STOP_SLACK_S)

    def stop(self) -> None:
        """Drain and end every thread and the listener; bounded in time, whatever hangs."""
        self._stopped.set()
        self._parent_watch.stop()
        if self._drain_watch is not None:
            self._drain_watch.stop()
        try:
            self.drain()
        except TimeoutError:
            log("streams did not end in time and are cut off")
        self._source.stop()
        self._engine_loop.stop(_STOP_SLACK_S)
        self._driver_thread.stop(_STOP_SLACK_S)
        if self._spool_writer is not None and self._spool_reader is not None:
            self._spool_reader.stop(_STOP_SLACK_S)
            self._spool_writer.stop(_STOP_SLACK_S)
        self._pump.stop(_STOP_SLACK_S)
        self._admin.stop()

    def _encode(self, prompt: str) -> tuple[int, ...]:
        token_ids = tuple(self._engine.encode(prompt))
        context, limit = self._engine.context_tokens, self._config.admission.max_prompt_tokens
        if not token_ids:
            raise RequestError("text_input: holds no tokens; a prompt has at least 1")
        if len(token_ids) > limit:
            raise RequestError(f"text_input: {len(token_ids)} tokens, at most {limit} are taken (max_prompt_tokens)")
        if len(token_ids) >= context:
            raise RequestError(
                f"text_input: {len(token_ids)} tokens leave no room for an answer in a context of {context} tokens"
            )
        return token_ids

    def _overhead_bytes(self, message: Admit) -> int:
        request = message.request
        return frame_overhead_bytes(
            request.outputs, model=self._model.name, version=self._model.version, client_id=request.client_id
        )

    def _server_exits(self) -> None:
        """Triton 24.10 waits for open RPCs without end, also past its exit timeout, and then never calls us."""
        log("the server is shutting down: ending open streams")
        self._inbox.post(Drain(Future()))
        timeout_s = parent_exit_timeout_s()
        if not self._stopped.wait(timeout_s):
            log(f"the server did not leave within its exit timeout of {timeout_s:.0f} s: ending it")
            end_with_parent()

    def _engine_died(self, detail: str) -> None:
        """Tell every client, then go: a process without an engine must not look ready."""
        log(f"the engine failed:\n{detail}")
        self._inbox.post(EngineDied())

        def leave() -> None:
            try:
                self.drain()
            finally:
                os._exit(EXIT_FATAL)

        threading.Thread(target=leave, name="last-will", daemon=True).start()

    def _die(self, detail: str) -> None:
        """A thread that everything depends on is gone. Ending loudly beats hanging silently."""
        log(f"internal failure, exiting:\n{detail}")
        os._exit(EXIT_FATAL)
