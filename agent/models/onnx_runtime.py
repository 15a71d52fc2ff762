"""The one place that imports ONNX Runtime; all else takes the module from here.

From 1.31 on its packages note what they do in `~/.cache/Microsoft` and send it to Microsoft. The
variable stops that, and is looked at only while the module is imported.
"""

from __future__ import annotations

import os

#: An operator's own setting goes over it.
TELEMETRY_VARIABLE = "ORT_DISABLE_TELEMETRY"

os.environ.setdefault(TELEMETRY_VARIABLE, "1")

import onnxruntime  # noqa: E402 - after the variable

__all__ = ["TELEMETRY_VARIABLE", "onnxruntime"]
