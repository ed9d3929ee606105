"""Triton's shell around sluiceway.runtime.service: translates calls, decides nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from sluiceway.delivery.source import ListenerError
from sluiceway.runtime.errors import ConfigError
from sluiceway.runtime.service import ModelName, Service, config_path
from sluiceway.runtime.triton import TritonResponder, raw_request


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        folder = Path(args["model_repository"])
        try:
            self._service = Service(config_path(folder), ModelName(args["model_name"], args["model_version"]))
            self._service.start()
        except (ConfigError, ListenerError) as error:
            raise pb_utils.TritonModelException(str(error)) from None

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self._service.submit(raw_request(request), TritonResponder(request))

    def finalize(self) -> None:
        self._service.stop()
